"""Groups of bitonic sorters that select the best of many streams (the second selector of FANNS)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from edge.devices.fpga.units import TruncatedQueues, delayed, flow

GROUP = 16
"""Inputs of a sorter."""

SORTED = int(math.log2(GROUP) * (1 + math.log2(GROUP)) / 2)
MERGED = 1 + int(math.log2(GROUP))
"""Cycles of a sorter, and of a merger of two sorted groups that keeps the better half."""


def _stage(m: Module, keys: Sequence[Value], distance: int, block: int, advance: Value) -> list[Value]:
    """Exchanges keys that are `distance` apart. Blocks are sorted alternately downwards and upwards."""
    following = [Signal.like(key) for key in keys]
    for i in range(len(keys)):
        other = i ^ distance
        if i < other:
            swap = keys[i] < keys[other] if i & block == 0 else keys[i] > keys[other]
            with m.If(advance):
                m.d.sync += following[i].eq(Mux(swap, keys[other], keys[i]))
                m.d.sync += following[other].eq(Mux(swap, keys[i], keys[other]))
    return list(following)


def descending(m: Module, keys: Sequence[Value], advance: Value) -> list[Value]:
    """The keys, the largest first, `SORTED` cycles later."""
    row, block = list(keys), 2
    while block <= len(row):
        distance = block // 2
        while distance:
            row = _stage(m, row, distance, block, advance)
            distance //= 2
        block *= 2
    return row


def merged(m: Module, first: Sequence[Value], second: Sequence[Value], advance: Value) -> list[Value]:
    """The larger half of two descending rows, descending, `MERGED` cycles later."""
    row: list[Value] = []
    for a, b in zip(first, reversed(second), strict=True):
        larger = Signal.like(a)
        with m.If(advance):
            m.d.sync += larger.eq(Mux(a > b, a, b))
        row.append(larger)
    distance = len(row) // 2
    while distance:
        row = _stage(m, row, distance, 2 * len(row), advance)
        distance //= 2
    return row


class BitonicGroups(wiring.Component):
    """The `kept` largest keys of `inputs` streams that bring a key each in every cycle.

    Groups of 16 are sorted, and mergers keep the better half of two groups. Only the `kept` best of each cycle go to
    queues. This takes less of the chip than a queue for each stream if `kept` is far below `inputs`.
    """

    def __init__(self, inputs: int, kept: int, width: int) -> None:
        """
        Args:
            kept: at most 16, because a merger keeps no more.
        """
        self.inputs, self.kept, self.width = inputs, kept, width
        self.groups = -(-inputs // GROUP)
        super().__init__({"push": In(flow(keys=inputs * width, last=1)), "pull": Out(flow(key=width, last=1))})

    @property
    def latency(self) -> int:
        """Cycles of the sorters and mergers."""
        return SORTED + MERGED * math.ceil(math.log2(self.groups)) if self.groups > 1 else SORTED

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.queues = queues = TruncatedQueues(self.kept, self.kept, self.kept, self.width)
        advance = Signal()
        padded = Cat(self.push.p.keys, Signal((self.groups * GROUP - self.inputs) * self.width))
        keys = [padded.word_select(i, self.width) for i in range(self.groups * GROUP)]
        rows = [descending(m, keys[i : i + GROUP], advance) for i in range(0, len(keys), GROUP)]
        while len(rows) > 1:
            pairs = [merged(m, rows[i], rows[i + 1], advance) for i in range(0, len(rows) - 1, 2)]
            if len(rows) % 2:
                pairs.append([delayed(m, key, MERGED, advance) for key in rows[-1]])
            rows = pairs
        valid = delayed(m, self.push.valid, self.latency, advance)
        last = delayed(m, self.push.p.last, self.latency, advance)
        ready: Value = queues.push[0].ready
        for queue in queues.push[1:]:
            ready = ready & queue.ready
        m.d.comb += [advance.eq(~valid | ready), self.push.ready.eq(advance)]
        for queue, key in zip(queues.push, rows[0], strict=False):
            m.d.comb += [queue.valid.eq(valid & ready), queue.p.key.eq(key), queue.p.last.eq(last)]
        wiring.connect(m, queues.pull, wiring.flipped(self.pull))
        return m
