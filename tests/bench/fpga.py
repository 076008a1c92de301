"""`fpga`: design points of the search accelerator, simulated beside the model of its cycles, the loss of truncated
queues beside their bound.

Nothing here is a time of this machine: cycles are counted by the simulated designs.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from bench.figures import Column, Figure, tabulate
from bench.options import Names, NewFolder, Output, benchmark, stated
from bench.process import say
from bench.synthesis import placed, synthesized
from edge.devices.fpga.device import AskedRows, Image, SimulatedAccelerator, programs, shape_for
from edge.devices.fpga.shape import (
    ADDRESS,
    BUS,
    ENTRY,
    GOAL,
    REPORTS,
    SCORE,
    Shape,
    Synthesized,
    cycles,
    levels,
    refusal,
    resources,
)
from edge.devices.fpga.simulation import component_of
from edge.devices.searchers import queue_length
from edge.ivf.base import CodecSpec

SHAPES = (
    Shape("pq", 16, 4, units=4, results=8, kept=6, builders=4, lanes=4),
    Shape("pq", 16, 4, units=2, results=10, kept=5, builders=2, lanes=4, lists=16, probed=3, centroids=2),
    Shape("pq", 32, 8, units=4, results=10, kept=5, builders=1, lanes=4),
    Shape("pq", 32, 8, units=1, results=10, kept=10, builders=2, lanes=2),
    Shape("bytes", 16, 0, units=4, results=8, kept=6, lanes=8),
    Shape("bytes", 64, 0, units=2, results=10, kept=6, lanes=8),
)
"""Designs. Each runs every workload, so that there are 36 points."""

WORKLOADS: tuple[tuple[int, int, int], ...] = (
    (1, 1, 60), (1, 3, 300), (4, 2, 40), (4, 3, 900), (8, 1, 3000), (6, 3, 8),
)  # fmt: skip
"""Queries, lists that each of them scans, and mean rows of a list."""

LATENCY = 20
"""Cycles of the memory of codes."""


Row = tuple[str, dict[str, float]]


def points(folder: Path, shapes: Sequence[Shape] = SHAPES, *, level: int = 1) -> Iterator[Row]:
    """The cycles of random lists and queries through each design, and how far the modelled ones are from them. Rows of
    lists differ by up to a half."""
    for number, shape in enumerate(shapes):
        random = np.random.default_rng(number)
        accelerator = SimulatedAccelerator(shape, folder, level=level)
        code, beats = (shape.parts, 1) if shape.codec == "pq" else (shape.dim, shape.row_words)
        book = random.integers(-127, 128, (shape.parts, 256, shape.dim // shape.parts)) if shape.parts else None
        for queries, probed, mean in WORKLOADS:
            count = shape.lists or 2 * probed
            sizes = (mean * random.uniform(0.5, 1.5, count)).astype(int).tolist()
            lists = [random.integers(0, 256, (rows, code)).astype(np.uint8) for rows in sizes]
            image = Image.of([(codes, None) for codes in lists], shape.units, code // beats, beats)
            centroids = random.integers(0, 256, (shape.lists, shape.dim)).astype(np.uint8) if shape.lists else None
            asked, scanned = [], []
            for _ in range(queries):
                query = random.integers(-(1 << 15), 1 << 15, shape.dim)
                own = random.permutation(count)[:probed].tolist()
                if centroids is not None:
                    scores = centroids.astype(np.int64) @ query >> max(0, ENTRY + 9 + levels(shape.dim) - SCORE)
                    own = sorted(range(count), key=lambda i: (-scores[i], i))[: shape.probed]
                asked.append(AskedRows(query, (1 << shape.keys.width) - 1, own))
                scanned.append([sizes[i] for i in own])
            taken = accelerator.answers(image, asked, book=book, centroids=centroids, latency=LATENCY)[1]
            name = f"design {number + 1}, {queries} x {probed} lists of {mean}"
            modelled = cycles(shape, scanned, LATENCY)
            yield name, {"simulated": taken, "modelled": modelled, "error": abs(modelled / taken - 1)}


def losses(folder: Path, queries: int) -> Iterator[Row]:
    """Random rows through queues as long as the bound says and shorter ones. A query has lost a row if its largest
    dropped key is above its last result."""
    units, results = 4, 10
    bound = queue_length(results, units)
    for kept in (bound - 2, bound - 1, bound):
        shape = Shape("bytes", 8, 0, units=units, results=results, kept=kept, lanes=8)
        random = np.random.default_rng(kept)
        accelerator = SimulatedAccelerator(shape, folder)
        rows = random.integers(0, 256, (400, 8)).astype(np.uint8)
        image = Image.of([(rows, None)], units, 8, 1)
        asked = [
            AskedRows(random.integers(-(1 << 15), 1 << 15, 8), (1 << ADDRESS + SCORE) - 1, [0]) for _ in range(queries)
        ]
        answers = accelerator.answers(image, asked)[0]
        lost = sum(answer.dropped > answer.keys[-1] or len(answer.keys) < results for answer in answers)
        yield f"queues of {kept}, {bound} by the bound", {"lost": lost / queries}


WHOLE = Shape("pq", 32, 8, units=2, results=8, kept=5, lanes=4, lists=32, probed=4)
"""The whole pipeline, which chooses its lists itself."""

SMALL = Shape("pq", 16, 4, units=1, results=4, kept=4, lanes=4, lists=8, probed=2)
"""The whole pipeline, as small as can be."""

SYNTHESIZED = (
    SMALL,
    WHOLE,
    Shape("pq", 64, 16, units=2, results=10, kept=6, lanes=4),
    Shape("pq", 32, 8, units=2, results=10, kept=6, lanes=4),
    Shape("pq", 64, 16, units=1, results=10, kept=10, lanes=4),
    Shape("pq", 64, 16, units=4, results=10, kept=5, lanes=4),
    Shape("pq", 64, 16, units=4, results=10, kept=5, builders=2, lanes=4),
    Shape("pq", 32, 8, units=4, results=10, kept=5, lanes=4),
    Shape("pq", 32, 8, units=8, results=10, kept=4, lanes=4),
    Shape("pq", 64, 32, units=2, results=10, kept=6, builders=2, lanes=2),
    Shape("bytes", 64, 0, units=2, results=10, kept=6, lanes=8),
    Shape("bytes", 128, 0, units=4, results=10, kept=5, lanes=8),
    Shape("bytes", 64, 0, units=4, results=20, kept=8, lanes=4),
    Shape("bytes", 64, 0, units=2, results=10, kept=6, lanes=4, lists=64, probed=4),
    Shape("pq", 64, 16, units=2, results=20, kept=10, builders=2, lanes=4, lists=64, probed=4),
)
"""Designs that the model of resources is fitted to."""


BOARDS = {
    f"{name}-{dim}-{code}-{units}-{results}": shape_for(
        CodecSpec(name, dim, code), units, results, queue_length(results, units)
    )
    for name, dim, code, units, results in (
        ("sq8", 384, 384, 2, 10), ("sq8", 384, 384, 2, 32), ("sq8", 384, 384, 8, 32), ("sq8", 384, 384, 32, 32),
        ("pq", 128, 16, 1, 10), ("pq", 384, 96, 1, 10), ("pq", 384, 96, 8, 32),
    )
}  # fmt: skip
"""Designs with pins and two buses, by codec, components, bytes of a code, scoring units and results."""


def boards(names: Sequence[str], folder: Path, seeds: Sequence[int]) -> Iterator[Figure]:
    """What each takes of the chip, its clock by seed, and the bytes of codes a second that it asks for and gets; and
    what those would take that do not fit."""
    from bench.board import Board

    parts = {
        "luts": Column("look-up tables", ""),
        "blocks": Column("memory blocks", ""),
        "multipliers": Column("multipliers"),
    }
    columns = {
        **parts, "clock": Column("clock", "/s"), "asks": Column("codes asked for", "B/s"),
        "gets": Column("codes from the bus", "B/s"),
    }  # fmt: skip
    rows: dict[str, dict[str, Any]] = {}
    for name in names:
        shape, own = BOARDS[name], folder / name
        if refusal(shape) is not None:
            yield from tabulate({name: asdict(resources(shape))}, parts, "does not fit")
            continue
        own.mkdir(parents=True, exist_ok=True)
        taken, clocks = asdict(synthesized(Board(shape), own)), []
        for seed in seeds:
            clocks.append(placed(own, GOAL, seed=seed))
            say(f"{name}, seed {seed}: {clocks[-1] / 1e6:.1f} MHz")
        asks, gives = (bits / 8 * statistics.median(clocks) for bits in (shape.word, BUS))
        rows[name] = taken | {"clock": clocks, "asks": asks, "gets": min(asks, gives)}
    yield from tabulate(rows, columns, "with pins and two buses")


def synthesize(file: Path) -> list[Synthesized]:
    """Synthesizes the designs. Each one is stored when it is done."""
    found: list[Synthesized] = []
    for shape in SYNTHESIZED:
        with tempfile.TemporaryDirectory() as folder:
            taken = synthesized(component_of(shape), Path(folder))
            found.append(Synthesized(shape, taken))
        file.write_text(stored(found))
    return found


def stored(designs: Sequence[Synthesized]) -> str:
    """The file of synthesized designs, a line for each."""
    rows = [{"shape": asdict(design.shape), "resources": asdict(design.resources)} for design in designs]
    head = {"tools": "yosys (yowasp), synth_ecp5 -nowidelut", "command": COMMAND}
    lines = ",\n".join("  " + json.dumps(row) for row in rows)
    return json.dumps(head)[:-1] + ', "designs": [\n' + lines + "\n]}\n"


COMMAND = "nice python -m tests.bench fpga --only synthesis"


@benchmark
def fpga(
    *,
    only: Annotated[str, "cycles, truncation, synthesis or boards; the first two if not given."] = "",
    board: Annotated[Sequence[str], Names(BOARDS), "Designs that are placed with pins."] = tuple(BOARDS),
    seeds: Annotated[str, "Placements of each, with commas between them."] = "1,2,3",
    work_dir: Annotated[NewFolder, "Where designs and placements are made and kept."] = Path("bench"),
    queries: Annotated[int, "Searches that are checked for lost rows."] = 2000,
    output: Output,
) -> None:
    """Runs designs of the search accelerator in their simulation, and counts cycles and lost rows."""
    if only == "synthesis":
        made = synthesize(REPORTS)
        output.put({"designs": len(made)}, [], f"{len(made)} designs are in {REPORTS}")
        return
    if only == "boards":
        found = list(boards(board, work_dir / "boards", [int(seed) for seed in seeds.split(",")]))
        output.put({"seeds": seeds}, found, stated({"seeds": seeds}))
        return
    folder = programs()
    wanted = {only} if only else {"cycles", "truncation"}
    given = dict(points(folder)) if "cycles" in wanted else {}
    lost = dict(losses(folder, queries)) if "truncation" in wanted else {}
    result: dict[str, Any] = {"latency": LATENCY, "queries": queries}
    if given:
        errors = sorted(row["error"] for row in given.values())
        result |= {"points": len(given), "median_error": statistics.median(errors), "worst_error": errors[-1]}
    columns = {
        "simulated": Column("simulated cycles"), "modelled": Column("modelled cycles"), "error": Column("error", "%"),
    }  # fmt: skip
    shares = tabulate(lost, {"lost": Column("searches that lose a row", "%")}, "truncation")
    output.put(result, [*tabulate(given, columns, "cycles"), *shares], stated(result))
