"""Made-up tokenizers of a given vocabulary size, for models with random weights: WordPiece, Unigram, byte-level BPE.

Their pieces are common words and letter sequences. English text takes between one and three tokens per word, and the
files and tables are about as large as those of real tokenizers.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

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
    tokenizer = _tokenizer(models.WordPiece(vocab, unk_token="[UNK]"), special)
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    _template(tokenizer, "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", "[CLS]", "[SEP]")
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.save(str(path), pretty=False)


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
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    tokenizer = _tokenizer(models.Unigram(vocab, unk_id=3, byte_fallback=False), special)
    tokenizer.normalizer = normalizers.NFKC()
    metaspace = pre_tokenizers.Metaspace()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), metaspace])
    _template(tokenizer, "<s> $A </s>", "<s> $A </s> </s> $B </s>", "<s>", "</s>")
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.save(str(path), pretty=False)


def byte_bpe(path: Path, size: int, *, append_end: bool) -> None:
    """Writes a Qwen3 tokenizer of `size` tokens. The special tokens come last. With `append_end` it appends
    `<|endoftext|>` to every text, as that of Qwen3-Embedding does."""
    vocab = {char: n for n, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    merges: list[tuple[str, str]] = []
    for left, right in _merges():
        if len(vocab) + len(QWEN_SPECIAL) >= size:
            break
        if left + right not in vocab:
            vocab[left + right] = len(vocab)
            merges.append((left, right))
    tokenizer = _tokenizer(models.BPE(vocab, merges), QWEN_SPECIAL)
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(QWEN_PATTERN), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    ending = processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    if append_end:
        end = QWEN_SPECIAL[0]
        _template(tokenizer, f"$A {end}", f"$A {end} $B {end}", end)
        ending = processors.Sequence([ending, tokenizer.post_processor])
    tokenizer.post_processor = ending
    tokenizer.save(str(path), pretty=False)


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


def _template(tokenizer: Tokenizer, single: str, pair: str, *special: str) -> None:
    known = [(token, tokenizer.token_to_id(token)) for token in special]
    tokenizer.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=known)


def _tokenizer(model: models.Model, special: Sequence[str]) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in special])
    return tokenizer
