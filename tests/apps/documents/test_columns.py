"""Columns that a program has drawn row by row are read one after the other, and tables row by row. `pdftotext` of
Poppler reads the columns here in the same order."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from edge.apps.documents.base import DocumentBlocks

Read = Callable[[str, bytes], DocumentBlocks]
Make = Callable[..., bytes]

RIVER = [
    "The river floods in spring",
    "when the snow melts and",
    "comes down into the valley",
    "where people live in old",
    "houses on very high poles.",
]
BREAD = [
    "Bread needs time and flour",
    "and some water with salt",
    "so that the dough can rise",
    "for the whole night before",
    "it goes into a hot oven.",
]
BOATS = [
    "Boats lie on the dry bank",
    "until the water comes up",
    "and takes them to the sea",
    "where fishermen wait for",
    "them with their new nets.",
]


def drawn(make: Make, columns: Sequence[Sequence[str]], *, step: int, title: str = "", end: str = "") -> bytes:
    """A page whose rows go through all columns."""
    runs = [(60, 760, 16, title)] if title else []
    for row, texts in enumerate(zip(*columns, strict=True)):
        runs += [(60 + step * at, 700 - 13 * row, 10, text) for at, text in enumerate(texts)]
    return make([[*runs, *([(60, 560, 10, end)] if end else [])]])


@pytest.mark.parametrize(
    ("columns", "step"), [((RIVER, BREAD), 260), ((RIVER, BREAD), 150), ((RIVER, BREAD, BOATS), 165)]
)
@pytest.mark.parametrize(
    "end", ["", "A last line goes across the whole page below all of the columns, from edge to edge."]
)
def test_columns_are_apart(
    read: Read, make_pdf: Make, tmp_path: Path, columns: Sequence[list[str]], step: int, end: str
) -> None:
    data = drawn(make_pdf, columns, step=step, title="A title above all", end=end)
    blocks = list(read("a.pdf", data).blocks)
    shown = "\n".join(block.text for block in blocks)
    expected = "\n".join(
        ["A title above all", *(line for column in columns for line in column), *([end] if end else [])]
    )
    assert shown == expected
    numbers = [number for block in blocks for number in block.lines or ()]
    assert numbers == list(range(1, len(expected.split("\n")) + 1))
    if shutil.which("pdftotext"):
        (tmp_path / "b.pdf").write_bytes(data)
        said = subprocess.run(["pdftotext", tmp_path / "b.pdf", "-"], capture_output=True, text=True, check=True).stdout
        assert said.split() == expected.split()


@pytest.mark.parametrize(
    "columns",
    [
        (["Elbe", "Oder", "Main", "Saale", "Havel"], ["1094 km", "866 km", "524 km", "413 km", "334 km"]),
        ([f"Number of the {n} customer" for n in "abcde"], ["Paid by the end of May"] * 5),
        (RIVER[:4], BREAD[:4]),
    ],
    ids=["numbers", "cells", "few rows"],
)
def test_rows_of_tables_stay(read: Read, make_pdf: Make, columns: Sequence[list[str]]) -> None:
    shown = [
        line for block in read("a.pdf", drawn(make_pdf, columns, step=260)).blocks for line in block.text.split("\n")
    ]
    assert shown == [" ".join(row) for row in zip(*columns, strict=True)]


def test_many_gaps_take_no_time(read: Read, make_pdf: Make) -> None:
    columns = [[f"w{row} and x y" for row in range(50)] for _ in range(40)]
    assert read("a.pdf", drawn(make_pdf, columns, step=90)).blocks
