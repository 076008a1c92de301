"""Look-up in embedding tables that lie in independent banks, with joined tables (MicroRec)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from amaranth.hdl import Array, Const, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from edge.devices.fpga.queues import flow

INDEX = 32
"""Bits of the number of a row."""


@dataclass(frozen=True, slots=True)
class BankTable:
    """A table in a bank: one or a product of several (`EmbeddingTable.product`).

    Attributes:
        features: numbers of the features whose indices choose the row, the slowest first.
        rows: rows of each feature's own table.
        base: the word of the bank where the table begins. A row is one word.
    """

    features: tuple[int, ...]
    rows: tuple[int, ...]
    base: int = 0


class BankedLookup(wiring.Component):
    """Fetches a row of every table for each item. Banks work side by side, the tables of a bank one after the other.

    An item has an index for each feature. The rows of an item leave together, those of the first bank first. A bank
    asks for the rows of the next item while others are still busy, but no item overtakes another.
    """

    def __init__(self, banks: Sequence[Sequence[BankTable]], width: int) -> None:
        """
        Args:
            width: bits of a word, which holds a row of the widest table.
        """
        self.banks, self.width = [list(bank) for bank in banks], width
        self.features = 1 + max(f for bank in banks for table in bank for f in table.features)
        self.tables = sum(map(len, self.banks))
        super().__init__({
            "items": In(flow(indices=INDEX * self.features)),
            "fetch": Out(flow(address=32, count=32)).array(len(self.banks)),
            "words": In(flow(data=width)).array(len(self.banks)),
            "rows": Out(flow(data=width * self.tables)),
        })  # fmt: skip

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        asked_all, got_all = Const(1, 1), Const(1, 1)
        first = 0
        moving, giving = Signal(), Signal()
        for number, tables in enumerate(self.banks):
            fetch, words = self.fetch[number], self.words[number]
            asked, got = Signal(range(len(tables) + 1)), Signal(range(len(tables) + 1))
            rows = [Signal(self.width, name=f"row{number}_{i}") for i in range(len(tables))]
            m.d.comb += [
                fetch.valid.eq(self.items.valid & (asked != len(tables))), fetch.p.count.eq(1),
                fetch.p.address.eq(Array([self._address(table) for table in tables])[asked]),
                words.ready.eq(got != len(tables)),
            ]  # fmt: skip
            with m.If(fetch.valid & fetch.ready):
                m.d.sync += asked.eq(asked + 1)
            with m.If(words.valid & words.ready):
                m.d.sync += got.eq(got + 1)
                for i, row in enumerate(rows):
                    with m.If(got == i):
                        m.d.sync += row.eq(words.p.data)
            with m.If(moving):
                m.d.sync += asked.eq(0)
            with m.If(giving):
                m.d.sync += got.eq(0)
            asked_all = asked_all & (asked == len(tables))
            got_all = got_all & (got == len(tables))
            for i, row in enumerate(rows):
                m.d.comb += self.rows.p.data.word_select(first + i, self.width).eq(row)
            first += len(tables)
        m.d.comb += [
            moving.eq(self.items.valid & asked_all), self.items.ready.eq(asked_all),
            self.rows.valid.eq(got_all), giving.eq(self.rows.valid & self.rows.ready),
        ]  # fmt: skip
        return m

    def _address(self, table: BankTable) -> Any:
        """The word of the row that the item chooses."""
        index: Any = Const(0, 1)
        for feature, rows in zip(table.features, table.rows, strict=True):
            index = index * rows + self.items.p.indices.word_select(feature, INDEX)
        return (index + table.base)[:32]
