"""The accelerator behind pins: a Wishbone bus of the host, and one to the memory of codes."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from edge.devices.fpga.accelerator import Accelerator
from edge.devices.fpga.shape import BUS, Shape
from edge.devices.fpga.simulation import streams

HOST = 32
"""Bits of the host's bus."""

_FLYING = 32
"""Words of the memory's bus that are asked for and not used yet, at most."""


_ROWS = 4
"""Rows of words that wait for the core, so that its `ready` ends here."""


class Board(wiring.Component):
    """A design whose ports are pins. All of them have registers, except for the memory's `stall`.

    Host (classic): words written to address 0 are shifted into a register, and a write to address 1 + n gives it to
    stream n of `inputs`. Word n of the next result is read at address n; the last one's top bit says whether there is
    a result, and reading it takes the result. Memory (pipelined): a row of words begins at a multiple of `beats`."""

    def __init__(self, shape: Shape) -> None:
        self.core = Accelerator(shape)
        ins, outs = streams(self.core)
        self.inputs = [name for name in ins if name != "words"]
        self.wide = HOST * -(-max(ins[name] for name in self.inputs) // HOST)
        self.beats = -(-shape.word // BUS)
        self.result_words = -(-(outs["results"] + 1) // HOST)
        super().__init__({
            "adr": In(4), "dat_w": In(HOST), "dat_r": Out(HOST), "we": In(1), "stb": In(1), "ack": Out(1),
            "mem_adr": Out(32), "mem_dat_r": In(BUS), "mem_stb": Out(1), "mem_stall": In(1), "mem_ack": In(1),
        })  # fmt: skip

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.core = self.core
        self._host(m)
        self._memory(m)
        return m

    def _host(self, m: Module) -> None:
        address, data, write, busy = Signal(4), Signal(HOST), Signal(), Signal()
        held, done, results = Signal(self.wide), Signal(), self.core.results
        payload = results.payload.as_value()
        answer = Cat(payload, Const(0, HOST * self.result_words - len(payload) - 1), results.valid)
        m.d.sync += [self.ack.eq(done), busy.eq(self.stb & ~busy & ~self.ack | busy & ~done)]
        with m.If(~busy):
            m.d.sync += [address.eq(self.adr), data.eq(self.dat_w), write.eq(self.we)]
        with m.Elif(~write):
            m.d.comb += [done.eq(1), results.ready.eq(address == self.result_words - 1)]
            m.d.sync += self.dat_r.eq(answer.word_select(address, HOST))
        with m.Elif(address == 0):
            m.d.comb += done.eq(1)
            m.d.sync += held.eq(Cat(held, data)[HOST:])
        for number, name in enumerate(self.inputs, 1):
            own, full = getattr(self.core, name), Signal(name=f"{name}_full")
            value = own.payload.as_value()
            kept = Signal.like(value, name=f"{name}_kept")
            m.d.comb += [own.valid.eq(full), value.eq(kept)]
            with m.If(own.ready):
                m.d.sync += full.eq(0)
            with m.If(busy & write & (address == number) & (~full | own.ready)):
                m.d.comb += done.eq(1)
                m.d.sync += [full.eq(1), kept.eq(held[self.wide - HOST * -(-len(value) // HOST) :])]

    def _memory(self, m: Module) -> None:
        fetch, words = self.core.fetch, self.core.words
        m.submodules.arrived = arrived = SyncFIFOBuffered(width=BUS, depth=_FLYING)
        first, count, asked = Signal(32), Signal(32), Signal()
        m.submodules.rows = rows = SyncFIFOBuffered(width=BUS * self.beats, depth=_ROWS)
        row, got = Signal(BUS * (self.beats - 1)), Signal(range(max(2, self.beats)))
        following, left, flying = Signal(32), Signal(32), Signal(range(_FLYING + 1))
        asking, used = Signal(), Signal()
        m.d.comb += fetch.ready.eq(~asked & (left == 0))
        m.d.sync += [asked.eq(fetch.valid & fetch.ready), first.eq(fetch.p.address), count.eq(fetch.p.count)]
        with m.If(asked):
            m.d.sync += [following.eq(first * self.beats), left.eq(count * self.beats)]
        free = ~self.mem_stb | ~self.mem_stall
        m.d.comb += asking.eq(free & (left != 0) & (flying != _FLYING))
        with m.If(free):
            m.d.sync += [self.mem_stb.eq(asking), self.mem_adr.eq(following)]
        with m.If(asking):
            m.d.sync += [following.eq(following + 1), left.eq(left - 1)]
        m.d.sync += [
            flying.eq(flying + asking - used), arrived.w_en.eq(self.mem_ack), arrived.w_data.eq(self.mem_dat_r),
        ]  # fmt: skip
        m.d.comb += [
            used.eq(arrived.r_rdy & rows.w_rdy), arrived.r_en.eq(used), rows.w_data.eq(Cat(row, arrived.r_data)),
            rows.w_en.eq(used & (got == self.beats - 1)), words.valid.eq(rows.r_rdy), rows.r_en.eq(words.ready),
            words.payload.as_value().eq(rows.r_data),
        ]  # fmt: skip
        with m.If(used):
            m.d.sync += [row.eq(Cat(row, arrived.r_data)[BUS:]), got.eq(Mux(rows.w_en, 0, got + 1))]
