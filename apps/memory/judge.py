"""Judges whether a new statement ends an older one: "I moved to Trondheim" ends "I live in Oslo". A small model tells
how probable it is (`edge.models.statements`), in eight languages. The benchmark `supersession` chose `ENDS` and
`ORDERS`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from edge.models.statements import LONGEST, StatementModel, words
from edge.text.sentences import sentences

ENDS = 0.87
"""The least probability from which a newer statement ends an older one."""

ORDERS = 0.2
"""The least probability from which the newer one is found before the older one."""

RELATED = 0.2
"""The least cosine of two statements that may be of one thing. Of 128 endings none is below; of pairs of facts of one
person, two thirds are."""

MOST_CHARACTERS = 240
_MOST_SENTENCES = 6
_GREETING = 3
"""A sentence of so few words beside another one says nothing of its own."""

_SPEAKER = re.compile(r"(?P<name>[A-ZÄÖÜ]\w{1,30}): ")
_CORRECTED = {"correction", "korrektur", "corrección", "correzione", "correção", "correctie", "poprawka", "update"}
"""Words before a colon that name no speaker."""


@dataclass(frozen=True, slots=True)
class Statement:
    speaker: str
    sentences: tuple[str, ...] = ()


@lru_cache(maxsize=256)
def read(text: str) -> Statement:
    """The statement that a text makes; without sentences if it is too long, or only asks."""
    match = _SPEAKER.match(text)
    if match and match["name"].casefold() in _CORRECTED:
        match = None
    said = text[match.end() :] if match else text
    found = sentences(said) if len(said) <= MOST_CHARACTERS else []
    if len(found) > _MOST_SENTENCES:
        found = []
    stated = [
        sentence
        for sentence in found
        if not (sentence.rstrip().endswith("?") or sentence.startswith("¿"))
        and _GREETING * (len(found) > 1) < len(words(sentence)) < LONGEST
    ]
    return Statement(match["name"] if match else "", tuple(stated))


class Judge:
    def __init__(self) -> None:
        self.model = StatementModel.open()

    def compare(self, pairs: Sequence[tuple[str, str, float]]) -> list[float]:
        """The probability that what was said later ends what was said before, for pairs of older text, newer text and
        the cosine of their vectors. It is 0 for texts of two speakers, for what is not `RELATED`, and if the older one
        makes more than one statement, or is an exclamation: "Thanks!" holds for the moment."""
        asked: list[tuple[str, str]] = []
        owners: list[int] = []
        for number, (before, after, cosine) in enumerate(pairs):
            old, new = read(before), read(after)
            alone = len(old.sentences) == 1 and not old.sentences[0].endswith("!")
            if cosine >= RELATED and old.speaker == new.speaker and alone:
                asked += [(old.sentences[0], sentence) for sentence in new.sentences]
                owners += [number] * len(new.sentences)
        highest = np.zeros(len(pairs), np.float32)
        np.maximum.at(highest, np.array(owners, np.intp), self.model.probabilities(asked))
        return [float(value) for value in highest]
