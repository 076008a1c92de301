"""The search accelerator as a device: its lists behind a modelled link, and its searches simulated or modelled."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.budget import MemoryBudget
from edge.devices.cpu import LimitedDevice
from edge.devices.faiss_codec import turn_of
from edge.devices.fpga.shape import (
    ADDRESS,
    BUS,
    CHIP,
    CODES,
    ENTRY,
    GOAL,
    Shape,
    address_bits,
    cycles,
    joules,
    levels,
    refusal,
)
from edge.devices.searchers import queue_length
from edge.errors import CapabilityError, ConfigError, RangeError
from edge.ivf.base import Bytes, CodecSpec, Vectors
from edge.ivf.device import Candidates, Estimate, ListScan, SearchRequest
from edge.plugins import number
from edge.trace import Trace

Integers = npt.NDArray[np.int64]

_BYTE_STEPS = 256
"""Steps that a component of a vector is rounded to where its codes are no bytes."""

_WIDEST = 8
"""Components that a builder of tables multiplies in a cycle at most, and bytes that a scoring unit does."""

_SLACK = 2e-6
"""Share of a score's terms by which float32 arithmetic of the host may differ."""

_LONGEST = 1 << 32
"""Cycles after which a simulated search has failed."""

_MOST_ROWS = 1 << 23
"""Rows of a run, whose numbers fit the design's."""


@dataclass(frozen=True, slots=True)
class RoundedQuery:
    """A query in 16-bit integers. A score s stands for s * unit + offset, and differs by at most `error`."""

    beats: Integers
    unit: float
    offset: float
    error: float


class RoundedTables:
    """Product quantization whose centroids are 8-bit integers."""

    def __init__(self, spec: CodecSpec) -> None:
        self._turn = turn_of(spec)
        state = spec.state if self._turn is None else spec.state[4 * spec.dim**2 :]
        self._book = np.frombuffer(state, "<f4").reshape(spec.code_size, CODES, -1).astype(np.float64)
        self._scale = 127 / max(float(np.abs(self._book).max()), 1e-30)
        self.book: Integers = np.rint(self._book * self._scale).astype(np.int64)

    def query(self, query: Vectors) -> RoundedQuery:
        """A query [dim] in integers. The error is the sum of the largest errors of each part's table."""
        turned = (query if self._turn is None else self._turn @ query).astype(np.float64)
        asked = turned.reshape(len(self._book), -1)
        scale = 32767 / max(float(np.abs(asked).max()), 1e-30)
        rounded = np.rint(asked * scale).astype(np.int64)
        exact = np.einsum("pcw,pw->pc", self._book, asked)
        width = asked.shape[1]
        shift = 7 + levels(width)
        tables = np.einsum("pcw,pw->pc", self.book, rounded) >> shift
        unit = 2.0**shift / self._scale / scale
        error = np.abs(exact - (tables + 0.5) * unit).max(axis=1).sum()
        slack = _SLACK * np.abs(exact).max(axis=1).sum()
        return RoundedQuery(rounded.reshape(-1), unit, len(self._book) * unit / 2, float(error + slack))

    def codes(self, codes: Bytes) -> Bytes:
        return codes


class RoundedBytes:
    """Codes of a byte for each component: SQ8 as it is, and vectors between the extremes of each component."""

    def __init__(self, spec: CodecSpec, total: int, score: int, vectors: Sequence[Vectors]) -> None:
        """Takes the bits of a sum and of a score, and the rows of all lists, if the codes are vectors."""
        self._shift = max(0, total - score)
        if spec.name == "sq8":
            state = np.frombuffer(spec.state, "<f4").astype(np.float64)
            self._low, self._step = state[: spec.dim], state[spec.dim :] / 255
        else:
            self._low = np.min([rows.min(axis=0) for rows in vectors], axis=0).astype(np.float64)
            high = np.max([rows.max(axis=0) for rows in vectors], axis=0)
            self._step = np.maximum((high - self._low) / _BYTE_STEPS, 1e-30)
        self._vectors = spec.name != "sq8"

    def query(self, query: Vectors) -> RoundedQuery:
        """A query [dim] in integers. A weight is a component of the query times the component's step."""
        asked = query.astype(np.float64)
        weights = asked * self._step
        scale = 32767 / max(float(np.abs(weights).max()), 1e-30)
        rounded = np.rint(weights * scale).astype(np.int64)
        unit = 2.0**self._shift / scale
        terms = np.abs(asked) @ (np.abs(self._low) + _BYTE_STEPS * self._step)
        error = 255 * np.abs(weights - rounded / scale).sum() + unit / 2 + _SLACK * terms
        if self._vectors:
            error += np.abs(asked) @ self._step / 2
        offset = float(asked @ (self._low + self._step / 2)) + unit / 2
        return RoundedQuery(rounded, unit, offset, float(error))

    def codes(self, codes: Bytes) -> Bytes:
        if not self._vectors:
            return codes
        steps = (codes.view(np.float32) - self._low) / self._step
        return np.clip(np.floor(steps), 0, _BYTE_STEPS - 1).astype(np.uint8)


@dataclass(frozen=True, slots=True)
class Image:
    """Lists in the memory of a design: a word is a beat of one row for each unit, and whether it counts. A list is its
    first group and the number of groups."""

    words: npt.NDArray[np.uint32]
    first: Integers
    groups: Integers

    @classmethod
    def of(cls, lists: Sequence[tuple[Bytes, Any]], units: int, beat: int, beats: int) -> Image:
        """Lists (codes [n, beat * beats], rows that count, None for all) in `beats` words of `beat` bytes a row."""
        groups = np.array([-(-len(codes) // units) for codes, _ in lists], np.int64)
        first = np.concatenate(([0], np.cumsum(groups)))
        rows = np.zeros((int(first[-1]) * units, beats, beat + 1), np.uint8)
        for (codes, live), start in zip(lists, first.tolist(), strict=False):
            own = rows[start * units : start * units + len(codes)]
            own[:, :, :beat] = codes.reshape(len(codes), beats, beat)
            own[slice(None) if live is None else live, :, beat] = 1
        # [group, beat, unit, byte]; the last byte of a unit is one bit
        bits = np.unpackbits(
            rows.reshape(-1, units, beats, beat + 1).transpose(0, 2, 1, 3), axis=-1, bitorder="little"
        )[..., : 8 * beat + 1].reshape(-1, units * (8 * beat + 1))  # fmt: skip
        chunks = -(-bits.shape[1] // 32)
        wide = np.zeros((len(bits), 32 * chunks), np.uint8)
        wide[:, : bits.shape[1]] = bits
        words = np.packbits(wide, axis=1, bitorder="little").view("<u4")
        return cls(words, first[:-1], groups)


def shape_for(spec: CodecSpec, units: int, results: int, kept: int) -> Shape:
    if spec.has_tables:
        width = spec.dim // spec.code_size
        builders = math.gcd(spec.code_size, 4)
        return Shape("pq", spec.dim, spec.code_size, units, results, kept, builders, _divisor(width))
    return Shape("bytes", spec.dim, 0, units, results, kept, 1, _divisor(spec.dim))


def _divisor(number: int) -> int:
    return next(lanes for lanes in range(min(_WIDEST, number), 0, -1) if number % lanes == 0)


@dataclass(slots=True)
class Counted:
    """What a simulated search took: cycles, queries (also again), and rows that the host scored exactly."""

    cycles: int = 0
    passes: int = 0
    rescored: int = 0


@dataclass(frozen=True, slots=True)
class AskedRows:
    """A query for a design: beats, the largest key that counts, lists to scan (none if the chip chooses)."""

    beats: Integers
    ceiling: int
    lists: Sequence[int]


@dataclass(frozen=True, slots=True)
class HardwareAnswer:
    """A query's keys, the best first, and the largest key that a queue dropped (0 if none did)."""

    keys: list[int]
    dropped: int


class SimulatedAccelerator:
    """A design as a program, with the set-up and the words that it takes."""

    def __init__(self, shape: Shape, folder: Path, *, level: int = 1) -> None:
        from edge.devices.fpga.simulation import Simulation, component_of

        self.shape = shape
        setup = [*(["codebook"] if shape.codec == "pq" else []), *(["centroids", "directory"] if shape.lists else [])]
        self._simulation = Simulation(
            component_of(shape), folder, memories={"fetch": "words"}, setup=setup, level=level
        )

    def answers(
        self,
        image: Image,
        asked: Sequence[AskedRows],
        *,
        book: Integers | None = None,
        centroids: Bytes | None = None,
        stall: float = 0.0,
        latency: int = 0,
    ) -> tuple[list[HardwareAnswer], int]:
        """The answers to some queries one after the other, and the cycles of all.

        `book`: 8-bit centroids [parts, 256, width]; `centroids` of the lists, bytes [lists, dim]. Streams pause in the
        share `stall` of the cycles."""
        from edge.devices.fpga.simulation import packed, unpacked

        shape, width = self.shape, self.shape.keys.width
        beats = np.concatenate([query.beats for query in asked]).astype("<i2").reshape(-1, shape.lanes)
        given = {
            "query": packed([int.from_bytes(row.tobytes(), "little") for row in beats], 16 * shape.lanes),
            "ceiling": packed([query.ceiling for query in asked], width),
            "words": image.words,
        }
        if book is not None:
            given["codebook"] = self._codebook(book)
        if centroids is None:
            commands = [
                int(image.first[i]) | int(image.groups[i]) << ADDRESS | (i == query.lists[-1]) << 2 * ADDRESS
                for query in asked for i in query.lists
            ]  # fmt: skip
            given["commands"] = packed(commands, 2 * ADDRESS + 1)
        else:
            given |= self._lists(image, centroids)
        run = self._simulation.run(
            given, {"results": len(asked)}, limit=_LONGEST, runs=True, stall=stall, latency=latency
        )  # fmt: skip
        answers, keys = [], []
        for word in unpacked(run.words["results"]):
            if key := word & (1 << width) - 1:
                keys.append(key)
            if word >> 2 * width:
                answers.append(HardwareAnswer(keys, word >> width & (1 << width) - 1))
                keys = []
        return answers, run.cycles

    def _codebook(self, book: Integers) -> Any:
        from edge.devices.fpga.simulation import packed

        shape = self.shape
        words = shape.parts // shape.builders * CODES * (shape.dim // shape.parts // shape.lanes)
        bits, own = (words - 1).bit_length(), address_bits(shape.builders)
        rows = book.astype("<i1").reshape(shape.builders, words, shape.lanes)
        return packed(
            [
                builder | address << own | int.from_bytes(row.tobytes(), "little") << own + bits
                for builder, some in enumerate(rows) for address, row in enumerate(some)
            ],
            own + bits + 8 * shape.lanes,
        )  # fmt: skip

    def _lists(self, image: Image, centroids: Bytes) -> dict[str, Any]:
        from edge.devices.fpga.simulation import packed

        shape = self.shape
        bits, beat_bits = (shape.lists - 1).bit_length(), address_bits(shape.beats)
        rows = centroids.reshape(shape.lists, shape.beats, shape.lanes)
        words = [
            number | beat << bits | int.from_bytes(row.tobytes(), "little") << bits + beat_bits
            for number, beats in enumerate(rows) for beat, row in enumerate(beats)
        ]  # fmt: skip
        directory = [
            number | int(first) << bits | int(groups) << bits + ADDRESS
            for number, (first, groups) in enumerate(zip(image.first, image.groups, strict=True))
        ]
        return {
            "centroids": packed(words, bits + beat_bits + 8 * shape.lanes),
            "directory": packed(directory, bits + 2 * ADDRESS),
        }


class SimulatedSearch:
    """Answers requests with a simulated design. A query is asked again for the rows below the best until no other can
    be among them, so results are the codec's."""

    def __init__(self, shape: Shape, folder: Path, *, level: int = 1) -> None:
        self.shape = shape
        self._total = ENTRY + 9 + levels(shape.lanes * shape.beats)
        self._accelerator = SimulatedAccelerator(shape, folder, level=level)

    def search(self, request: SearchRequest) -> Counted:
        counted = Counted()
        some: list[ListScan] = []
        rows = 0
        for item in request.lists:
            some.append(item)
            rows += item.count
            if rows > _MOST_ROWS:
                self._some(request, some, counted)
                some, rows = [], 0
        if some:
            self._some(request, some, counted)
        return counted

    def _some(self, request: SearchRequest, lists: Sequence[ListScan], counted: Counted) -> None:
        spec, shape, keys = request.codec.spec, self.shape, self.shape.keys
        held = [item.codes.reshape(-1)[: item.count * spec.code_size].reshape(item.count, -1) for item in lists]
        rounded: RoundedTables | RoundedBytes
        if spec.has_tables:
            rounded = RoundedTables(spec)
        else:
            rows = [codes.view(np.float32) for codes in held] if spec.exact else []
            rounded = RoundedBytes(spec, self._total, keys.score, rows)
        image = Image.of(
            [(rounded.codes(codes), item.rows) for codes, item in zip(held, lists, strict=True)],
            shape.units, shape.parts if spec.has_tables else shape.lanes, shape.row_words,
        )  # fmt: skip
        count = len(request.queries)
        probing = [[i for i, item in enumerate(lists) if query in item.queries] for query in range(count)]
        forms = {query: rounded.query(request.queries[query]) for query in range(count) if probing[query]}
        ceilings = dict.fromkeys(forms, (1 << keys.width) - 1)
        known: dict[int, set[int]] = {query: set() for query in forms}
        while ceilings:
            asked = [AskedRows(forms[query].beats, ceiling, probing[query]) for query, ceiling in ceilings.items()]
            answers, cycles = self._accelerator.answers(
                image, asked, book=rounded.book if isinstance(rounded, RoundedTables) else None
            )  # fmt: skip
            counted.passes += len(asked)
            counted.cycles += cycles
            following = {}
            for query, answer in zip(ceilings, answers, strict=True):
                found = [row for key in answer.keys if (row := keys.parts(key)[1]) not in known[query]]
                known[query].update(found)
                counted.rescored += len(found)
                _score(request, query, lists, held, image.first * shape.units, np.array(found, np.int64))
                form = forms[query]
                bound = keys.parts(answer.dropped)[0] * form.unit + form.offset + form.error
                if answer.dropped and request.seen.floor(query) <= bound:
                    following[query] = answer.dropped
            ceilings = following


def _score(
    request: SearchRequest,
    query: int,
    lists: Sequence[ListScan],
    held: Sequence[Bytes],
    starts: Integers,
    found: Integers,
) -> None:
    """Scores rows of the image with the codec, and merges them into the best rows so far."""
    if not len(found):
        return
    scanner = request.codec.scanner()
    scanner.set_query(request.queries[query])
    owners = np.searchsorted(starts, found, side="right") - 1
    codes = np.concatenate([held[i][row : row + 1] for i, row in zip(owners, found - starts[owners], strict=True)])
    labels = np.array([lists[i].first for i in owners], np.int64) + found - starts[owners]
    seen = request.seen
    scanner.scan(codes, labels, seen.scores[query], seen.labels[query])


_UNITS, _RESULTS = 8, 32
"""Scoring units, and places of the last queue, if nothing else is asked for."""

_MOST = 1 << 10
"""Most scoring units and most places."""

_SAMPLE = CodecSpec("pq", 128, 16)
_SAMPLE_LISTS = (1 << 14,) * 16
"""What `profile` scans for a request: 4 MB of codes of 16 bytes in 16 lists."""

_SIMULATE = {"yes": True, "no": False}


class FpgaDevice(LimitedDevice):
    """Holds lists behind Chameleon's published network (100 Gbit/s, 10 microseconds), and counts the cycles of a design
    in hardware.

    Without `simulate` the host searches, and a model gives the cycles. With it the design runs as a compiled
    simulation, and the host scores exactly the rows that it finds. Counters: `modelled.queries`, `.seconds`, `.joules`;
    `simulated.queries` (again if asked again), `.cycles`, `.rescored`."""

    kind = "modelled fpga on"

    def __init__(
        self,
        memory: MemoryBudget,
        *,
        cap: int | str = 64 << 20,
        bandwidth: float | str = 12.5e9,
        latency: float | str = 10e-6,
        units: int | str = _UNITS,
        results: int | str = _RESULTS,
        simulate: bool | str = False,
        trace: Trace | None = None,
    ) -> None:
        """`units` score codes side by side, a power of two; a search for more than `results` takes several passes; to
        `simulate` needs the extra `fpga` and a C++ compiler."""
        if isinstance(simulate, str):
            if simulate not in _SIMULATE:
                raise ConfigError(f"the option simulate of device fpga is yes or no, not {simulate!r}")
            simulate = _SIMULATE[simulate]
        self.units = int(number("fpga", "units", units, 1, _MOST, whole=True))
        self.results = int(number("fpga", "results", results, 1, _MOST, whole=True))
        self.kept = queue_length(self.results, self.units)
        try:
            shape_for(_SAMPLE, self.units, self.results, self.kept)
        except RangeError as error:
            raise ConfigError(f"this fpga cannot be built: {error}") from None
        if simulate:
            from edge.devices.fpga.simulation import missing

            if reason := missing():
                raise CapabilityError(f"the fpga cannot be simulated here, because {reason}")
            self.kind = "simulated fpga on"
        super().__init__(memory, cap=cap, bandwidth=bandwidth, latency=latency, trace=trace)
        self.hardware = (
            f"design of {self.units} units for {CHIP}: cycles {'simulated' if simulate else 'modelled'}, clock of "
            f"{GOAL / 1e6:.0f} MHz and memory of {BUS / 8 * GOAL / 1e9:g} GB/s assumed; never run on a board"
        )
        self._trace = trace or Trace()
        self._host = memory
        self._simulated: dict[Shape, SimulatedSearch] | None = {} if simulate else None
        self._building = threading.Lock()

    def shape(self, spec: CodecSpec) -> Shape:
        """The design for a codec. CapabilityError if it does not fit the chip."""
        shape = shape_for(spec, self.units, self.results, self.kept)
        if (reason := refusal(shape)) is not None:
            fewer = (2**power for power in reversed(range(self.units.bit_length() - 1)))
            fitting = next((n for n in fewer if refusal(replace(shape, units=n)) is None), 0)
            remedy = f"with units={fitting} it fits" if fitting else "no number of units makes it fit; take sq8 or flat"
            raise CapabilityError(
                f"the fpga does not hold a design of {self.units} units for {spec.name} codes of {spec.code_size} "
                f"bytes: on {CHIP} it takes {reason}; {remedy}"
            )
        return shape

    def search(self, request: SearchRequest) -> Candidates:
        """Scans with the design or on the host, and counts the accelerator's time and energy for the same lists."""
        spec, width = request.codec.spec, request.seen.scores.shape[1]
        rows: list[list[int]] = [[] for _ in request.queries]
        live = [0] * len(request.queries)
        for item in request.lists:
            for query in item.queries:
                rows[query].append(item.count)
                live[query] += item.count if item.rows is None else len(item.rows)
        shape = self.shape(spec)
        passes = math.ceil(width / self.results)  # over the same rows, if the queues do not hold all results
        probing = [lists for lists in rows if lists]
        self._trace.count("modelled.queries", len(probing))
        self._trace.count("modelled.seconds", cycles(shape, probing * passes, bus=BUS) / GOAL)
        scanned = [own * passes * spec.code_size for lists, own in zip(rows, live, strict=True) if lists]
        self._trace.count("modelled.joules", joules(scanned))
        if self._simulated is None:
            return super().search(request)
        if probing:
            counted = self._simulate(request)
            self._trace.count("simulated.queries", counted.passes)
            self._trace.count("simulated.cycles", counted.cycles)
            self._trace.count("simulated.rescored", counted.rescored)
        return request.seen

    def profile(self, stage: str, load: int) -> Estimate:
        """Models stage `scan`: `load` queries that each scan 4 MB of codes of 16 bytes."""
        if stage != "scan":
            raise CapabilityError(f"device fpga profiles the stage scan, not {stage!r}")
        taken = cycles(self.shape(_SAMPLE), [_SAMPLE_LISTS] * load, bus=BUS) / GOAL
        return Estimate(taken, load / taken, sum(_SAMPLE_LISTS) * _SAMPLE.code_size, modelled=True)

    def _simulate(self, request: SearchRequest) -> Counted:
        from edge.devices.fpga.simulation import BUILD_NBYTES

        assert self._simulated is not None
        shape = self.shape(request.codec.spec)
        with self._building:  # a design is built once
            if shape not in self._simulated:
                with self._host.reserve("building the design's simulation", BUILD_NBYTES):
                    self._simulated[shape] = SimulatedSearch(shape, programs())
        nbytes = sum(item.count for item in request.lists) * request.codec.spec.code_size
        with self._host.reserve("words of the simulated design", _COPIES * nbytes):
            return self._simulated[shape].search(request)


_COPIES = 20
"""Bytes that a simulated search holds for each byte of codes: single bits as bytes, words, and the program's copies."""


def programs() -> Path:
    import platformdirs

    return platformdirs.user_cache_path("edge-rag", appauthor=False) / "fpga"
