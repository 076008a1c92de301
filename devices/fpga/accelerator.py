"""The accelerator: query, lists of a query (its own choice or the host's), tables, scan and queues, as one pipeline of
units with streams between them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import stream, wiring
from amaranth.lib.data import StructLayout
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from edge.devices.fpga.shape import ADDRESS, CODES, ENTRY, KeyForm, Shape, address_bits, levels


def flow(**fields: Any) -> Any:
    """A stream with ready and valid whose payload has these fields; the first is in the lowest bits."""
    return stream.Signature(StructLayout(fields))


def key_signal(keys: KeyForm, score: Value, row: Value) -> Value:
    raised = Cat(score[: keys.score - 1], ~score[keys.score - 1])
    return Mux(row == keys.no_row, 0, Cat(~row, raised))


class SystolicQueue(wiring.Component):
    """Keeps the `length` largest of the keys pushed, one in every cycle: each cell keeps the larger key and passes the
    other on.

    After the `last` key it settles for `length` cycles, then gives its keys back, the largest first; `dropped`, the
    largest that fell out, is valid with the last. Key 0 is no row."""

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
    """A queue of `kept` keys for each stream, and one of `results` that they lead to (Chameleon). Each key larger than
    `dropped` is among the results."""

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


class TableBuilder(wiring.Component):
    """Multiplies `lanes` components in every cycle; an entry takes `steps`.

    A codebook is loaded once: word `(part * 256 + code) * steps + step`. A query comes in 16-bit beats, and then a
    part's entries are built one after the other, shifted right to fit 16 bits."""

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


def added(m: Module, values: Sequence[Value], advance: Value) -> Value:
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
    for _ in range(cycles):
        register = Signal.like(value)
        with m.If(advance):
            m.d.sync += register.eq(value)
        value = register
    return value


class PqScorer(wiring.Component):
    """Scores a code of `parts` bytes in every cycle: a tree adds the table entries. Tables are double: one half is
    filled while the other is read."""

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
    """Scores rows of `beats` times `lanes` bytes, one beat a cycle: the sum of byte times doubled weight."""

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


WAITING = 16
"""Commands whose codes are under way at most."""


class Accelerator(wiring.Component):
    """Answers one query after the other; the tables of the next one are built while one is scanned.

    A query comes in `beats`: 16-bit components for `pq`, 16-bit weights of bytes for `bytes`, with a `ceiling` of keys.
    A command says from which word of the memory how many groups of rows (one for each unit) are scanned, and whether it
    is the last; with `lists` > 0 the chip finds the nearest lists in a directory itself. Results are keys, the best
    first, and with the last the largest key that a queue dropped."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        keys, lanes = shape.keys, shape.lanes
        command = flow(address=ADDRESS, count=ADDRESS, last=1)
        ports: dict[str, Any] = {
            "query": In(flow(data=ENTRY * lanes)), "ceiling": In(flow(key=keys.width)),
            "fetch": Out(flow(address=32, count=32)), "words": In(flow(data=shape.word)),
            "results": Out(flow(key=keys.width, dropped=keys.width, last=1)),
        }  # fmt: skip
        if shape.codec == "pq":
            self.builder = TableBuilder(shape.parts // shape.builders, shape.dim // shape.parts, lanes)
            book = flow(builder=range(max(2, shape.builders)), address=range(self.builder.words), data=8 * lanes)
            ports["codebook"] = In(book)
        if shape.lists:
            ports["centroids"] = In(flow(list=range(shape.lists), beat=range(max(2, shape.beats)), data=8 * lanes))
            ports["directory"] = In(flow(list=range(shape.lists), address=ADDRESS, count=ADDRESS))
        else:
            ports["commands"] = In(command)
        super().__init__(ports)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        shape, keys = self.shape, self.shape.keys
        scorers: list[Any] = [
            PqScorer(shape.parts, keys, shape.builders)
            if shape.codec == "pq"
            else WeightedScorer(shape.lanes, shape.beats, keys)
            for _ in range(shape.units)
        ]
        m.submodules.queues = queues = TruncatedQueues(shape.units, shape.kept, shape.results, keys.width)
        for number, scorer in enumerate(scorers):
            m.submodules[f"scorer{number}"] = scorer
            wiring.connect(m, scorer.scores, queues.push[number])
        # Queries whose tables are built and that are not scanned yet; a query's ceiling belongs to its half.
        ready, built, scanned, filled = Signal(range(3)), Signal(), Signal(), Signal()
        m.d.sync += [ready.eq(ready + built - scanned), filled.eq(filled ^ built)]
        ceilings = [Signal(keys.width, name=f"ceiling{i}") for i in range(2)]
        for scorer in scorers:
            m.d.comb += [scorer.ceilings[i].eq(ceilings[i]) for i in range(2)]
        for i in range(2):
            with m.If(built & (filled == i)):
                m.d.sync += ceilings[i].eq(self.ceiling.p.key)
        m.d.comb += self.ceiling.ready.eq(built)
        taken, may = Signal(), Signal()
        m.d.comb += [self.query.ready.eq(may), taken.eq(self.query.valid & self.query.ready)]
        open_ = (ready < 2) & self.ceiling.valid
        fill = self._tables if shape.codec == "pq" else self._weights
        free = fill(m, scorers, taken, filled, open_, built)
        if shape.lists:
            command, free_too = self._chosen(m, taken)
            m.d.comb += may.eq(free & free_too)
        else:
            command = self.commands
            m.d.comb += may.eq(free)
        self._scan(m, scorers, command, ready, scanned)
        m.d.comb += [
            self.results.valid.eq(queues.pull.valid),
            queues.pull.ready.eq(self.results.ready),
            self.results.p.key.eq(queues.pull.p.key),
            self.results.p.last.eq(queues.pull.p.last),
            self.results.p.dropped.eq(queues.dropped),
        ]
        return m

    def _tables(self, m: Module, scorers: list[Any], taken: Value, filled: Value, may: Value, built: Signal) -> Value:
        count = self.shape.builders
        share = self.shape.beats // count
        builders = [self.builder, *(TableBuilder(self.builder.parts, self.builder.width, self.builder.lanes)
                                    for _ in range(count - 1))]  # fmt: skip
        turn, beat = Signal(range(max(2, count))), Signal(range(max(2, share)))
        with m.If(taken):
            m.d.sync += beat.eq(Mux(beat == share - 1, 0, beat + 1))
            with m.If(beat == share - 1):
                m.d.sync += turn.eq(Mux(turn == count - 1, 0, turn + 1))
        all_done, free = Const(1, 1), Const(0, 1)
        for number, builder in enumerate(builders):
            m.submodules[f"builder{number}"] = builder
            done = Signal(name=f"done{number}")
            m.d.comb += [
                builder.codebook.valid.eq(self.codebook.valid & (self.codebook.p.builder == number)),
                builder.codebook.p.address.eq(self.codebook.p.address), builder.half.eq(filled),
                builder.codebook.p.data.eq(self.codebook.p.data), builder.go.eq(may & ~done),
                builder.query.valid.eq(taken & (turn == number)), builder.query.p.data.eq(self.query.p.data),
                builder.entries.ready.eq(1),
            ]  # fmt: skip
            with m.If(built):
                m.d.sync += done.eq(0)
            with m.Elif(builder.built):
                m.d.sync += done.eq(1)
            all_done, free = all_done & done, free | (turn == number) & builder.query.ready
            entry = Signal.like(builder.entries.payload.as_value())
            valid = Signal()
            m.d.sync += [entry.eq(builder.entries.payload.as_value()), valid.eq(builder.entries.valid)]
            for scorer in scorers:
                load = scorer.load[number]
                m.d.comb += [load.valid.eq(valid), load.payload.as_value().eq(entry)]
        m.d.comb += [built.eq(all_done), self.codebook.ready.eq(1)]
        return free

    def _weights(self, m: Module, scorers: list[Any], taken: Value, filled: Value, may: Value, built: Signal) -> Value:
        beat, complete = Signal(range(max(2, self.shape.beats))), Signal()
        end = beat == self.shape.beats - 1
        with m.If(taken):
            m.d.sync += [beat.eq(Mux(end, 0, beat + 1)), complete.eq(end)]
        m.d.comb += built.eq(complete)
        with m.If(built):
            m.d.sync += complete.eq(0)
        for scorer in scorers:
            load = scorer.load[0]
            m.d.comb += [
                load.valid.eq(taken), load.p.half.eq(filled), load.p.beat.eq(beat),
                load.p.weights.eq(self.query.p.data),
            ]  # fmt: skip
        return may & ~complete

    def _chosen(self, m: Module, taken: Value) -> tuple[Any, Value]:
        """Chooses a query's lists. Returns their commands, and whether a beat of a query can be taken."""
        shape, keys = self.shape, self.shape.keys
        count, beats = shape.centroids, shape.beats
        rounds = -(-shape.lists // count)
        scorers = [WeightedScorer(shape.lanes, beats, keys) for _ in range(count)]
        m.submodules.nearest = nearest = TruncatedQueues(count, shape.probed, shape.probed, keys.width)
        beat, pending, filling = Signal(range(max(2, beats))), Signal(), Signal()
        with m.If(taken):
            m.d.sync += [beat.eq(Mux(beat == beats - 1, 0, beat + 1)), pending.eq(beat == beats - 1)]
        sweeping, half, step, number = Signal(), Signal(), Signal(range(max(2, beats))), Signal(range(rounds))
        # A word of the memories of centroids is read one cycle before it is scored.
        word, words = Signal(range(rounds * beats)), rounds * beats
        moving, end = Signal(), Signal()
        m.d.comb += end.eq((step == beats - 1) & (number == rounds - 1))
        with m.If(pending & ~sweeping):
            m.d.sync += [sweeping.eq(1), pending.eq(0), half.eq(filling), filling.eq(~filling), word.eq(0)]
        valid = Signal()
        ready = Const(1, 1)
        for scorer in scorers:
            ready = ready & scorer.codes.ready
        m.d.comb += moving.eq(valid & ready)
        following = Signal.like(word)
        m.d.comb += following.eq(Mux(moving & (word != words - 1), word + 1, word))
        m.d.sync += word.eq(Mux(sweeping, following, 0))
        m.d.sync += valid.eq(sweeping & ~(moving & end))
        with m.If(moving):
            m.d.sync += step.eq(Mux(step == beats - 1, 0, step + 1))
            with m.If(step == beats - 1):
                m.d.sync += number.eq(Mux(end, 0, number + 1))
            with m.If(end):
                m.d.sync += sweeping.eq(0)
        bits = (count - 1).bit_length()
        own = self.centroids.p.list[:bits] if bits else Const(0, 1)
        for unit, scorer in enumerate(scorers):
            m.submodules[f"centroids{unit}"] = scorer
            m.submodules[f"held{unit}"] = held = Memory(shape=8 * shape.lanes, depth=words, init=[])
            write, read = held.write_port(), held.read_port()
            label = number * count + unit
            m.d.comb += [
                write.en.eq(self.centroids.valid & (own == unit)), write.data.eq(self.centroids.p.data),
                write.addr.eq(self.centroids.p.list[bits:] * beats + self.centroids.p.beat),
                read.addr.eq(following), scorer.codes.valid.eq(moving), scorer.codes.p.code.eq(read.data),
                scorer.codes.p.row.eq(Mux(label < shape.lists, label, keys.no_row)), scorer.codes.p.half.eq(half),
                scorer.codes.p.last.eq(end), scorer.load[0].valid.eq(taken), scorer.load[0].p.half.eq(filling),
                scorer.load[0].p.beat.eq(beat), scorer.load[0].p.weights.eq(self.query.p.data),
                *(ceiling.eq((1 << keys.width) - 1) for ceiling in scorer.ceilings),
            ]  # fmt: skip
            wiring.connect(m, scorer.scores, nearest.push[unit])
        m.submodules.directory = directory = Memory(shape=2 * ADDRESS, depth=1 << address_bits(shape.lists), init=[])
        write, read = directory.write_port(), directory.read_port()
        command = flow(address=ADDRESS, count=ADDRESS, last=1).create()
        looked = Signal()
        m.d.comb += [
            self.centroids.ready.eq(1), self.directory.ready.eq(1), write.en.eq(self.directory.valid),
            write.addr.eq(self.directory.p.list), write.data.eq(Cat(self.directory.p.address, self.directory.p.count)),
            read.addr.eq(~nearest.pull.p.key[: (shape.lists - 1).bit_length()] if shape.lists > 1 else 0),
            command.valid.eq(looked), Cat(command.p.address, command.p.count).eq(read.data),
            command.p.last.eq(nearest.pull.p.last), nearest.pull.ready.eq(looked & command.ready),
        ]  # fmt: skip
        m.d.sync += looked.eq(nearest.pull.valid & ~looked | looked & ~command.ready)
        return command, ~pending

    def _scan(self, m: Module, scorers: list[Any], command: Any, ready: Value, scanned: Value) -> None:
        """Fetches the words of commands, and gives them to all units once their query's tables are built."""
        shape, keys = self.shape, self.shape.keys
        m.submodules.pending = pending = SyncFIFOBuffered(width=2 * ADDRESS + 2, depth=WAITING)
        passing = Signal()
        m.d.comb += [
            self.fetch.valid.eq(command.valid & pending.w_rdy & (command.p.count != 0)),
            self.fetch.p.address.eq(command.p.address * shape.row_words),
            self.fetch.p.count.eq(command.p.count * shape.row_words),
            passing.eq(command.valid & pending.w_rdy & (self.fetch.ready | (command.p.count == 0))),
            command.ready.eq(passing), pending.w_en.eq(passing),
            # What depends on the count is computed here, because the way from a command to `ready` is the longest.
            pending.w_data.eq(
                Cat(command.p.address, (command.p.count - 1)[:ADDRESS], command.p.last, command.p.count == 0)
            ),
        ]  # fmt: skip
        # A query that ends with a command without rows sends a group without rows to the queues, so that they know.
        address, final = (pending.r_data.word_select(i, ADDRESS) for i in range(2))
        last, empty = (pending.r_data[2 * ADDRESS + i] for i in range(2))
        group, beat, half = Signal(ADDRESS), Signal(range(max(2, shape.row_words))), Signal()
        accepting: Value = Const(1, 1)
        for scorer in scorers:
            accepting = accepting & scorer.codes.ready
        offered, taken, beat_end, group_end = Signal(), Signal(), Signal(), Signal()
        m.d.comb += [
            offered.eq(pending.r_rdy & (ready != 0) & Mux(empty, last, self.words.valid)),
            taken.eq(offered & accepting), self.words.ready.eq(taken & ~empty),
            beat_end.eq(beat == shape.row_words - 1), group_end.eq(beat_end & (empty | (group == final))),
            pending.r_en.eq(taken & group_end | pending.r_rdy & empty & ~last),
            scanned.eq(taken & group_end & last),
        ]  # fmt: skip
        with m.If(taken):
            m.d.sync += beat.eq(Mux(beat_end, 0, beat + 1))
            with m.If(beat_end):
                m.d.sync += group.eq(Mux(group_end, 0, group + 1))
        m.d.sync += half.eq(half ^ scanned)
        bits, width = int(math.log2(shape.units)), shape.word // shape.units
        for number, scorer in enumerate(scorers):
            own = self.words.p.data.word_select(number, width)
            row = Cat(Const(number, bits), (address + group)[: ADDRESS - bits])
            m.d.comb += [
                scorer.codes.valid.eq(taken), scorer.codes.p.code.eq(own[: width - 1]), scorer.codes.p.half.eq(half),
                scorer.codes.p.row.eq(Mux(own[width - 1] & ~empty, row, keys.no_row)),
                scorer.codes.p.last.eq(last & (group_end | empty)),
            ]  # fmt: skip
