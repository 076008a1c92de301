"""Which line of the document each line of a passage is."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.apps.documents.base import Chunk, packed, unpacked

Cut = Callable[..., list[Chunk]]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=30))
def test_numbers_survive_the_database(numbers: list[int]) -> None:
    assert unpacked(packed(numbers), numbers[0], numbers[-1], len(numbers)) == tuple(numbers)


def test_old_rows_have_none_and_end_where_the_passage_ends() -> None:
    assert packed(None) is None
    assert unpacked(None, 5, 7, 3) == (5, 6, 7)
    assert unpacked(None, 5, 6, 4) == (5, 6, 6, 6)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.md", "# One\n\n\n\nText of one.\n\n\n\n\n\nMore of\nit here.\n\n## Two\n\n- an item\n- b\n\n\n\nEnd.\n"),
        ("a.txt", "\n\n\nFirst.\n\n\n\n\nSecond one.\nThird.\n\n\n\n\n\n\n\nFourth.\n"),
        ("a.py", "import os\n\n\nclass A:\n    x = 1\n\n\n\n    y = 2\n\n\ndef f():\n    return os\n\n\n# the end\n"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("most", [32, 60, 220])
def test_every_line_of_a_passage_is_that_line_of_the_file(cut: Cut, name: str, text: str, most: int) -> None:
    file = text.split("\n")
    seen = 0
    for chunk in cut(name, text, most):
        lines = chunk.text.split("\n")
        numbers = unpacked(packed(chunk.lines), chunk.line_start, chunk.line_end, len(lines))
        assert len(numbers) == len(lines)
        assert numbers[0] == chunk.line_start
        for number, line in zip(numbers, lines, strict=True):
            if line.strip():
                assert line.strip() in file[number - 1]
                seen += 1
    assert seen >= sum(bool(line.strip()) for line in file)
