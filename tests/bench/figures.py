"""The named figures of a benchmark's run, with their unit, as they are stored and shown."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from edge.config import format_size

_DIGITS = 6


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured figure, with the values of its repeated rounds. `row` is the system or case, `column` the measure,
    `table` the caption, empty if the run has only one."""

    row: str
    column: str
    unit: str
    rounds: tuple[float, ...]
    table: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        return self.table, self.row, self.column

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"rounds": [float(f"{value:.{_DIGITS}g}") for value in self.rounds]}

    @classmethod
    def from_json(cls, value: Any) -> Figure:
        return cls(**value | {"rounds": tuple(map(float, value["rounds"]))})


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table of figures. `scale` is the factor from the measured value to the unit, such as 1e-3 for
    milliseconds."""

    name: str
    unit: str = ""
    scale: float = 1.0


def tabulate(rows: Mapping[str, Mapping[str, Any]], columns: Mapping[str, Column], table: str = "") -> Iterator[Figure]:
    """The figures of a table of measured values, by row and key. A list holds the values of repeated rounds; a missing
    value or None gives no figure. A dot in a key leads into a nested mapping."""
    if len({column.name for column in columns.values()}) < len(columns):
        raise ValueError("two columns have one name")
    for row, values in rows.items():
        for path, column in columns.items():
            value: Any = values
            for key in path.split("."):
                value = value.get(key) if isinstance(value, Mapping) else None
            found = value if isinstance(value, Sequence) else [] if value is None else [value]
            if found:
                rounds = tuple(float(one) * column.scale for one in found)
                yield Figure(row, column.name, column.unit, rounds, table)


def shown_in(figures: Sequence[Figure]) -> tuple[str, Callable[[float], str]]:
    """How the values of one column are written: a suffix for its heading, and the text of a value. All values of a
    column of times are in the same unit."""
    unit = figures[0].unit
    if unit == "s":
        largest = max(figure.median for figure in figures)
        factor, name = (1.0, "s") if largest >= 1 else (1e3, "ms") if largest >= 1e-3 else (1e6, "µs")
        return f", {name}", lambda value: _number(value * factor)
    if unit == "/s":
        return " a second", _number
    if unit == "B":
        return "", lambda value: format_size(round(value))
    if unit == "%":
        return "", lambda value: f"{value:.1%}".replace("%", " %")
    return "", lambda value: f"{value:.3f}" if abs(value) < 10 and value % 1 else f"{value:,.0f}"


def tables(figures: Iterable[Figure]) -> Iterator[tuple[str, list[list[str]]]]:
    """The figures as tables of texts, each with its caption: the heads of the columns, then the rows, in the order in
    which they appear. The head of the first column is empty. Values are the medians of the rounds."""
    captions: dict[str, list[Figure]] = {}
    for figure in figures:
        captions.setdefault(figure.table, []).append(figure)
    for caption, found in captions.items():
        columns: dict[str, list[Figure]] = {}
        for figure in found:
            columns.setdefault(figure.column, []).append(figure)
        styles = {name: shown_in(same) for name, same in columns.items()}
        cells = {(figure.row, figure.column): styles[figure.column][1](figure.median) for figure in found}
        head = ["", *(f"{name}{suffix}" for name, (suffix, _) in styles.items())]
        rows = dict.fromkeys(figure.row for figure in found)
        yield caption, [head, *([row, *(cells.get((row, name), "") for name in columns)] for row in rows)]


def aligned(figures: Iterable[Figure]) -> str:
    """The figures as tables for a terminal, with an empty line between two tables."""
    texts = []
    for caption, rows in tables(figures):
        rows = [[caption, *rows[0][1:]], *rows[1:]]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        texts += ["\n".join(
            "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows
        )]  # fmt: skip
    return "\n\n".join(texts)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
