"""`banks`: embedding tables placed over independent memory banks, for fast look-ups in all of them (MicroRec; Jiang's
thesis, section 8.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from bench.figures import Column, tabulate
from bench.options import Output, benchmark
from edge.config import parse_size
from edge.errors import InputError


@dataclass(frozen=True, slots=True)
class EmbeddingTable:
    """A table of vectors with components of 32 bits, made from the tables `parts`: a product of two has a row for each
    pair of their rows, so that one access replaces two."""

    rows: int
    dim: int
    parts: tuple[str, ...] = ()

    @property
    def nbytes(self) -> int:
        return 4 * self.rows * self.dim

    def product(self, other: EmbeddingTable) -> EmbeddingTable:
        """Both tables in one. Row `i * other.rows + j` holds rows i and j side by side."""
        return EmbeddingTable(self.rows * other.rows, self.dim + other.dim, self.parts + other.parts)


@dataclass(frozen=True, slots=True)
class Banks:
    """The memory for tables.

    Attributes:
        count: number of banks that are read in parallel, with `nbytes` each.
        near: bytes of memory on the chip. An access to it takes `near_share` of the time of an access to a bank.
        fixed, each: seconds of an access, and additional seconds per dimension. Calibrated: they fit a row of table
            8.5.
    """

    count: int = 34
    nbytes: int = 256 << 20
    near: int = 8 << 20
    near_share: float = 1 / 3
    fixed: float = 318e-9
    each: float = 5.21e-9

    def seconds(self, dim: int) -> float:
        return self.fixed + self.each * dim


@dataclass(frozen=True, slots=True)
class BankPlacement:
    """The tables on the chip and in each bank, and the seconds of a look-up in all of them."""

    near: tuple[EmbeddingTable, ...]
    banks: tuple[tuple[EmbeddingTable, ...], ...]
    seconds: float

    @property
    def rounds(self) -> int:
        """Number of accesses to the bank with most tables."""
        return max(map(len, self.banks), default=0)

    @property
    def nbytes(self) -> int:
        return sum(table.nbytes for bank in (self.near, *self.banks) for table in bank)


def spread(tables: Sequence[EmbeddingTable], banks: Banks) -> BankPlacement | None:
    """Places the smallest tables on the chip, and the others over the banks; None if they do not fit.

    The chip gets tables as long as reading them takes no longer than reading the banks. The other tables go over the
    banks, the largest first, each to the bank with the fewest tables (rule 4 of algorithm 3).
    """
    ordered = sorted(tables, key=lambda table: table.nbytes)
    largest_first = sorted(range(len(ordered)), key=lambda index: -ordered[index].nbytes)
    best: BankPlacement | None = None
    for count in range(len(ordered) + 1):
        near = ordered[:count]
        if sum(table.nbytes for table in near) > banks.near:
            break
        lying = _over_banks([ordered[index] for index in largest_first if index >= count], banks)
        if lying is None:
            continue
        near_seconds = sum(banks.near_share * banks.seconds(table.dim) for table in near)
        far = max(sum(banks.seconds(table.dim) for table in bank) for bank in lying)
        if count and near_seconds > far and best is not None:
            break
        placement = BankPlacement(tuple(near), lying, max(near_seconds, far))
        if best is None or placement.seconds < best.seconds:
            best = placement
    return best


def _over_banks(tables: Sequence[EmbeddingTable], banks: Banks) -> tuple[tuple[EmbeddingTable, ...], ...] | None:
    lying: list[list[EmbeddingTable]] = [[] for _ in range(banks.count)]
    held, busy = [0] * banks.count, [0.0] * banks.count
    for table in tables:
        room = [bank for bank in range(banks.count) if held[bank] + table.nbytes <= banks.nbytes]
        if not room:
            return None
        bank = min(room, key=lambda bank: (len(lying[bank]), busy[bank]))
        lying[bank].append(table)
        held[bank] += table.nbytes
        busy[bank] += banks.seconds(table.dim)
    return tuple(map(tuple, lying))


def placed(tables: Sequence[EmbeddingTable], banks: Banks, *, combine: bool = True) -> BankPlacement:
    """The placement with the fastest look-up; among equal ones, the one with the least storage (algorithm 3).

    For each count, that many of the smallest tables are joined in pairs, the smallest with the largest of them.
    """
    ordered = sorted(tables, key=lambda table: table.nbytes)
    best: BankPlacement | None = None
    for count in reversed(range(0, len(ordered) + 1 if combine else 1, 2)):
        chosen, rest = ordered[:count], ordered[count:]
        pairs = [chosen[i].product(chosen[count - 1 - i]) for i in range(count // 2)]
        found = spread([*pairs, *rest], banks)
        if found is not None and (best is None or (found.seconds, found.nbytes) <= (best.seconds, best.nbytes)):
            best = found
    if best is None or not tables:
        raise InputError(f"{len(tables)} tables do not fit {banks.count} banks of {banks.nbytes:,} bytes each")
    return best


@benchmark
def banks(
    *,
    tables: Annotated[int, "Made-up tables, of 100 to 1,000,000 rows."] = 39,
    count: Annotated[int, "Banks of memory that are read side by side."] = 34,
    near: Annotated[str, "Memory on the chip."] = "8MiB",
    output: Output,
) -> None:
    """Place embedding tables over banks of memory, each by itself and the small ones joined in pairs (MicroRec).

    Times come from a model of a bank that fits a published row: they are calibrated, not measured.
    """
    random = np.random.default_rng(0)
    rows, dims = 10 ** random.uniform(2, 6, tables), random.choice((4, 8, 16), tables)
    given = [EmbeddingTable(int(n), int(dim), (str(i),)) for i, (n, dim) in enumerate(zip(rows, dims, strict=True))]
    memory = Banks(count=count, near=parse_size(near))
    report = {
        name: {"rounds": found.rounds, "seconds": found.seconds, "nbytes": found.nbytes, "near": len(found.near)}
        for name, found in (
            ("each by itself", placed(given, memory, combine=False)), ("joined in pairs", placed(given, memory)),
        )
    }  # fmt: skip
    columns = {
        "rounds": Column("rounds", ""), "seconds": Column("look-up", "s"), "nbytes": Column("memory", "B"),
        "near": Column("tables on the chip"),
    }  # fmt: skip
    output.put(report, tabulate(report, columns, "placements"), f"{tables} tables, {count} banks; calibrated times")
