"""The parameters of a design, and the numbers that its units and its host share. It needs no library."""

from __future__ import annotations

import math
from dataclasses import dataclass

from edge.errors import RangeError

ENTRY = 16
"""Bits of an entry of a look-up table, and of a weight."""

CODES = 256
"""Values of a byte of a code."""

ADDRESS = 24
"""Bits of the address of a word of codes, and of a row's number."""

SCORE = 24
"""Bits of a score."""


def levels(inputs: int) -> int:
    """Levels of a tree of additions, which are the cycles that it takes."""
    return math.ceil(math.log2(inputs)) if inputs > 1 else 0


def address_bits(count: int) -> int:
    """Bits of the numbers of so many words; at least one."""
    return max(1, (count - 1).bit_length())


@dataclass(frozen=True, slots=True)
class KeyForm:
    """A row with its score (of so many bits, signed), as one number that is larger for a better row.

    The score is in the upper bits, raised so that it is not negative. Below it is the complement of the row's number,
    so that the smaller number wins among equal scores. Zero stands for no row: the number with all bits set is none.
    """

    score: int
    row: int

    @property
    def width(self) -> int:
        """Bits of a key."""
        return self.score + self.row

    def of(self, score: int, row: int) -> int:
        """The key of a row."""
        return (score + (1 << self.score - 1)) << self.row | (~row & self.no_row)

    def parts(self, key: int) -> tuple[int, int]:
        """The score and the row of a key."""
        return (key >> self.row) - (1 << self.score - 1), ~key & self.no_row

    @property
    def no_row(self) -> int:
        """The number that is no row's."""
        return (1 << self.row) - 1


@dataclass(frozen=True, slots=True)
class Shape:
    """The parameters of a design.

    Attributes:
        codec: `pq`, or `bytes` for weighted sums of bytes (SQ8, and vectors that the host rounds to bytes).
        dim: components of a vector.
        parts: bytes of a code of `pq`.
        units: that score codes side by side, a power of two.
        results, kept: places of the last queue, and of the queue of each unit.
        builders: units that build tables, each an equal share of the parts.
        lanes: components that a builder multiplies in a cycle, or bytes that a scoring unit of `bytes` does.
        lists, probed: lists whose centroids are on the chip, and how many of them it scans for a query. 0 where the
            host chooses the lists.
        centroids: units that compute distances to centroids, each `lanes` components in a cycle.
    """

    codec: str
    dim: int
    parts: int
    units: int
    results: int
    kept: int
    builders: int = 1
    lanes: int = 1
    lists: int = 0
    probed: int = 0
    centroids: int = 1

    def __post_init__(self) -> None:
        if self.units < 1 or self.units & (self.units - 1):
            raise RangeError(f"units are a power of two, not {self.units}")
        if min(self.results, self.kept, self.lanes, self.builders) < 1:
            raise RangeError(f"there is at least one result, place, lane and table builder, not {self}")
        step = self.lanes if self.codec == "bytes" else self.lanes * self.parts
        if self.dim % step or (self.codec == "pq" and self.parts % self.builders):
            raise RangeError(f"{self.dim} components cannot be divided as {self} says")

    @property
    def beats(self) -> int:
        """Beats of a query, and of a row of `bytes`."""
        return self.dim // self.lanes

    @property
    def row_words(self) -> int:
        """Words of memory that hold a row of every unit."""
        return 1 if self.codec == "pq" else self.beats

    @property
    def word(self) -> int:
        """Bits of a word of memory: for each unit the bytes of one beat, and a bit that says whether the row counts."""
        return self.units * (8 * (self.parts if self.codec == "pq" else self.lanes) + 1)

    @property
    def keys(self) -> KeyForm:
        """The keys of rows."""
        return KeyForm(SCORE, ADDRESS)
