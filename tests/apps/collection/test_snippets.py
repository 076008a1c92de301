from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.apps.collection.snippets import SNIPPET_CHARS, snippet, stem

words = st.sampled_from(["river", "flood", "flooding", "spring", "Bread", "ice.", "the", "a", "x" * 50])
passages = st.lists(words, max_size=120).map(" ".join)


@pytest.mark.parametrize(
    ("one", "other"),
    [("floods", "flooding"), ("River", "rivers"), ("running", "run"), ("study", "studies"), ("café", "cafes")],
)
def test_forms_of_a_word_are_the_same(one: str, other: str) -> None:
    assert stem(one) == stem(other)


def test_a_long_word_is_not_kept() -> None:
    """A thousand words of megabytes would be held outside every lease."""
    word = "ab" * 10**6 + "ing"
    before = sys.getrefcount(word)
    assert stem(word) == "ab" * 10**6
    assert sys.getrefcount(word) == before


def test_short_words_stay() -> None:
    assert stem("is") == "is"
    assert stem("gas") != stem("g")


def marked(text: str, marks: tuple[tuple[int, int], ...]) -> list[str]:
    return [text[start:end] for start, end in marks]


def test_the_stretch_with_most_of_the_query_is_shown() -> None:
    passage = "Nothing of note. " * 30 + "When spring comes\n\tthe river   floods. " + "Other things happen. " * 30
    found = snippet(passage, {"river": 2.0, "flood": 2.0, "spring": 1.0})
    assert "When spring comes the river floods." in found.text
    assert found.text.startswith("… When spring")
    assert found.text.endswith("…")
    assert marked(found.text, found.marks) == ["spring", "river", "floods"]


def test_without_a_word_of_the_query_the_beginning_is_shown() -> None:
    found = snippet("first words " * 50, {"absent": 1.0})
    assert found.text.startswith("first words")
    assert found.marks == ()


def test_a_short_passage_is_shown_whole() -> None:
    found = snippet("  The river\nfloods. ", {"river": 1.0})
    assert found.text == "The river floods."
    assert marked(found.text, found.marks) == ["river"]


@given(passages | st.text(max_size=600), st.dictionaries(words | st.text(max_size=5), st.floats(0.1, 9), max_size=4))
def test_snippets_are_short_lines_of_the_passage_marked_where_the_query_is(
    passage: str, weights: dict[str, float]
) -> None:
    found = snippet(passage, weights)
    assert len(found.text) <= SNIPPET_CHARS
    assert found.text.removeprefix("… ").removesuffix(" …") in " ".join(passage.split())
    stems = {stem(word) for word in weights}
    for text in marked(found.text, found.marks):
        assert stem(text) in stems
