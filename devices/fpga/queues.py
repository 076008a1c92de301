"""Queues of the best rows: a systolic priority queue, and truncated queues that lead to one (Chameleon)."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.data import StructLayout
from amaranth.lib.wiring import In, Out

from edge.devices.fpga.shape import KeyForm


def flow(**fields: Any) -> Any:
    """A stream with ready and valid whose payload has these fields; the first is in the lowest bits."""
    return stream.Signature(StructLayout(fields))


def key_signal(keys: KeyForm, score: Value, row: Value) -> Value:
    """The key of a row as a value of the design."""
    raised = Cat(score[: keys.score - 1], ~score[keys.score - 1])
    return Mux(row == keys.no_row, 0, Cat(~row, raised))


class SystolicQueue(wiring.Component):
    """Keeps the `length` largest of the keys pushed. It takes one in every cycle.

    Each cell keeps the larger of its key and the one that arrives, and passes the other to the next cell, so that wires
    lead to neighbours only. After the key that is `last` the queue settles for `length` cycles. Then it gives its keys
    back, the largest first, one a cycle; `dropped`, the largest key that fell out, is valid with the last one. An empty
    queue gives the key 0, and a pushed key 0 is no row.
    """

    def __init__(self, length: int, width: int) -> None:
        self.length, self.width = length, width
        keys = flow(key=width, last=1)
        super().__init__({"push": In(keys), "pull": Out(keys), "dropped": Out(width)})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        held = [Signal(self.width, name=f"held{i}") for i in range(self.length)]
        arriving: Any = Signal(self.width)
        filling, left = Signal(init=1), Signal(range(self.length + 1))
        draining = Signal()
        m.d.comb += self.push.ready.eq(filling)
        with m.If(self.push.ready & self.push.valid):
            m.d.comb += arriving.eq(self.push.p.key)
            with m.If(self.push.p.last):
                m.d.sync += [filling.eq(0), left.eq(self.length)]
        with m.If(~filling & ~draining):
            m.d.sync += [left.eq(left - 1), draining.eq(left == 1)]
        with m.If(~draining):
            for number, own in enumerate(held):
                larger = Signal(name=f"larger{number}")
                m.d.comb += larger.eq(arriving > own)
                passed = Signal(self.width, name=f"passed{number}")
                with m.If(larger):
                    m.d.sync += own.eq(arriving)
                m.d.sync += passed.eq(Mux(larger, own, arriving))
                arriving = passed
            with m.If(arriving > self.dropped):
                m.d.sync += self.dropped.eq(arriving)
        following = held[1] if self.length > 1 else Const(0, self.width)
        m.d.comb += [
            self.pull.valid.eq(draining), self.pull.p.key.eq(held[0]), self.pull.p.last.eq(following == 0),
        ]  # fmt: skip
        with m.If(draining & self.pull.ready):
            for own, after in zip(held, [*held[1:], Const(0, self.width)], strict=True):
                m.d.sync += own.eq(after)
            with m.If(self.pull.p.last):
                m.d.sync += [draining.eq(0), filling.eq(1), self.dropped.eq(0)]
        return m


class TruncatedQueues(wiring.Component):
    """A queue of `kept` keys for each of several streams, and one of `results` keys that they lead to (Chameleon). The
    first queues are emptied one after the other once all have their last key. `dropped` is the largest key that any
    queue dropped: each larger one is among the results."""

    def __init__(self, streams: int, kept: int, results: int, width: int) -> None:
        self.streams, self.kept, self.results, self.width = streams, kept, results, width
        keys = flow(key=width, last=1)
        super().__init__({"push": In(keys).array(streams), "pull": Out(keys), "dropped": Out(width)})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        first = [SystolicQueue(self.kept, self.width) for _ in range(self.streams)]
        m.submodules.second = second = SystolicQueue(self.results, self.width)
        turn, worst = Signal(range(self.streams)), Signal(self.width)
        for number, queue in enumerate(first):
            m.submodules[f"first{number}"] = queue
            wiring.connect(m, wiring.flipped(self.push[number]), queue.push)
            end = number == self.streams - 1
            with m.If(turn == number):
                m.d.comb += [
                    second.push.valid.eq(queue.pull.valid), queue.pull.ready.eq(second.push.ready),
                    second.push.p.key.eq(queue.pull.p.key), second.push.p.last.eq(queue.pull.p.last & end),
                ]  # fmt: skip
                with m.If(queue.pull.valid & queue.pull.ready & queue.pull.p.last):
                    m.d.sync += turn.eq(0 if end else number + 1)
                    with m.If(queue.dropped > worst):
                        m.d.sync += worst.eq(queue.dropped)
        wiring.connect(m, second.pull, wiring.flipped(self.pull))
        m.d.comb += self.dropped.eq(Mux(second.dropped > worst, second.dropped, worst))
        with m.If(second.pull.valid & second.pull.ready & second.pull.p.last):
            m.d.sync += worst.eq(0)
        return m
