"""Construction of look-up tables: the inner products of a query's parts with all centroids of product quantization."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from edge.devices.fpga.queues import flow
from edge.devices.fpga.scoring import added, delayed
from edge.devices.fpga.shape import CODES, ENTRY, levels


class TableBuilder(wiring.Component):
    """Multiplies `lanes` components in every cycle. An entry takes `steps` cycles.

    A codebook of 8-bit components is loaded once: word `(part * 256 + code) * steps + step`. A query comes in beats of
    16-bit components, and then the entries are built, the codes of a part one after the other. An entry is the product
    shifted right, so that it always fits 16 bits.
    """

    def __init__(self, parts: int, width: int, lanes: int) -> None:
        """Builds `parts` tables of `width` components each, a multiple of `lanes`."""
        self.parts, self.width, self.lanes = parts, width, lanes
        self.steps = width // lanes
        self.words = parts * CODES * self.steps
        self.shift = 7 + levels(width)
        super().__init__({
            "codebook": In(flow(address=range(self.words), data=8 * lanes)),
            "query": In(flow(data=ENTRY * lanes)),
            "half": In(1),
            "go": In(1),
            "entries": Out(flow(half=1, part=range(max(2, parts)), code=8, value=signed(ENTRY))),
            "built": Out(1),
        })  # fmt: skip

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        advance = Signal()
        m.d.comb += advance.eq(~self.entries.valid | self.entries.ready)
        m.submodules.book = book = Memory(shape=8 * self.lanes, depth=self.words, init=[])
        beats = self.parts * self.steps
        m.submodules.asked = asked = Memory(shape=ENTRY * self.lanes, depth=max(2, beats), init=[])
        filling, taking = book.write_port(), asked.write_port()
        m.d.comb += [
            self.codebook.ready.eq(1), filling.en.eq(self.codebook.valid), filling.addr.eq(self.codebook.p.address),
            filling.data.eq(self.codebook.p.data),
        ]  # fmt: skip
        got, building, half = Signal(range(beats + 1)), Signal(), Signal()
        m.d.comb += [
            self.query.ready.eq((got != beats) & ~building), taking.en.eq(self.query.valid & self.query.ready),
            taking.addr.eq(got), taking.data.eq(self.query.p.data),
        ]  # fmt: skip
        with m.If(taking.en):
            m.d.sync += got.eq(got + 1)
        with m.If((got == beats) & self.go & ~building):
            m.d.sync += [building.eq(1), half.eq(self.half)]
        part, code, step = Signal(range(max(2, self.parts))), Signal(8), Signal(range(max(2, self.steps)))
        word, reading = Signal(range(self.words)), Signal()
        with m.If((got == beats) & self.go & ~building):
            m.d.sync += reading.eq(1)
        components, values = book.read_port(), asked.read_port()
        m.d.comb += [
            components.addr.eq(word), components.en.eq(advance), values.en.eq(advance),
            values.addr.eq(part * self.steps + step),
        ]  # fmt: skip
        last_step, last = Signal(), Signal()
        m.d.comb += [last_step.eq(step == self.steps - 1), last.eq(last_step & (code == CODES - 1))]
        with m.If(advance & reading):
            m.d.sync += [word.eq(word + 1), step.eq(Mux(last_step, 0, step + 1)), code.eq(code + last_step)]
            with m.If(last):
                m.d.sync += part.eq(part + 1)
                with m.If(part == self.parts - 1):
                    m.d.sync += [reading.eq(0), word.eq(0), part.eq(0)]
        # A block's output is late in its cycle: it is held before it is multiplied.
        read = [delayed(m, port.data, 1, advance) for port in (components, values)]
        products: list[Value] = []
        for lane in range(self.lanes):
            product = Signal(signed(ENTRY + 8))
            with m.If(advance):
                m.d.sync += product.eq(
                    read[0].word_select(lane, 8).as_signed() * read[1].word_select(lane, ENTRY).as_signed()
                )
            products.append(product)
        amount = added(m, products, advance)
        before = levels(self.lanes) + 3
        total = Signal(signed(ENTRY + 8 + levels(self.width)))
        starts = delayed(m, step == 0, before, advance)
        with m.If(advance & delayed(m, reading, before, advance)):
            m.d.sync += total.eq(Mux(starts, 0, total) + amount)
        names = delayed(m, Cat(part, code, reading & last_step, last & (part == self.parts - 1)), before + 1, advance)
        bits = len(part)
        m.d.comb += [
            self.entries.p.part.eq(names[:bits]), self.entries.p.code.eq(names[bits : bits + 8]),
            self.entries.p.half.eq(half), self.entries.p.value.eq(total >> self.shift),
            self.entries.valid.eq(names[bits + 8]),
            self.built.eq(self.entries.valid & self.entries.ready & names[bits + 9]),
        ]  # fmt: skip
        with m.If(self.built):
            m.d.sync += [building.eq(0), got.eq(0)]
        return m
