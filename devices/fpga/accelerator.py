"""The accelerator: query, lists of a query (its own choice or the host's), tables, scan and queues, as one pipeline."""

from __future__ import annotations

import math
from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from edge.devices.fpga.shape import ADDRESS, ENTRY, Shape, address_bits
from edge.devices.fpga.units import PqScorer, TableBuilder, TruncatedQueues, WeightedScorer, flow

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
        m.submodules.pending = pending = SyncFIFOBuffered(width=2 * ADDRESS + 1, depth=WAITING)
        passing = Signal()
        m.d.comb += [
            self.fetch.valid.eq(command.valid & pending.w_rdy & (command.p.count != 0)),
            self.fetch.p.address.eq(command.p.address * shape.row_words),
            self.fetch.p.count.eq(command.p.count * shape.row_words),
            passing.eq(command.valid & pending.w_rdy & (self.fetch.ready | (command.p.count == 0))),
            command.ready.eq(passing), pending.w_en.eq(passing),
            pending.w_data.eq(Cat(command.p.address, command.p.count, command.p.last)),
        ]  # fmt: skip
        address, count, last = (
            pending.r_data[:ADDRESS], pending.r_data[ADDRESS : 2 * ADDRESS], pending.r_data[2 * ADDRESS],
        )  # fmt: skip
        # A query that ends with a command without rows sends a group without rows to the queues, so that they know.
        empty = Signal()
        m.d.comb += empty.eq(count == 0)
        group, beat, half = Signal(ADDRESS), Signal(range(max(2, shape.row_words))), Signal()
        accepting: Value = Const(1, 1)
        for scorer in scorers:
            accepting = accepting & scorer.codes.ready
        offered, taken, beat_end, group_end = Signal(), Signal(), Signal(), Signal()
        m.d.comb += [
            offered.eq(pending.r_rdy & (ready != 0) & Mux(empty, last, self.words.valid)),
            taken.eq(offered & accepting), self.words.ready.eq(taken & ~empty),
            beat_end.eq(beat == shape.row_words - 1), group_end.eq(beat_end & (empty | (group == count - 1))),
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
