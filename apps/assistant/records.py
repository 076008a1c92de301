"""Finds records: the rows of CSV files, spreadsheets and JSON, whose values stand on lines `name: value`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from edge.apps.assistant.line_kinds import cells

_INDEX = re.compile(r"\[\d+\]\.?")
_FIELD = re.compile(r"([^\s:][^:]*): \S")
_MOST_WORDS = 60
"""A longer record is not one statement. Each of its values stands alone."""


def records(lines: Sequence[str]) -> dict[int, int]:
    """The index of the first line of each record, and the index behind its last line.

    A record has two lines at least. At least half of its names are those of a line `name | name | name` or of other
    records: the rows of a table may lack values.

    >>> records(["name: Lena", "birthday: 3 May", "", "name: Tom", "birthday: 9 June", "", "Note: none", "See: above"])
    {0: 2, 3: 5}
    """
    headers: set[str] = set().union(*(cells(line) for line in lines if "|" in line))
    found: list[tuple[int, int, set[str]]] = []
    for first, end in _paragraphs(lines):
        fields = [_FIELD.match(_INDEX.sub("", line)) for line in lines[first:end]]
        names = {field[1] for field in fields if field}
        if all(fields):
            found.append((first, end, names))
    return {
        first: end
        for number, (first, end, names) in enumerate(found)
        if end - first > 1
        and sum(len(line.split()) for line in lines[first:end]) <= _MOST_WORDS
        and 2 * len(names & headers.union(*(others for _, _, others in found[:number] + found[number + 1 :])))
        >= len(names)
    }


def one_row(lines: Sequence[str]) -> str:
    """A record on one line, without its own index: `[0].name: Kim` is `name: Kim`."""
    return ", ".join(_INDEX.sub("", line, count=1) if _INDEX.match(line) else line for line in lines)


def _paragraphs(lines: Sequence[str]) -> Iterator[tuple[int, int]]:
    """The index of the first line of each paragraph, and the index behind its last line."""
    first = 0
    for number, line in enumerate([*lines, ""]):
        if not line.strip():
            if number > first:
                yield first, number
            first = number + 1
