"""A small model of pairs of statements: the probability that what was said later ends what was said before. An encoder
of two layers over the words of both, with numpy; `models/training/judge.py` fits it. A word's vector is that of a large
embedder, made short, beside a shorter one that was fitted: words that no training text held have meaning, too."""

from __future__ import annotations

import re
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from edge.errors import CorruptBlock

FILE = Path(__file__).parent / "statements.npz"
"""The bundled model."""

LONGEST = 32
"""The most words of a statement that are read."""

STEM = 5
"""The letters of a longer word that stand for it where the word itself is not known."""

_WORD = re.compile(r"\w+(?:[.:/@]\w+)+|[^\W_]+['’]?|[?¿!,;:]")
_DIGIT = re.compile(r"\d")

FLAGS = ("new", "same", "alike", "capital", "number", "form", "unknown", "first", "mark")
"""What is known of each word: its statement, whether the other has it or its stem, and its form."""

_TOGETHER = 12
"""The pairs that are computed at a time, which bounds the memory that they need."""

_ABSENT = -1e4
_EPSILON = 1e-5
Ids = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]


def words(text: str, most: int = LONGEST) -> list[str]:
    """The words and marks of a text, at most `most`."""
    return [word.replace("’", "'") for word in _WORD.findall(text)][:most]


def key(word: str) -> int:
    """What the vocabulary knows a word by: words themselves would need more room than their vectors."""
    return zlib.crc32(word.encode())


def stem(word: str) -> str:
    return word[:STEM] + "*"


def alike(one: str, other: str) -> bool:
    """Whether two words in small letters have the same stem, as far as their beginnings tell."""
    shorter, longer = sorted((one, other), key=len)
    if len(shorter) < 3 or _DIGIT.search(shorter):
        return False
    common = next((n for n, (a, b) in enumerate(zip(shorter, longer, strict=False)) if a != b), len(shorter))
    return common >= max(3, len(shorter) - 2) and common >= len(longer) - 4


class Vocabulary(Protocol):
    """The numbers of words and stems by their keys, from 1."""

    def get(self, key: int, absent: int, /) -> int: ...


class SortedVocabulary:
    """`keys` ascend. A dictionary of as many words would need 3 MB."""

    def __init__(self, keys: npt.NDArray[np.uint32]) -> None:
        self.keys = keys

    def get(self, key: int, absent: int, /) -> int:
        place = int(np.searchsorted(self.keys, np.uint32(key)))
        return place + 1 if place < len(self.keys) and self.keys[place] == key else absent


@dataclass(frozen=True, slots=True)
class Encoded:
    """A pair as numbers: ids of words and stems [words], places, `FLAGS` [words, flags], common [words, words]."""

    ids: Ids
    stems: Ids
    places: Ids
    flags: Floats
    common: Floats


def encode(old: Sequence[str], new: Sequence[str], vocabulary: Vocabulary) -> Encoded:
    """The pair of two statements' words."""
    spelled = [*old, *new]
    small = [word.casefold() for word in spelled]
    split, count = len(old), len(spelled)
    common = np.zeros((count, count), np.float32)
    flags = np.zeros((count, len(FLAGS)), np.float32)
    begun: dict[str, list[int]] = {}
    for j in range(split, count):
        begun.setdefault(small[j][:3], []).append(j)
    for i in range(split):
        for j in begun.get(small[i][:3], ()):
            if small[i] == small[j]:
                common[i, j] = common[j, i] = 1
                flags[i, 1] = flags[j, 1] = 1
            elif alike(small[i], small[j]):
                common[i, j] = common[j, i] = 0.5
                flags[i, 2] = flags[j, 2] = 1
    ids, stems, places = (np.zeros(count, np.int32) for _ in range(3))
    for i, word in enumerate(spelled):
        first = i == 0 or i == split
        ids[i] = vocabulary.get(key(small[i]), 0)
        stems[i] = vocabulary.get(key(stem(small[i])), 0) if len(word) > STEM else 0
        places[i] = i if i < split else i - split
        flags[i, 0] = i >= split
        flags[i, 3:] = (
            word[0].isupper() and not first, bool(_DIGIT.search(word)), any(mark in word[1:-1] for mark in ":/@."),
            not ids[i] and not stems[i], first, not word[0].isalnum(),
        )  # fmt: skip
    return Encoded(ids, stems, places, flags, common)


class StatementModel:
    """The fitted model. Its weights and what it computes with need at most `nbytes`."""

    def __init__(self, weights: Mapping[str, npt.NDArray[Any]]) -> None:
        """Takes the arrays of a stored model; ValueError or KeyError if they are no such model."""
        self._vocabulary = SortedVocabulary(np.asarray(weights["words"], np.uint32))
        vectors = np.asarray(weights["vectors"], np.int8)
        self._vectors = np.vstack((np.zeros_like(vectors[:1]), vectors))  # the first one is unknown
        self._weights = {
            name: np.asarray(array, np.float32) for name, array in weights.items() if name not in ("words", "vectors")
        }
        self._layers, self._heads = self._weights["bias"].shape
        attention = _TOGETHER * (2 * LONGEST + 1) ** 2 * np.dtype(np.float32).itemsize * (3 * self._heads + 2)
        known = self._vectors.nbytes + self._vocabulary.keys.nbytes
        self.nbytes = sum(array.nbytes for array in self._weights.values()) + known + attention

    @classmethod
    def open(cls, path: Path | None = None) -> StatementModel:
        """The bundled model, or that of another file. CorruptBlock if it is damaged."""
        path = path or FILE
        try:
            with np.load(path) as stored:
                return cls(stored)
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise CorruptBlock(f"{path} is damaged ({error}); install the package again") from error

    def probabilities(self, pairs: Sequence[tuple[str, str]]) -> Floats:
        """The probability [pairs] that each newer statement ends the older one, which comes first in its pair."""
        if not pairs:
            return np.empty(0, np.float32)
        split = {text: words(text) for pair in pairs for text in pair}
        found = [
            self._computed([encode(split[old], split[new], self._vocabulary) for old, new in pairs[n : n + _TOGETHER]])
            for n in range(0, len(pairs), _TOGETHER)
        ]
        return np.concatenate(found)

    def _computed(self, encoded: Sequence[Encoded]) -> Floats:
        count, longest = len(encoded), 1 + max(len(pair.ids) for pair in encoded)
        own = self._weights
        heads, width = self._heads, len(own["cls"])
        x = np.zeros((count, longest, width), np.float32)
        common = np.zeros((count, longest, longest), np.float32)
        newer = np.zeros((count, longest), np.float32)
        absent = np.full((count, longest), _ABSENT, np.float32)
        x[:, 0] = own["cls"]
        up = own["up.weight"].T * own["scale"][:, None]
        for row, pair in enumerate(encoded):
            end = 1 + len(pair.ids)
            looked = self._vectors[np.where(pair.ids > 0, pair.ids, pair.stems)] @ up
            x[row, 1:end] = looked + own["pos"][pair.places] + pair.flags @ own["flag.weight"].T + own["flag.bias"]
            common[row, 1:end, 1:end], newer[row, 1:end], absent[row, :end] = pair.common, pair.flags[:, 0], 0
        across = (newer[:, :, None] != newer[:, None, :]).astype(np.float32)
        for layer in range(self._layers):
            shared, other = (own[name][layer][:, None, None] for name in ("bias", "side"))
            bias = shared * common[:, None] + other * across[:, None]
            states = self._linear(self._normal(x, f"layers.{layer}.n1"), f"layers.{layer}.qkv")
            query, key, value = states.reshape(count, longest, 3, heads, -1).transpose(2, 0, 3, 1, 4)
            odds = query @ key.swapaxes(-1, -2) / np.sqrt(np.float32(width // heads)) + bias + absent[:, None, None]
            attention = np.exp(odds - odds.max(axis=-1, keepdims=True))
            attention /= attention.sum(axis=-1, keepdims=True)
            mixed = (attention @ value).swapaxes(1, 2).reshape(count, longest, width)
            x = x + self._linear(mixed, f"layers.{layer}.o")
            inner = np.maximum(self._linear(self._normal(x, f"layers.{layer}.n2"), f"layers.{layer}.a"), 0)
            x = x + self._linear(inner, f"layers.{layer}.b")
        odds = self._linear(self._normal(x[:, 0], "n"), "out")[:, 0]
        return np.asarray(1 / (1 + np.exp(-odds)), np.float32)

    def _linear(self, x: Floats, name: str) -> Floats:
        return np.asarray(x @ self._weights[f"{name}.weight"].T + self._weights[f"{name}.bias"], np.float32)

    def _normal(self, x: Floats, name: str) -> Floats:
        centred = x - x.mean(axis=-1, keepdims=True)
        scaled = centred / np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + _EPSILON)
        return np.asarray(scaled * self._weights[f"{name}.weight"] + self._weights[f"{name}.bias"], np.float32)
