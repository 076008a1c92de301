"""Which ids of a text's beginning stay the same whatever continues it.

A text without spaces can only be cut where a tokenizer might join both sides. Two facts say which ids are settled:

1. Pre-tokenizers go from left to right and look ahead one character at most, so of a text that ends between two plain
   characters (see `clipping`) all pre-tokens but the last are those of every longer text.
2. Inside that last one, Unigram and BPE are closed under prefixes: where the tokens of a word end at position p, those
   before p are the tokens of the word's first p characters. (Unigram: the best path to the end contains the best path
   to p. BPE: no merge crossed p, so those on its left were made in the order in which they are made alone.) A longer
   word has a token that ends among the last `longest` positions of its beginning, as no token is longer. So what the
   tokens of the beginning up to each of these positions have in common is how every longer word begins.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from edge.models.vocabulary import QWEN_PATTERN

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

_NORMALIZERS = {"BertNormalizer", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "Precompiled", "StripAccents"}
_SPACES = ({"String": " "}, {"Regex": " {2,}"})
_PRE_TOKENIZERS = {"BertPreTokenizer", "ByteLevel", "Metaspace", "WhitespaceSplit"}


def inseparable(tokenizer: Tokenizer) -> list[str] | None:
    """The special tokens, which no cut may part; None if the tokenizer is not known to have the first property."""
    added = list(tokenizer.get_added_tokens_decoder().values())
    # Those that are looked for after normalisation could be anywhere, others depend on what stands behind them.
    apart = not any(token.normalized or token.rstrip or token.single_word for token in added)
    apart = apart and all(map(_normalizes_apart, _steps(tokenizer.normalizer)))
    apart = apart and all(map(_splits_ahead, _steps(tokenizer.pre_tokenizer)))
    return [token.content for token in added] if apart else None


def settled(tokenizer: Tokenizer, encoding: Encoding, most: int, longest: Callable[[], int]) -> int:
    """How many of the first ids of an open clip's encoding stay.

    Args:
        encoding: of the clip, which the tokenizer's `inseparable` was given to.
        most: so many are wanted; whether more stay is not looked into.
        longest: finds the characters of the tokenizer's longest piece, once that is needed.
    """
    words, ids = encoding.word_ids, encoding.ids
    start = words.index(words[-1]) if words else 0
    if start >= most or not _closed_under_prefixes(tokenizer.model):
        return start
    reach = longest()
    # A piece has one character at least: more than these are not needed to settle `most` ids.
    tokens = encoding.tokens[start : most + reach]
    word = "".join(tokens)
    if len(word) < reach:
        return start
    same = _ids(tokenizer, word)
    if same != ids[start : start + len(tokens)]:
        return start
    for end in range(len(word) - 1, len(word) - reach, -1):
        pairs = zip(same, _ids(tokenizer, word[:end]), strict=False)
        same = [ours for ours, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)]
    return start + len(same)


def _ids(tokenizer: Tokenizer, word: str) -> list[int]:
    return [token.id for token in tokenizer.model.tokenize(word)]


def _steps(part: Any) -> list[dict[str, Any]]:
    """A normalizer's or pre-tokenizer's description as a list of single steps; none for None."""
    if part is None:
        return []
    return _flat(json.loads(part.__getstate__()))


def _flat(content: dict[str, Any]) -> list[dict[str, Any]]:
    if content["type"] != "Sequence":
        return [content]
    parts = content.get("normalizers") or content.get("pretokenizers") or []
    return [step for part in parts for step in _flat(part)]


def _normalizes_apart(step: dict[str, Any]) -> bool:
    return step["type"] in _NORMALIZERS or (step["type"] == "Replace" and step["pattern"] in _SPACES)


def _splits_ahead(step: dict[str, Any]) -> bool:
    if step["type"] == "Split":
        return bool(step["pattern"] == {"Regex": QWEN_PATTERN} and step["behavior"] == "Isolated")
    return step["type"] in _PRE_TOKENIZERS


def _closed_under_prefixes(model: Any) -> bool:
    """WordPiece is not: one character that it does not know makes the whole word unknown."""
    kind = type(model).__name__
    if kind == "BPE":
        whole_words = model.ignore_merges or model.continuing_subword_prefix or model.end_of_word_suffix
        return not (whole_words or model.dropout or model.unk_token or model.byte_fallback)
    return kind == "Unigram" and model.alpha is None
