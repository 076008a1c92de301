"""Tables as blocks: each row becomes lines `column: value`, so that a passage names the meaning of its numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from edge.apps.documents.base import Block
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
                yield Block(" | ".join(values), number, number, page, "heading", path, (number,))
                continue
        text = [named(header, column, value) for column, value in enumerate(values) if value]
        yield Block("\n".join(text), number, number, page, "lines", path, (number,) * len(text))
