"""Rows that prove themselves: each carries a checksum of its values, so a flipped bit in any of them is noticed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from edge.apps.store.failures import WrongValue
from edge.ivf.base import Connection

Value = str | bytes | int | float | None
Row = tuple[Any, ...]

ROW_SUM = "edge_row_sum"
"""Name of `row_sum` in SQL."""


_NOTHING = b"NoneType 0;"


def row_sum(table: str, *values: Value) -> bytes:
    """The checksum of a row of `table`, 8 bytes. It is stored in the row's column `checksum`.

    A whole number counts as the same value in a column of floats, which returns 1 as 1.0.
    """
    digest = blake2b(table.encode(), digest_size=8)
    for value in values:
        if value is None:
            digest.update(_NOTHING)
            continue
        if isinstance(value, bool) or (isinstance(value, float) and value.is_integer()):
            value = int(value)
        data = value if isinstance(value, bytes) else str(value).encode(errors="replace")
        digest.update(b"%s %d;" % (type(value).__name__.encode(), len(data)))
        digest.update(data)
    return digest.digest()


def register(db: Connection) -> None:
    """Makes `row_sum` available in the SQL of a connection, under the name `ROW_SUM`."""
    db.create_scalar_function(ROW_SUM, row_sum, -1, deterministic=True)


def whole(value: object) -> int:
    """The number in a setting.

    Raises:
        WrongValue: it holds none.
    """
    try:
        return int(str(value))
    except ValueError:
        raise WrongValue("a setting that should be a whole number is none") from None


@dataclass(frozen=True, slots=True)
class Table:
    """A table whose rows prove themselves.

    Attributes:
        columns: its columns, the integer key first.
        proves: whether a row of these columns is what was stored.
    """

    name: str
    columns: tuple[str, ...]
    proves: Callable[[Row], bool]
