"""Misspelled words are found in the vocabulary of a full-text index."""

from __future__ import annotations

from functools import cache

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.apps.store.lexical import LexicalIndex, _distances, nearest_in, respelled, stems_like, unknown_words

TEXTS = [
    "The insurance pays for the dishwasher. Insurance!",
    "A receipt for the bicycle, 12 Öre",
    "Der Bäcker kennt Straßen",
    "tax return",
]


@pytest.mark.parametrize(
    ("word", "found"),
    [
        ("insurrance", "insurance"),
        ("recipt", "receipt"),
        ("dishwaser", "dishwasher"),
        ("bycicle", "bicycle"),
        ("Becker", "bäcker"),
        ("insulation", ""),
        ("retrun", "return"),
        ("zzqqy", ""),
    ],
)
def test_the_nearest_word_of_the_documents_is_found(word: str, found: str) -> None:
    db = apsw.Connection(":memory:")
    db.execute(LexicalIndex.create("notes"))
    lexical = LexicalIndex("notes")
    lexical.add(db, range(len(TEXTS)), TEXTS)
    terms = stems_like(db, "notes", word)
    rows = [row for term in terms for row, _ in lexical.search(db, term, 3)]
    assert nearest_in(word, [TEXTS[row] for row in rows]) == found


def test_only_free_words_that_are_long_enough_are_looked_up() -> None:
    assert unknown_words("when is my recipt due, recipt 12?", {"when"}) == ["recipt"]
    assert unknown_words('"my recipt"') == []
    assert respelled("recipt of recipts", {"recipt": "receipt"}) == "receipt of recipts"


@cache
def naive(word: str, other: str) -> int:
    """The definition of the distance."""
    if not word or not other:
        return len(word) + len(other)
    found = min(
        naive(word[:-1], other) + 1, naive(word, other[:-1]) + 1, naive(word[:-1], other[:-1]) + (word[-1] != other[-1])
    )
    if len(word) > 1 and len(other) > 1 and (word[-1], word[-2]) == (other[-2], other[-1]):
        found = min(found, naive(word[:-2], other[:-2]) + 1)
    return found


@given(st.text("abc", max_size=6), st.text("abc", max_size=6))
def test_distances_are_those_of_the_definition(word: str, other: str) -> None:
    assert _distances(word, other) == [naive(word, other[:end]) for end in range(len(other) + 1)]
