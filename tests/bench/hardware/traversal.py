"""A traversal of graphs with several groups of candidates under way (Falcon): a Bloom filter of visited vertices, units
that fetch vectors and compute distances, and the controller with its queue."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from edge.devices.fpga.shape import levels
from edge.devices.fpga.units import added, delayed, flow

FETCH = 64
"""Bytes that a unit fetches in one cycle, as in the thesis."""

VERTEX = 32
"""Bits of a vertex's number in a list of neighbours. All bits set is no vertex."""

COMPONENT = 16
"""Bits of a component of a vector."""

OUTSTANDING = 64
"""Fetches of a unit that are under way at most, as in the thesis."""

MULTIPLIERS = (0x9E3779B1, 0x85EBCA6B)
"""Of the two hashes that double hashing combines."""

WORD = 32


def bloom_places(vertex: int, hashes: int, bits: int) -> list[int]:
    """The bit of each bank that stands for a vertex, in banks of 2^`bits` bits."""
    first = vertex * MULTIPLIERS[0] & 0xFFFFFFFF
    second = (vertex ^ vertex >> 7) * MULTIPLIERS[1] & 0xFFFFFFFF | 1
    return [(first + i * second & 0xFFFFFFFF) >> 32 - bits for i in range(hashes)]


class BloomFilter(wiring.Component):
    """Passes on vertices that it has not seen, and remembers them: one in 2 cycles.

    Each hash has a bank of 2^`bits` bits. `clear` empties them, a word a cycle. Marks that are no vertices pass.
    """

    def __init__(self, bits: int, hashes: int = 3) -> None:
        self.bits, self.hashes = bits, hashes
        items = flow(vertex=VERTEX, mark=1)
        super().__init__({"items": In(items), "fresh": Out(items), "clear": In(1), "busy": Out(1)})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        words = 1 << self.bits - 5
        vertex = self.items.p.vertex
        first, second = Signal(32), Signal(32)
        m.d.comb += [
            first.eq(vertex * MULTIPLIERS[0]), second.eq((vertex ^ vertex >> 7) * MULTIPLIERS[1] | 1),
        ]  # fmt: skip
        looking, sweep, seen = Signal(), Signal(range(words)), Const(1, 1)
        accepted = self.items.valid & self.items.ready
        m.d.sync += looking.eq(accepted)
        with m.If(accepted):
            m.d.sync += [self.fresh.p.eq(self.items.p), self.fresh.valid.eq(0)]
        banks = []
        for i in range(self.hashes):
            m.submodules[f"bank{i}"] = bank = Memory(shape=WORD, depth=words, init=[])
            read, write = bank.read_port(), bank.write_port()
            place = Signal(32)
            m.d.comb += place.eq((first + i * second)[:32])
            own, bit = Signal(range(words)), Signal(5)
            m.d.comb += read.addr.eq(place[32 - self.bits + 5 :])
            with m.If(accepted):
                m.d.sync += [own.eq(read.addr), bit.eq(place[32 - self.bits : 32 - self.bits + 5])]
            seen = seen & read.data.bit_select(bit, 1)
            banks.append((write, own, read.data | (Const(1, WORD) << bit)))
        with m.If(self.busy):
            m.d.sync += [sweep.eq(sweep + 1), self.busy.eq(sweep != words - 1)]
        with m.Elif(self.clear):
            m.d.sync += [self.busy.eq(1), sweep.eq(0)]
        for write, own, data in banks:
            m.d.comb += [
                write.en.eq(self.busy | looking & ~self.fresh.p.mark), write.addr.eq(Mux(self.busy, sweep, own)),
                write.data.eq(Mux(self.busy, 0, data)),
            ]  # fmt: skip
        # The result of a look-up is known one cycle after the item came.
        with m.If(looking & (self.fresh.p.mark | ~seen)):
            m.d.sync += self.fresh.valid.eq(1)
        with m.If(self.fresh.valid & self.fresh.ready):
            m.d.sync += self.fresh.valid.eq(0)
        m.d.comb += self.items.ready.eq(~looking & ~self.busy & (~self.fresh.valid | self.fresh.ready))
        return m


@dataclass(frozen=True, slots=True)
class TraversalShape:
    """The parameters of the engine.

    Attributes:
        groups, candidates: most groups under way, and most candidates of each.
        length: places of the queue.
        results: vertices returned.
        units: units that fetch vectors and compute distances.
        beats: fetches of a vector: 32 components each.
        list_beats: fetches of a list of neighbours: 16 vertices each.
        bits: the logarithm of the bits of each bank of the Bloom filter.
    """

    groups: int
    candidates: int
    length: int
    results: int
    units: int = 4
    beats: int = 1
    list_beats: int = 1
    bits: int = 12

    @property
    def distance(self) -> int:
        """Bits of a distance."""
        return 2 * COMPONENT + 1 + math.ceil(math.log2(self.beats * FETCH * 8 // COMPONENT))

    @property
    def width(self) -> int:
        """Bits of a key: the distance above the vertex."""
        return self.distance + VERTEX


class DistanceUnit(wiring.Component):
    """Fetches vectors and computes their squared distances to the query, a fetch a cycle."""

    def __init__(self, shape: TraversalShape) -> None:
        self.shape = shape
        super().__init__({
            "query": In(flow(beat=range(max(2, shape.beats)), data=8 * FETCH)), "vertices": In(flow(vertex=VERTEX)),
            "fetch": Out(flow(address=32, count=32)), "words": In(flow(data=8 * FETCH)),
            "keys": Out(flow(key=shape.width)),
        })  # fmt: skip

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        shape = self.shape
        advance, beat = Signal(), Signal(range(max(2, shape.beats)))
        m.submodules.fifo = fifo = SyncFIFOBuffered(width=VERTEX, depth=OUTSTANDING)
        m.d.comb += [
            self.fetch.valid.eq(self.vertices.valid & fifo.w_rdy), fifo.w_data.eq(self.vertices.p.vertex),
            self.vertices.ready.eq(self.fetch.ready & fifo.w_rdy), fifo.w_en.eq(self.vertices.valid & self.fetch.ready),
            self.fetch.p.address.eq(self.vertices.p.vertex * shape.beats), self.fetch.p.count.eq(shape.beats),
            advance.eq(~self.keys.valid | self.keys.ready), self.words.ready.eq(advance & fifo.r_rdy),
            self.query.ready.eq(1),
        ]  # fmt: skip
        depth = max(2, shape.beats)
        m.submodules.asked = asked = Memory(shape=8 * FETCH, depth=depth, init=[])
        write, read = asked.write_port(), asked.read_port()
        accepted, ended = self.words.valid & self.words.ready, beat == shape.beats - 1
        m.d.comb += [
            write.en.eq(self.query.valid), write.addr.eq(self.query.p.beat), write.data.eq(self.query.p.data),
            read.addr.eq(beat), read.en.eq(advance), fifo.r_en.eq(accepted & ended),
        ]  # fmt: skip
        with m.If(accepted):
            m.d.sync += beat.eq(Mux(ended, 0, beat + 1))
        data = delayed(m, self.words.p.data, 1, advance)
        squares: list[Value] = []
        for lane in range(8 * FETCH // COMPONENT):
            difference = Signal(signed(COMPONENT + 1))
            square = Signal(signed(2 * COMPONENT + 2))
            with m.If(advance):
                m.d.sync += difference.eq(
                    data.word_select(lane, COMPONENT).as_signed() - read.data.word_select(lane, COMPONENT).as_signed()
                )
                m.d.sync += square.eq(difference * difference)
            squares.append(square)
        amount = added(m, squares, advance)
        before = 3 + levels(len(squares))
        total = Signal(shape.distance)
        starts = delayed(m, beat == 0, before, advance)
        with m.If(advance & delayed(m, accepted, before, advance)):
            m.d.sync += total.eq(Mux(starts, 0, total) + amount)
        m.d.comb += self.keys.p.key.eq(Cat(delayed(m, fifo.r_data, before + 1, advance), total))
        m.d.comb += self.keys.valid.eq(delayed(m, accepted & ended, before + 1, advance))
        return m


class TraversalEngine(wiring.Component):
    """Searches a graph by delayed-synchronisation traversal, one query at a time.

    A query comes in beats and then its `start`: the number of the first vertex, and the groups under way and candidates
    of each, which are at most those of the shape. Lists of neighbours are fetched from
    `lists` (a list has `list_beats` words), and vectors from one memory for each unit. Distances are handled in the
    order of their vertices. Results are the nearest vertices. With the last one come the hops, and the cycles in which
    the controller waited for distances.
    """

    def __init__(self, shape: TraversalShape) -> None:
        self.shape = shape
        fetch, words = flow(address=32, count=32), flow(data=8 * FETCH)
        super().__init__({
            "query": In(flow(beat=range(max(2, shape.beats)), data=8 * FETCH)),
            "start": In(flow(vertex=VERTEX, groups=8, candidates=8)),
            "lists": Out(fetch), "neighbours": In(words),
            "fetch": Out(fetch).array(shape.units), "words": In(words).array(shape.units),
            "results": Out(flow(key=shape.width, hops=32, waits=32, last=1)),
        })  # fmt: skip

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        shape = self.shape
        m.submodules.queue = queue = ReplacingQueue(shape.length, shape.width)
        m.submodules.bloom = bloom = BloomFilter(shape.bits)
        # Commands of the controller: a vertex itself (the first one), a vertex whose neighbours are wanted, or the end
        # of a group.
        direct, expand, end = 0, 1, 2
        depth = shape.groups * (shape.candidates + 1) + 2
        m.submodules.commands = commands = SyncFIFOBuffered(width=VERTEX + 2, depth=depth)
        m.submodules.order = order = SyncFIFOBuffered(width=VERTEX + 2, depth=depth)
        kind, vertex = commands.r_data[:2], commands.r_data[2:]
        passing = Signal()
        m.d.comb += [
            self.lists.valid.eq(commands.r_rdy & order.w_rdy & (kind == expand)),
            self.lists.p.address.eq(vertex * shape.list_beats), self.lists.p.count.eq(shape.list_beats),
            passing.eq(commands.r_rdy & order.w_rdy & ((kind != expand) | self.lists.ready)),
            commands.r_en.eq(passing), order.w_en.eq(passing), order.w_data.eq(commands.r_data),
        ]  # fmt: skip
        self._list(m, order, bloom, direct, expand)
        keys, marks, valid = self._distances(m, bloom)
        flying, own = Signal(range(shape.groups + 2)), Signal(range(shape.candidates + 1))
        hops, waits, place = Signal(32), Signal(32), Signal(range(shape.length + 1))
        groups, candidates = Signal.like(flying), Signal.like(own)
        m.d.comb += queue.place.eq(shape.length - 1 - place)
        ready = Signal()
        m.d.comb += valid[1].eq(ready)
        with m.FSM():
            with m.State("idle"), m.If(self.start.valid & ~bloom.busy):
                m.d.comb += [bloom.clear.eq(1), queue.clear.eq(1)]
                m.d.sync += [hops.eq(0), waits.eq(0), place.eq(0)]
                m.d.sync += [groups.eq(self.start.p.groups), candidates.eq(self.start.p.candidates)]
                m.next = "begin"
            with m.State("begin"), m.If(~bloom.busy & commands.w_rdy):
                m.d.comb += [commands.w_en.eq(1), commands.w_data.eq(Cat(Const(direct, 2), self.start.p.vertex))]
                m.d.comb += self.start.ready.eq(1)
                m.next = "begun"
            with m.State("begun"), m.If(commands.w_rdy):
                m.d.comb += [commands.w_en.eq(1), commands.w_data.eq(end)]
                m.d.sync += flying.eq(1)
                m.next = "collect"
            with m.State("collect"):
                m.d.comb += [queue.push.valid.eq(valid[0] & ~marks), queue.push.p.key.eq(keys)]
                m.d.comb += ready.eq(valid[0] & (marks & queue.sorted | ~marks & queue.push.ready))
                with m.If(~valid[0] & queue.sorted):
                    m.d.sync += waits.eq(waits + 1)
                with m.If(ready & marks):
                    m.d.comb += queue.sort.eq(1)
                    m.d.sync += [flying.eq(flying - 1), own.eq(0)]
                    m.next = "sort"
            with m.State("sort"), m.If(queue.sorted):
                m.next = "launch"
            with m.State("launch"):
                taking = queue.found & (own != candidates) & (flying != groups)
                with m.If(taking), m.If(commands.w_rdy):
                    m.d.comb += [
                        queue.take.eq(1), commands.w_en.eq(1),
                        commands.w_data.eq(Cat(Const(expand, 2), queue.best[:VERTEX])),
                    ]  # fmt: skip
                    m.d.sync += [own.eq(own + 1), hops.eq(hops + 1)]
                with m.Elif(own != 0), m.If(commands.w_rdy):
                    m.d.comb += [commands.w_en.eq(1), commands.w_data.eq(end)]
                    m.d.sync += [own.eq(0), flying.eq(flying + 1)]
                with m.Elif(flying != 0):
                    m.next = "collect"
                with m.Else():
                    m.next = "results"
            with m.State("results"):
                following = queue.length - 1 - place
                m.d.comb += [
                    self.results.valid.eq(1), self.results.p.key.eq(queue.read), self.results.p.hops.eq(hops),
                    self.results.p.waits.eq(waits), self.results.p.last.eq(place == shape.results - 1),
                ]  # fmt: skip
                m.d.comb += queue.place.eq(following)
                with m.If(self.results.ready):
                    m.d.sync += place.eq(place + 1)
                    with m.If(self.results.p.last):
                        m.next = "idle"
        return m

    def _list(self, m: Module, order: Any, bloom: BloomFilter, direct: int, expand: int) -> None:
        """Brings commands and the neighbours that were fetched for them to the filter, one vertex at a time."""
        kind, vertex = order.r_data[:2], order.r_data[2:]
        count = 8 * FETCH // VERTEX
        lane, beat = Signal(range(count)), Signal(range(max(2, self.shape.list_beats)))
        neighbour = self.neighbours.p.data.word_select(lane, VERTEX)
        none, taken, words_end = neighbour == (1 << VERTEX) - 1, Signal(), Signal()
        m.d.comb += [
            bloom.items.p.mark.eq((kind != expand) & (kind != direct)),
            bloom.items.p.vertex.eq(Mux(kind == expand, neighbour, vertex)),
        ]  # fmt: skip
        with m.If(kind == expand):
            m.d.comb += [
                bloom.items.valid.eq(order.r_rdy & self.neighbours.valid & ~none),
                taken.eq(order.r_rdy & self.neighbours.valid & (none | bloom.items.ready)),
                words_end.eq(taken & (none | (lane == count - 1))), self.neighbours.ready.eq(words_end),
                order.r_en.eq(words_end & (beat == self.shape.list_beats - 1)),
            ]  # fmt: skip
            with m.If(taken):
                m.d.sync += lane.eq(Mux(words_end, 0, lane + 1))
            with m.If(words_end):
                m.d.sync += beat.eq(Mux(order.r_en, 0, beat + 1))
        with m.Else():
            m.d.comb += [bloom.items.valid.eq(order.r_rdy), order.r_en.eq(order.r_rdy & bloom.items.ready)]

    def _distances(self, m: Module, bloom: BloomFilter) -> tuple[Value, Value, tuple[Value, Signal]]:
        """Gives fresh vertices to the units in turn, and takes their keys in the same order: key, mark of an end, and
        valid with ready."""
        shape = self.shape
        units = [DistanceUnit(shape) for _ in range(shape.units)]
        m.submodules.marks = marks = SyncFIFOBuffered(width=1, depth=OUTSTANDING * shape.units)
        m.submodules.fresh = fresh = SyncFIFOBuffered(width=VERTEX + 1, depth=OUTSTANDING)
        m.d.comb += [
            fresh.w_en.eq(bloom.fresh.valid), fresh.w_data.eq(bloom.fresh.payload.as_value()),
            bloom.fresh.ready.eq(fresh.w_rdy), self.query.ready.eq(1),
        ]  # fmt: skip
        give, take, accepted = Signal(range(shape.units)), Signal(range(shape.units)), Signal()
        valid, ready = Signal(), Signal()
        mark = fresh.r_data[VERTEX]
        for number, unit in enumerate(units):
            m.submodules[f"unit{number}"] = unit
            wiring.connect(m, unit.fetch, wiring.flipped(self.fetch[number]))
            wiring.connect(m, wiring.flipped(self.words[number]), unit.words)
            m.d.comb += [
                unit.query.valid.eq(self.query.valid), unit.query.p.eq(self.query.p),
                unit.vertices.valid.eq(fresh.r_rdy & ~mark & marks.w_rdy & (give == number)),
                unit.vertices.p.vertex.eq(fresh.r_data[:VERTEX]),
                unit.keys.ready.eq(ready & ~marks.r_data & marks.r_rdy & (take == number)),
            ]  # fmt: skip
        readies, valids = Array([u.vertices.ready for u in units]), Array([u.keys.valid for u in units])
        m.d.comb += [
            accepted.eq(fresh.r_rdy & marks.w_rdy & (mark | readies[give])), fresh.r_en.eq(accepted),
            marks.w_en.eq(accepted), marks.w_data.eq(mark), marks.r_en.eq(valid & ready),
            valid.eq(marks.r_rdy & (marks.r_data | valids[take])),
        ]  # fmt: skip
        with m.If(accepted & ~mark):
            m.d.sync += give.eq(Mux(give == shape.units - 1, 0, give + 1))
        with m.If(valid & ready & ~marks.r_data):
            m.d.sync += take.eq(Mux(take == shape.units - 1, 0, take + 1))
        return Array([u.keys.p.key for u in units])[take], marks.r_data, (valid, ready)


class ReplacingQueue(wiring.Component):
    """Keeps the `length` smallest keys, the smallest in the last place once they are sorted (Falcon).

    The largest key is always in the first place. A new one that is smaller replaces it, and even and odd neighbours are
    exchanged in turn: an insertion every 2 cycles. To sort all keys takes `length` - 1 further cycles. `taken` marks
    keys that are not to be offered again; the mark moves with its key.

    `sort` begins sorting; `sorted` says that no exchange is under way.
    """

    def __init__(self, length: int, width: int) -> None:
        self.length, self.width = length, width
        super().__init__({
            "push": In(flow(key=width)), "sort": In(1), "sorted": Out(1), "clear": In(1), "largest": Out(width),
            "best": Out(width), "found": Out(1), "take": In(1), "place": In(range(length)), "read": Out(width),
        })  # fmt: skip

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        empty = (1 << self.width) - 1
        keys = [Signal(self.width, name=f"key{i}", init=empty) for i in range(self.length)]
        taken = [Signal(name=f"taken{i}", init=1) for i in range(self.length)]
        odd, left = Signal(), Signal(range(self.length + 1))
        m.d.comb += [
            self.push.ready.eq(~odd & (left == 0)), self.sorted.eq(~odd & (left == 0)),
            self.largest.eq(keys[0]),
        ]  # fmt: skip
        accepted = Signal()
        m.d.comb += accepted.eq(self.push.ready & self.push.valid & (self.push.p.key < keys[0]))
        now = [Mux(accepted, self.push.p.key, keys[0]), *keys[1:]]
        marks = [taken[0] & ~accepted, *taken[1:]]
        exchange_even, exchange_odd = Signal(), Signal()
        # While sorting, even and odd exchanges alternate.
        m.d.comb += exchange_even.eq(accepted | (left != 0) & ~left[0])
        m.d.comb += exchange_odd.eq(odd | (left != 0) & left[0])
        m.d.sync += odd.eq(accepted)
        with m.If(self.sort & self.sorted & (self.length > 1)):
            m.d.sync += left.eq(self.length - 1)
        with m.Elif(left != 0):
            m.d.sync += left.eq(left - 1)
        for start, active in ((0, exchange_even), (1, exchange_odd)):
            with m.If(active):
                m.d.sync += keys[0].eq(now[0])
                m.d.sync += taken[0].eq(marks[0])
                for i in range(start, self.length - 1, 2):
                    with m.If(now[i] < now[i + 1]):
                        m.d.sync += [keys[i].eq(now[i + 1]), keys[i + 1].eq(now[i])]
                        m.d.sync += [taken[i].eq(marks[i + 1]), taken[i + 1].eq(marks[i])]
        # The best key without a mark is that with the highest place.
        at = Signal(range(self.length))
        for i in range(self.length):
            with m.If(~taken[i]):
                m.d.comb += [at.eq(i), self.found.eq(1), self.best.eq(keys[i])]
        with m.If(self.take):
            for i in range(self.length):
                with m.If(at == i):
                    m.d.sync += taken[i].eq(1)
        for i in range(self.length):
            with m.If(self.place == i):
                m.d.comb += self.read.eq(keys[i])
        with m.If(self.clear):
            m.d.sync += [key.eq(empty) for key in keys]
            m.d.sync += [mark.eq(1) for mark in taken]
        return m
