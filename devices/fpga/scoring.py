"""Units that score coded rows: by look-up tables (PQ), and by weighted sums of bytes (SQ8, distances to centroids)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from edge.devices.fpga.queues import flow, key_signal
from edge.devices.fpga.shape import CODES, ENTRY, KeyForm, levels


def added(m: Module, values: Sequence[Value], advance: Value) -> Value:
    """The sum of signed values by a tree with a register at each level."""
    row = list(values)
    while len(row) > 1:
        sums: list[Value] = []
        for i in range(0, len(row), 2):
            total = row[i] + row[i + 1] if i + 1 < len(row) else row[i]
            register = Signal(signed(len(total)))
            with m.If(advance):
                m.d.sync += register.eq(total)
            sums.append(register)
        row = sums
    return row[0]


def delayed(m: Module, value: Value, cycles: int, advance: Value) -> Value:
    """The value of some cycles before."""
    for _ in range(cycles):
        register = Signal.like(value)
        with m.If(advance):
            m.d.sync += register.eq(value)
        value = register
    return value


class PqScorer(wiring.Component):
    """Scores a code of `parts` bytes in every cycle: each byte selects an entry of its table, and a tree adds them.
    Tables are double, so that one half is filled, over the ports `load`, while the other is read. Rows whose key is
    above their half's `ceilings` count as no row."""

    def __init__(self, parts: int, keys: KeyForm, loads: int = 1) -> None:
        self.parts, self.keys, self.loads = parts, keys, loads
        super().__init__({
            "load": In(flow(half=1, part=range(max(2, parts // loads)), code=8, value=signed(ENTRY))).array(loads),
            "ceilings": In(keys.width).array(2),
            "codes": In(flow(code=8 * parts, row=keys.row, half=1, last=1)),
            "scores": Out(flow(key=keys.width, last=1)),
        })  # fmt: skip

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        advance = Signal()
        m.d.comb += [advance.eq(~self.scores.valid | self.scores.ready), self.codes.ready.eq(advance)]
        entries = []
        share = self.parts // self.loads
        for part in range(self.parts):
            m.submodules[f"table{part}"] = table = Memory(shape=signed(ENTRY), depth=2 * CODES, init=[])
            load, write, read = self.load[part // share], table.write_port(), table.read_port()
            m.d.comb += [
                write.addr.eq(Cat(load.p.code, load.p.half)), write.data.eq(load.p.value),
                write.en.eq(load.valid & (load.p.part == part % share)),
                read.addr.eq(Cat(self.codes.p.code.word_select(part, 8), self.codes.p.half)), read.en.eq(advance),
            ]  # fmt: skip
            entries.append(delayed(m, read.data, 1, advance))
        m.d.comb += [load.ready.eq(1) for load in self.load]
        _give(m, self, added(m, entries, advance), levels(self.parts) + 2, advance, self.codes.valid)
        return m


class WeightedScorer(wiring.Component):
    """Scores rows of `beats` times `lanes` bytes, one beat a cycle: the sum of each byte times its weight. Weights are
    double, as the tables of `PqScorer`."""

    def __init__(self, lanes: int, beats: int, keys: KeyForm) -> None:
        self.lanes, self.beats, self.keys = lanes, beats, keys
        self.total = ENTRY + 9 + levels(lanes * beats)
        super().__init__({
            "load": In(flow(half=1, beat=range(max(2, beats)), weights=ENTRY * lanes)).array(1),
            "ceilings": In(keys.width).array(2),
            "codes": In(flow(code=8 * lanes, row=keys.row, half=1, last=1)),
            "scores": Out(flow(key=keys.width, last=1)),
        })  # fmt: skip

    @property
    def shift(self) -> int:
        """Bits of a sum that the score leaves out."""
        return max(0, self.total - self.keys.score)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        advance, beat = Signal(), Signal(range(max(2, self.beats)))
        m.d.comb += [advance.eq(~self.scores.valid | self.scores.ready), self.codes.ready.eq(advance)]
        ended = Signal()
        m.d.comb += ended.eq(beat == self.beats - 1)
        with m.If(self.codes.valid & advance):
            m.d.sync += beat.eq(Mux(ended, 0, beat + 1))
        depth = 1 << max(1, (self.beats - 1).bit_length())
        m.submodules.weights = memory = Memory(shape=ENTRY * self.lanes, depth=2 * depth, init=[])
        load, write, read = self.load[0], memory.write_port(), memory.read_port()
        m.d.comb += [
            load.ready.eq(1), write.addr.eq(Cat(load.p.beat, load.p.half)), write.data.eq(load.p.weights),
            write.en.eq(load.valid), read.addr.eq(Cat(beat, self.codes.p.half)), read.en.eq(advance),
        ]  # fmt: skip
        # A block's output is late in its cycle: it is held before it is multiplied.
        codes, weights = delayed(m, self.codes.p.code, 2, advance), delayed(m, read.data, 1, advance)
        products: list[Value] = []
        for lane in range(self.lanes):
            product = Signal(signed(ENTRY + 9))
            with m.If(advance):
                weight = weights.word_select(lane, ENTRY).as_signed()
                m.d.sync += product.eq(weight * Cat(codes.word_select(lane, 8), 0).as_signed())
            products.append(product)
        amount = added(m, products, advance)
        before = levels(self.lanes) + 3
        total, starts = Signal(signed(self.total)), delayed(m, beat == 0, before, advance)
        with m.If(advance & delayed(m, self.codes.valid, before, advance)):
            m.d.sync += total.eq(Mux(starts, 0, total) + amount)
        score = total >> self.shift
        score = Cat(score, score[-1].replicate(max(0, self.keys.score - len(score)))).as_signed()
        _give(m, self, score, before + 1, advance, self.codes.valid & ended)
        return m


def _give(m: Module, unit: Any, score: Value, cycles: int, advance: Value, valid: Value) -> None:
    """Makes keys of scores, `cycles` after their rows came."""
    keys, codes = unit.keys, unit.codes
    row, half, last = (delayed(m, v, cycles, advance) for v in (codes.p.row, codes.p.half, codes.p.last))
    wide = Signal(signed(keys.score))
    key = Signal(keys.width)
    m.d.comb += [wide.eq(score), key.eq(key_signal(keys, wide, row))]
    with m.If(advance):
        m.d.sync += [
            unit.scores.valid.eq(delayed(m, valid, cycles, advance)),
            unit.scores.p.key.eq(Mux(key > Mux(half, unit.ceilings[1], unit.ceilings[0]), 0, key)),
            unit.scores.p.last.eq(last),
        ]  # fmt: skip
