"""Tables as blocks, and CSV and TSV: each row becomes lines `column: value`, so that a passage names the meaning of its
numbers.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from edge.apps.documents.base import Block, Document
from edge.apps.documents.decoding import clean
from edge.apps.documents.opened import OpenedFile
from edge.errors import InputError

MOST_COLUMNS = 1000


def is_header(values: Sequence[str]) -> bool:
    """Whether a first row holds column names: short texts, no numbers, no repetitions."""
    return (
        len(values) > 1
        and len(set(values)) == len(values)
        and all(len(value) <= 80 and not value.replace(".", "").replace("-", "").isdigit() for value in values)
    )


def named(header: Sequence[str] | None, column: int, value: str) -> str:
    """A value with its column's name, if there are names; `column` counts from 0."""
    if header is None:
        return value
    name = header[column] if column < len(header) and header[column] else f"column {column + 1}"
    return f"{name}: {value}"


def check_width(values: Sequence[str]) -> None:
    """Checks the number of columns.

    Raises:
        InputError: the row has too many columns.
    """
    if len(values) > MOST_COLUMNS:
        raise InputError(f"a row of {len(values):,} columns; {MOST_COLUMNS:,} is the most that is read")


def row_blocks(rows: Iterable[tuple[int, Sequence[str]]], name: str, page: int | None) -> Iterator[Block]:
    """The blocks of a sheet: its column names, if the first row holds them, and its rows.

    Args:
        rows: number and values of each row that is not empty.
        name: name of the sheet, the path of its blocks.

    Raises:
        InputError: a row has too many columns.
    """
    header: Sequence[str] | None = None
    path = (name,) if name else ()
    first = True
    for number, values in rows:
        check_width(values)
        if first:
            first = False
            if is_header(values):
                header = values
                yield Block(" | ".join(values), number, number, page, "columns", path, (number,))
                continue
        text = [named(header, column, value) for column, value in enumerate(values) if value]
        yield Block("\n".join(text), number, number, page, "row", path, (number,) * len(text))


_DELIMITERS = (",", "\t", ";", "|")
_SAMPLE_LINES = 50


def extract(file: OpenedFile) -> Document:
    """Reads a table.

    Raises:
        InputError: its rows cannot be separated.
    """
    csv.field_size_limit(2**31 - 1)
    decoded = file.text()
    sample = [*islice(_Lines(decoded.text), _SAMPLE_LINES)]
    delimiter = _delimiter(sample, "\t" if file.suffix in (".tsv", ".tab") else ",")
    return Document("", _blocks(_Lines(decoded.text), delimiter), decoded.encoding)


class _Lines:
    """Iterates over the lines of a text, each with its LF. A list of lines would take ten times the text's memory.

    Attributes:
        row: the lines since `row` was last reset, without LF.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self.row: list[str] = []

    def __iter__(self) -> Iterator[str]:
        start = 0
        while start >= 0:
            end = self._text.find("\n", start)
            line = self._text[start:] if end < 0 else self._text[start:end]
            self.row.append(line)
            yield line + "\n"
            start = end + 1 if end >= 0 else -1


def _delimiter(sample: Sequence[str], usual: str) -> str:
    """The delimiter that splits most of the first rows into an equal number of columns, at least two. The usual
    delimiter wins ties, and is the default."""

    def agreement(delimiter: str) -> float:
        widths = [len(row) for row in csv.reader(sample, delimiter=delimiter) if row]
        common = max(set(widths), key=widths.count, default=1)
        return widths.count(common) / len(widths) if common > 1 else 0.0

    return max(sorted(_DELIMITERS, key=lambda each: each != usual), key=agreement)


def _blocks(lines: _Lines, delimiter: str) -> Iterator[Block]:
    header: list[str] | None = None
    before = 0
    reader = csv.reader(lines, delimiter=delimiter)
    try:
        for row in reader:
            first, before = before + 1, reader.line_num
            last, written = before, lines.row
            lines.row = []
            values = [" ".join(clean(value).split()) for value in row]
            if not any(values):
                continue
            check_width(values)
            first += next((at for at, line in enumerate(written[:-1]) if line.strip()), last - first)
            if header is None and is_header(values):
                header = values
                yield Block(" | ".join(values), first, last, kind="columns", lines=(first,))
                continue
            text = [named(header, column, value) for column, value in enumerate(values) if value]
            yield Block("\n".join(text), first, last, kind="row", lines=(first,) * len(text))
    except csv.Error as error:
        raise InputError(f"line {reader.line_num}: not a table of values ({error})") from error
