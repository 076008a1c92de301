"""Numbers in texts, by their value."""

from __future__ import annotations

import re

import pytest

from edge.apps.assistant.grounding import number_at


def read(text: str) -> str | None:
    words = re.findall(r"\d+(?:[.,:]\d+)*|\w+", text)
    found = number_at(words, 0)
    return None if found is None else found[0]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("70", "seventy"), ("0.5", "half"), ("3", "3.0"), ("2 million", "2,000,000"), ("1,200.50", "1200.5"),
        ("1.200,50", "1200.5"), ("twenty-one", "21"), ("two hundred", "200"), ("3.5 thousand", "3500"), ("007", "7"),
        ("12", "dozen"), ("ninety nine", "99"), ("1,5", "1.5"), ("five million", "5,000,000"), ("Eighty", "80.00"),
    ],
)  # fmt: skip
def test_equal_numbers(one: str, other: str) -> None:
    assert read(one) == read(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [("70", "7"), ("12:30", "1230"), ("1.25", "125"), ("2 million", "2"), ("1.2.3", "1.23"), ("seventeen", "seventy")],
)
def test_different_numbers(one: str, other: str) -> None:
    assert read(one) != read(other)


@pytest.mark.parametrize("text", ["river", "dollar", "onerous", "v2"])
def test_no_numbers(text: str) -> None:
    assert read(text) is None
