"""Text cut into sentences."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.text.sentences import boundaries, sentences, spans


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two! Three? Four", ["One.", "Two!", "Three?", "Four"]),
        ('He said "go." Then he went.', ['He said "go."', "Then he went."]),
        ("Dr. J. Smith, i.e. he, came at 3.5 km. It rained.", ["Dr. J. Smith, i.e. he, came at 3.5 km.", "It rained."]),
        (
            "Die Fahrt ist vom 16. bis 20. Juni. Er kam als 3. ins Ziel.",
            ["Die Fahrt ist vom 16. bis 20. Juni.", "Er kam als 3. ins Ziel."],
        ),
        (
            "See Sect. 4 for it. It has 12. Others have more.",
            ["See Sect. 4 for it.", "It has 12.", "Others have more."],
        ),
        ("A heading\n\nA text\nover lines.", ["A heading", "A text over lines."]),
        ("これは一文。次の文！", ["これは一文。", "次の文！"]),
        ("...", []),
        ("", []),
        ("See e.g.\n\nthe next part.", ["See e.g.", "the next part."]),
        ('"Why?" she asked. Nobody knew.', ['"Why?" she asked.', "Nobody knew."]),
        (
            "Картофель сажают в мае. Ключ лежит, т. е. снаружи.",
            ["Картофель сажают в мае.", "Ключ лежит, т. е. снаружи."],
        ),
        ("Élan dit «non.» Öl brennt!", ["Élan dit «non.»", "Öl brennt!"]),
        (
            "Flour, salt etc. Then bake it, e.g. at 200 degrees.",
            ["Flour, salt etc.", "Then bake it, e.g. at 200 degrees."],
        ),
        ("It is kept at 23. Swim there.", ["It is kept at 23.", "Swim there."]),
        ("Am 12. Juni war es kalt.\n3. Wasser holen", ["Am 12. Juni war es kalt.", "3. Wasser holen"]),
        ("Is it? No. It is no. 5 of them.", ["Is it?", "No.", "It is no. 5 of them."]),
        ("The operator ? is short. (Really.) Yes", ["The operator ? is short.", "(Really.)", "Yes"]),
        ("Item (a.) stays. Then **bold.** Then more", ["Item (a.) stays.", "Then **bold.**", "Then more"]),
    ],
)
def test_sentences(text: str, expected: list[str]) -> None:
    assert sentences(text) == expected


@given(st.text(alphabet='aB. !?\n。")', max_size=60))
def test_sentences_stand_where_they_are_said_to(text: str) -> None:
    found = [text[start:end] for start, end in spans(text)]
    assert [" ".join(part.split()) for part in found] == sentences(text)
    assert all(part == part.strip() for part in found)


@given(st.text(alphabet='aB. !?\n。")', max_size=60))
def test_sentences_lose_no_letter(text: str) -> None:
    def letters(parts: Sequence[str]) -> str:
        return "".join(char for part in parts for char in part if char.isalnum())

    assert letters(sentences(text)) == letters([text])


@given(st.text(alphabet='aB1. !?\n。"*', max_size=60))
def test_only_white_space_lies_between_a_sentence_and_the_next(text: str) -> None:
    last = 0
    for end, begin in boundaries(text):
        assert last <= end <= begin
        assert not text[end:begin].strip()
        last = begin
