"""The host's side of the accelerator: codes and queries in integers, lists in words of its memory, and exact results of
rows that it finds by rounded scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.devices.faiss_codec import turn_of
from edge.devices.fpga.shape import ADDRESS, CODES, ENTRY, Shape, address_bits, levels
from edge.ivf.base import Bytes, CodecSpec, Vectors
from edge.ivf.device import ListScan, SearchRequest

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
