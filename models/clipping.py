"""`Clip`: the beginning of a long text, cut at a place where no tokenizer joins the characters on the two sides: to
tokenize megabytes takes hundreds of times their memory.

A text without spaces can be cut only where a tokenizer might join both sides. Then only the settled ids are used, the
same for every continuation:

1. Pre-tokenizers go from left to right and look ahead one character at most. If a text ends between two plain
characters (`_PLAIN`), all its pre-tokens except the last are also pre-tokens of every longer text.

2. Inside the last pre-token, Unigram and BPE are closed under prefixes: if a token of a word ends at position p, the
tokens before p are those of the word's first p characters. No token is longer than `longest` characters, so every
longer word has a token that ends within the last `longest` positions of the known beginning. Tokenize the beginning up
to each of these: the ids that all results start with are the first ids of every longer word."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

_CHARS_PER_TOKEN = 8
_GROWTH = 4

_PLAIN = (
    "!-~\u00c0-\u024f\u0400-\u0481"  # ASCII but the space, Latin, Cyrillic
    "\u0e01-\u0e2e\u3041-\u3096\u30a1-\u30fa"  # Thai consonants, kana
    "\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\U00020000-\U0003ffff"  # Chinese characters, Hangul syllables
    "\U0001f400-\U0001f64f"  # emoji, but no skin colours
)
_PAIR = re.compile(f"[{_PLAIN}]{{2}}")
"""Two characters that no normalization joins."""

_NORMALIZERS = {"BertNormalizer", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "Precompiled", "StripAccents"}
_SPACES = ({"String": " "}, {"Regex": " {2,}"})
_PRE_TOKENIZERS = {"BertPreTokenizer", "ByteLevel", "Metaspace", "WhitespaceSplit"}
QWEN_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How Qwen's tokenizers split a text. It looks ahead one character at most."""


class Clip:
    """The beginning of a text that probably has `tokens` tokens. `cut`: there is more; `open`: the text after it may
    change its last tokens (see `settled`)."""

    __slots__ = ("_chars", "_inseparable", "_lead", "_whole", "cut", "open", "text")

    def __init__(self, whole: str, tokens: int, *, lead: str = "", inseparable: Sequence[str] | None = None) -> None:
        """`lead` goes before `whole`. `inseparable` strings are not cut; None allows cuts between words only."""
        self._whole = whole
        self._lead = lead
        self._inseparable = inseparable
        self._chars = (tokens + 1) * _CHARS_PER_TOKEN
        self._take()

    def longer(self) -> Clip:
        """A clip four times as long."""
        longer = Clip.__new__(Clip)
        longer._whole, longer._lead, longer._inseparable = self._whole, self._lead, self._inseparable
        longer._chars = self._chars * _GROWTH
        longer._take()
        return longer

    def _take(self) -> None:
        self.cut = self.open = False
        if len(self._lead) + len(self._whole) <= self._chars:
            self.text = self._lead + self._whole
            return
        margin = max(map(len, self._inseparable or ()), default=0) + 1
        head = self._lead + self._whole[: self._chars + margin]
        end = _word_start(head, self._chars)
        if 2 * end < self._chars and self._inseparable is not None:
            anywhere = _seam(head, self._chars, self._inseparable)
            self.open = anywhere > end
            end = max(end, anywhere)
        self.cut = end > 0
        self.text = head[:end] if self.cut else self._lead + self._whole


def _word_start(head: str, end: int) -> int:
    """The last space before `end` that a word follows, 0 if none. Tokenizers always split before it."""
    while (end := head.rfind(" ", 0, end)) > 0:
        if head[end + 1].isalnum():
            return end
    return 0


def _seam(head: str, end: int, inseparable: Sequence[str]) -> int:
    """The last place up to `end` between two plain characters and inside no inseparable string, 0 if there is none."""
    while end > 0:
        starts = (head.find(token, max(0, end + 1 - len(token)), end - 1 + len(token)) for token in inseparable)
        within = min((start for start in starts if start >= 0), default=end)
        if within == end and _PAIR.match(head, end - 1):
            return end
        end = min(within, end - 1)
    return 0


def inseparable(tokenizer: Tokenizer) -> list[str] | None:
    """The special tokens, which must not be cut in two; None if the first fact is not known to hold."""
    added = list(tokenizer.get_added_tokens_decoder().values())
    # `normalized` tokens are matched after normalization and could be anywhere. `rstrip` and `single_word` tokens
    # depend on the characters after them.
    apart = not any(token.normalized or token.rstrip or token.single_word for token in added)
    apart = apart and all(map(_normalizes_apart, steps(tokenizer.normalizer)))
    apart = apart and all(map(_splits_ahead, steps(tokenizer.pre_tokenizer)))
    return [token.content for token in added] if apart else None


def settled(tokenizer: Tokenizer, encoding: Encoding, most: int, longest: Callable[[], int]) -> int:
    """The number of settled ids at the start of an open clip's encoding. Ids after `most` are not examined; `longest`,
    the longest piece in characters, is called only if needed."""
    words, ids = encoding.word_ids, encoding.ids
    start = words.index(words[-1]) if words else 0
    if start >= most or not _closed_under_prefixes(tokenizer.model):
        return start
    reach = longest()
    # A piece has at least one character, so these tokens are enough to settle `most` ids.
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


def steps(part: Any) -> list[dict[str, Any]]:
    """A normalizer's or pre-tokenizer's description as a list of single steps; an empty list for None."""
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
    """Whether the second fact holds. For WordPiece it does not: one unknown character makes the whole word unknown."""
    kind = type(model).__name__
    if kind == "BPE":
        whole_words = model.ignore_merges or model.continuing_subword_prefix or model.end_of_word_suffix
        return not (whole_words or model.dropout or model.unk_token or model.byte_fallback)
    return kind == "Unigram" and model.alpha is None
