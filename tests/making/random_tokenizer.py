"""Made-up tokenizers of a given vocabulary size, for models with random weights: WordPiece, Unigram, byte-level BPE.

Their pieces are common words and letter sequences. English text takes between one and three tokens per word, and the
files and tables are about as large as those of real tokenizers.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from edge.models.clipping import QWEN_PATTERN

_WORDS = (
    "the of and to in is you that it he was for on are as with his they at be this have from or one had by word but "
    "not what all were we when your can said there use an each which she do how their if will up other about out many "
    "then them these so some her would make like him into time has look two more write go see number no way could "
    "people my than first water been call who oil its now find long down day did get come made may part over new sound "
    "take only little work know place year live me back give most very after thing our just name good sentence man "
    "think say great where help through much before line right too mean old any same tell boy follow came want show "
    "also around form three small set put end does another well large must big even such because turn here why ask "
    "went men read need land different home us move try kind hand picture again change off play spell air away animal "
    "house point page letter mother answer found study still learn should world yes query document search memory"
)
COMMON = _WORDS.split()

_SPECIAL = (
    "<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> <|box_start|> <|box_end|> "
    "<|quad_start|> <|quad_end|> <|vision_start|> <|vision_end|> <|vision_pad|> <|image_pad|> <|video_pad|> "
    "<tool_call> </tool_call> <|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|> <|file_sep|> "
    "<tool_response> </tool_response> <think> </think>"
)
QWEN_SPECIAL = _SPECIAL.split()

_LETTERS = "etaoinshrdlcumwfgypbvkjxqz"
_VOWELS = frozenset("aeiou")
_LATIN = ("bcdfghjklmnpqrstvwxz", "aeiou")
_CYRILLIC = ("бвгджзклмнпрстфхцчшщ", "аеиоуыэюя")
_ASCII = [chr(code) for code in range(33, 127)]
_RANGES = ((0xDF, 0x100), (0x3B1, 0x3CA), (0x430, 0x450), (0x4E00, 0x6200))
_FOREIGN = [chr(code) for low, high in _RANGES for code in range(low, high)]


def wordpiece(path: Path, size: int) -> None:
    """Writes a BERT tokenizer of `size` tokens. Special tokens have the positions of `bert-base-uncased`."""
    vocab: dict[str, int] = {"[PAD]": 0}
    if size > 5000:
        vocab |= {f"[unused{n}]": n + 1 for n in range(99)}
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    _fill(vocab, special, size)
    _fill(vocab, (char for char in _ASCII if not char.isupper()), size)
    _fill(vocab, (f"##{char}" for char in _LETTERS + "0123456789"), size)
    _fill(vocab, _FOREIGN[: size // 20], size)
    _fill(vocab, COMMON, size)
    _fill(vocab, (form for piece in _pieces() for form in (piece, f"##{piece}")), size)
    cls, sep = ("[CLS]", vocab["[CLS]"]), ("[SEP]", vocab["[SEP]"])
    _save(
        path,
        added=[(token, vocab[token]) for token in special],
        normalizer={
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": True,
        },
        pre_tokenizer={"type": "BertPreTokenizer"},
        post_processor=_template([cls, "A", sep], [cls, "A", sep, "B", sep], second_type=1),
        decoder={"type": "WordPiece", "prefix": "##", "cleanup": True},
        model={
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": vocab,
        },
    )


def unigram(path: Path, size: int) -> None:
    """Writes an XLM-RoBERTa tokenizer of `size` tokens. Special tokens have the positions of `xlm-roberta-base`."""
    scores: dict[str, float] = dict.fromkeys(("<s>", "<pad>", "</s>", "<unk>", "▁"), 0.0)
    scores["▁"] = -4.0
    scores |= {f"▁{word}": -5.0 - n / 100 for n, word in enumerate(COMMON)}
    scores |= {form: -8.0 for char in _ASCII for form in (char, f"▁{char}")}
    scores |= dict.fromkeys(_FOREIGN[: size // 20], -10.0)
    short = size * 2 // 5
    for piece in itertools.chain(itertools.islice(_pieces(), short // 2), _words()):
        if len(scores) + 2 >= size:
            break
        # A longer piece costs less than the shorter pieces that it could be split into.
        scores.setdefault(f"▁{piece}", -6.0 - 1.5 * len(piece))
        scores.setdefault(piece, -6.0 - 1.5 * len(piece))
    vocab = list(scores.items())[: size - 1]
    vocab += [(f"<unused{n}>", -20.0) for n in range(size - 1 - len(vocab))]
    vocab.append(("<mask>", 0.0))
    special = [("<s>", 0), ("<pad>", 1), ("</s>", 2), ("<unk>", 3), ("<mask>", size - 1)]
    start, end = special[0], special[2]
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    _save(
        path,
        added=special,
        normalizer={"type": "NFKC"},
        pre_tokenizer={"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, metaspace]},
        post_processor=_template([start, "A", end], [start, "A", end, end, "B", end], second_type=0),
        decoder=metaspace,
        model={"type": "Unigram", "unk_id": 3, "byte_fallback": False, "vocab": vocab},
    )


def byte_bpe(path: Path, size: int, *, append_end: bool) -> None:
    """Writes a Qwen3 tokenizer of `size` tokens. The special tokens come last. With `append_end` it appends
    `<|endoftext|>` to every text, as that of Qwen3-Embedding does."""
    from tokenizers.pre_tokenizers import ByteLevel

    vocab = {char: n for n, char in enumerate(sorted(ByteLevel.alphabet()))}
    merges: list[tuple[str, str]] = []
    for left, right in _merges():
        if len(vocab) + len(QWEN_SPECIAL) >= size:
            break
        if left + right not in vocab:
            vocab[left + right] = len(vocab)
            merges.append((left, right))
    special = [(token, len(vocab) + n) for n, token in enumerate(QWEN_SPECIAL)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    post_processor: dict[str, Any] = byte_level
    if append_end:
        ending = _template(["A", special[0]], ["A", special[0], "B", special[0]], second_type=0)
        post_processor = {"type": "Sequence", "processors": [byte_level, ending]}
    split = {"type": "Split", "pattern": {"Regex": QWEN_PATTERN}, "behavior": "Isolated", "invert": False}
    _save(
        path,
        added=special,
        normalizer={"type": "NFC"},
        pre_tokenizer={"type": "Sequence", "pretokenizers": [split, byte_level]},
        post_processor=post_processor,
        decoder=byte_level,
        model={"type": "BPE", "vocab": vocab, "merges": merges},
    )


def _fill(vocab: dict[str, int], tokens: Iterator[str] | list[str], size: int) -> None:
    for token in tokens:
        if len(vocab) >= size:
            return
        vocab.setdefault(token, len(vocab))


def _pieces() -> Iterator[str]:
    """Letter sequences of two letters, then of three, the pronounceable ones first; then pronounceable ones of four."""
    for length in (2, 3):
        sequences = ["".join(letters) for letters in itertools.product(_LETTERS, repeat=length)]
        yield from sorted(sequences, key=lambda piece: not _pronounceable(piece))
    yield from _four_letters()


def _four_letters() -> Iterator[str]:
    # The order is random and fixed, so that the first pieces already cover the alphabet.
    for number in np.random.default_rng(4).permutation(26**4).tolist():
        piece = "".join(_LETTERS[number // 26**place % 26] for place in range(4))
        if _pronounceable(piece):
            yield piece


def _words() -> Iterator[str]:
    """Made-up words of five to eight letters, a third of them Cyrillic. A multilingual vocabulary consists mostly of
    whole words like these, and they account for most of the memory of its search tree."""
    choose = np.random.default_rng(5)
    while True:
        for letters in choose.integers(0, 20, (1000, 8)).tolist():
            consonants, vowels = _CYRILLIC if letters[0] % 3 == 0 else _LATIN
            word = [vowels[m % len(vowels)] if n % 2 else consonants[m] for n, m in enumerate(letters)]
            yield "".join(word[: 5 + letters[7] % 4])


def _merges() -> Iterator[tuple[str, str]]:
    space = "Ġ"
    for letter in _LETTERS:
        yield space, letter
    for letter in _LETTERS:
        for other in _LETTERS:
            yield letter, other
    for word in COMMON:
        for end in range(1, len(word)):
            yield word[:end], word[end]
            yield space + word[:end], word[end]
    for pair in itertools.product(_LETTERS, repeat=2):
        for letter in _LETTERS:
            yield "".join(pair), letter
            yield space + pair[0], pair[1] + letter
    for piece in _four_letters():
        yield piece[:2], piece[2:]


def _pronounceable(piece: str) -> bool:
    vowels = sum(letter in _VOWELS for letter in piece)
    return 0 < vowels < len(piece)


def _template(single: list[Any], pair: list[Any], second_type: int) -> dict[str, Any]:
    special: dict[str, Any] = {}

    def step(item: Any, kind: int) -> dict[str, Any]:
        if isinstance(item, str):
            return {"Sequence": {"id": item, "type_id": kind}}
        token, number = item
        special[token] = {"id": token, "ids": [number], "tokens": [token]}
        return {"SpecialToken": {"id": token, "type_id": kind}}

    second = pair.index("B")
    # The separator before the second text has the type of the first text.
    steps = [step(item, second_type if n >= second else 0) for n, item in enumerate(pair)]
    return {
        "type": "TemplateProcessing",
        "single": [step(item, 0) for item in single],
        "pair": steps,
        "special_tokens": special,
    }


def _save(path: Path, *, added: list[tuple[str, int]], **parts: Any) -> None:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tokens = [{"id": number, "content": token, **flags} for token, number in sorted(added, key=lambda item: item[1])]
    content = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": tokens, **parts}
    with path.open("w", encoding="utf-8") as file:
        # The JSON is written in small parts, because the whole text of a large vocabulary takes tens of megabytes.
        for chunk in json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).iterencode(content):
            file.write(chunk)
