"""CSV and TSV: each row becomes lines `column: value`, so that a chunk names the meaning of its numbers."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from itertools import islice

from edge.apps.documents.base import Block, Document
from edge.apps.documents.decoding import clean
from edge.apps.documents.opened import OpenedFile
from edge.apps.documents.rows import check_width, is_header, named
from edge.errors import InputError

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
                yield Block(" | ".join(values), first, last, kind="heading", lines=(first,))
                continue
            text = [named(header, column, value) for column, value in enumerate(values) if value]
            yield Block("\n".join(text), first, last, kind="lines", lines=(first,) * len(text))
    except csv.Error as error:
        raise InputError(f"line {reader.line_num}: not a table of values ({error})") from error
