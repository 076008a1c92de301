"""Simulated searches of the traversal engine: graphs in its memories, and what it finds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bench.hardware.traversal import COMPONENT, FETCH, VERTEX, TraversalEngine, TraversalShape
from edge.devices.fpga.simulation import Simulation, Words, packed, unpacked
from edge.errors import InputError, RangeError

_LONGEST = 1 << 24
"""Cycles after which a search has failed."""

LATENCY = 32
"""Cycles from a request to the first word of a memory. The thesis prints none; 160 ns at 200 MHz are usual for DDR4."""


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a simulated search, nearest first, and the cycles in which the controller waited for distances."""

    labels: tuple[int, ...]
    distances: tuple[int, ...]
    hops: int
    waits: int
    cycles: int


class GraphImage:
    """The words of the engine's memories: lists of neighbours, and vectors."""

    def __init__(self, vectors: npt.NDArray[np.int16], graph: Sequence[Sequence[int]], shape: TraversalShape) -> None:
        """
        Args:
            vectors: [n, dim] with a `dim` of 32 components for each beat.

        Raises:
            InputError: a vector or a list of neighbours does not fit its words.
        """
        lanes, room = 8 * FETCH // COMPONENT, shape.list_beats * 8 * FETCH // VERTEX
        if vectors.shape[1] != lanes * shape.beats or max(map(len, graph)) > room:
            raise InputError(f"vectors have {lanes * shape.beats} components and a vertex at most {room} neighbours")
        lists = np.full((len(graph), room), 0xFFFFFFFF, "<u4")
        for vertex, row in enumerate(graph):
            lists[vertex, : len(row)] = row
        self.lists: Words = lists.reshape(-1, FETCH // 4)
        self.vectors: Words = np.ascontiguousarray(vectors, "<i2").view("<u4").reshape(-1, FETCH // 4)


def engine(shape: TraversalShape, folder: Path, *, level: int = 1) -> Simulation:
    """The engine as a program.

    Raises:
        CapabilityError: a tool is missing or fails.
    """
    memories = {"lists": "neighbours"} | {f"fetch__{i}": f"words__{i}" for i in range(shape.units)}
    return Simulation(TraversalEngine(shape), folder, memories=memories, level=level)


def traversed(
    design: Simulation,
    shape: TraversalShape,
    image: GraphImage,
    query: npt.NDArray[np.int16],
    groups: int,
    candidates: int,
    *,
    stall: float = 0.0,
) -> Found:
    """Searches a graph for the vertices nearest to a query [dim], from vertex 0 on.

    Raises:
        RangeError: the shape has no room for so many groups or candidates.
    """
    if not 1 <= groups <= shape.groups or not 1 <= candidates <= shape.candidates:
        raise RangeError(f"{groups} groups of {candidates} candidates do not fit {shape.groups} of {shape.candidates}")
    beats = np.ascontiguousarray(query, "<i2").reshape(shape.beats, -1)
    bits = max(1, (max(2, shape.beats) - 1).bit_length())
    asked = packed(
        [i | int.from_bytes(beat.tobytes(), "little") << bits for i, beat in enumerate(beats)], 8 * FETCH + bits
    )
    given = {
        "query": asked,
        "start": packed([groups << VERTEX | candidates << VERTEX + 8], VERTEX + 16),
        "neighbours": image.lists,
    }
    given |= {f"words__{i}": image.vectors for i in range(shape.units)}
    run = design.run(given, {"results": shape.results}, limit=_LONGEST, latency=LATENCY, stall=stall)
    width = shape.width
    rows = unpacked(run.words["results"])
    kept = [row & (1 << width) - 1 for row in rows]
    kept = [key for key in kept if key != (1 << width) - 1]
    return Found(
        tuple(key & (1 << VERTEX) - 1 for key in kept), tuple(key >> VERTEX for key in kept),
        rows[-1] >> width & 0xFFFFFFFF, rows[-1] >> width + 32 & 0xFFFFFFFF, run.cycles,
    )  # fmt: skip
