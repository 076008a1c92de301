"""Rows that prove themselves by a checksum, and the memory of values that are read and of JSON once it is parsed."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, TypeVar

import apsw
import numpy as np
import numpy.typing as npt

from edge.apps.store.failures import WrongValue
from edge.budget import MemoryBudget
from edge.errors import BudgetExceeded
from edge.ivf.base import Connection

Key = TypeVar("Key")
Held = TypeVar("Held")
Value = str | bytes | int | float | None
Row = tuple[Any, ...]

ROW_SUM = "edge_row_sum"


_NOTHING = b"NoneType 0;"


def row_sum(table: str, *values: Value) -> bytes:
    """The checksum of a row of `table`, 8 bytes. A whole number counts as the same value in a column of floats."""
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
    db.create_scalar_function(ROW_SUM, row_sum, -1, deterministic=True)


def whole(value: object) -> int:
    try:
        return int(str(value))
    except ValueError:
        raise WrongValue("a setting that should be a whole number is none") from None


class Leasing(apsw.Connection):
    """A connection whose rows are held within a budget."""

    budget: MemoryBudget


ALWAYS_READ = 1 << 20

_PER_ROW = 256

_REST = 4 << 20  # Memory of what is then done with rows, for the limit that a refusal names.

PER_JSON = 32
"""Memory of a character of JSON: three make an empty list of 56 bytes in another list."""


class HeldList(list[Held]):
    """What was made of rows. Their lease ends with the list."""

    rows: object = None


class HeldDict(dict[Key, Held]):
    rows: object = None


def held(
    db: Connection, rows: Iterable[Row], make: Callable[[Row], Held], more: Callable[[Row], int] = lambda _: 0
) -> HeldList[Held]:
    """What `make` makes of rows that are held beside each other. Anybody may have written the file, and many values
    could together exceed the limit: `BudgetExceeded` then names one that is enough."""
    if not isinstance(db, Leasing):
        raise TypeError("rows are held within the budget of a pooled connection")
    nbytes = -ALWAYS_READ
    found: HeldList[Held] = HeldList()
    lease = db.budget.reserve("rows that are read", 0)
    weakref.finalize(found, lease.release)
    refusal: BudgetExceeded | None = None
    for row in rows:
        nbytes += _PER_ROW + more(row) + sum(sys.getsizeof(value) for value in row if isinstance(value, str | bytes))
        if nbytes > lease.nbytes and refusal is None:
            try:
                lease.resize(nbytes)
            except BudgetExceeded as error:
                refusal = error.with_traceback(None)  # the other rows are counted, and not held
        if refusal is None:
            found.append(make(row))
    if refusal is not None:
        lease.resize(nbytes + _REST)  # names the limit for all rows
        raise refusal
    return found


def held_by_key(
    db: Connection, rows: Iterable[Row], make: Callable[[Row], tuple[Key, Held]] = tuple
) -> HeldDict[Key, Held]:
    pairs = held(db, rows, make)
    found = HeldDict(pairs)
    found.rows = pairs
    return found


@dataclass(frozen=True, slots=True)
class Table:
    """A table whose rows prove themselves; the integer key is its first column."""

    name: str
    columns: tuple[str, ...]
    proves: Callable[[Row], bool]


_ASCII, _WIDE, _PER_MARK = 8, 24, 260
"""Memory of a text parsed by pydantic or Python's `json`, with one more copy that a tool may make: per byte of ASCII
text, per byte if wider characters make Python's strings wide, and per mark of its structure."""

_TYPED_ASCII, _TYPED_WIDE, _TYPED_MARK = 2, 8, 180
"""Likewise for msgspec. Measured without the copy: 1 and 4 bytes per byte, and 83 per mark for objects of one field."""

_QUOTE = ord('"')
_MARKS: npt.NDArray[np.bool_] = np.isin(np.arange(256), list(b"[{,:"))


class JsonSize:
    """Counts the marks of a JSON text (outside strings, those that begin or separate values) without keeping it; `wide`
    if a character is not ASCII."""

    def __init__(self) -> None:
        self.length = 0
        self.structure = 0
        self.wide = False
        self._in_string = 0
        self._rest = b""

    def feed(self, data: bytes) -> None:
        self.length += len(data)
        # An escaped quote ends no string. Blanks take the places of such pairs; half a pair waits for the next piece.
        plain = (self._rest + data).replace(b"\\\\", b"  ").replace(b'\\"', b"  ")
        self.wide = self.wide or not data.isascii() or b"\\u" in plain
        self._rest = b"\\" if plain.endswith(b"\\") else b""
        octets = np.frombuffer(plain, np.uint8, len(plain) - len(self._rest))
        if octets.size:
            inside = (np.cumsum(octets == _QUOTE, dtype=np.int32) + self._in_string) & 1
            self.structure += int(np.count_nonzero(_MARKS[octets] & (inside == 0)))
            self._in_string = int(inside[-1])

    def nbytes(self, *, typed: bool = False) -> int:
        """The most memory that the text so far takes while it is parsed or written."""
        if typed:
            return self.length * (_TYPED_WIDE if self.wide else _TYPED_ASCII) + self.structure * _TYPED_MARK
        return self.length * (_WIDE if self.wide else _ASCII) + self.structure * _PER_MARK
