"""`searchers`: queues by the bound, and several searchers beside one (Chameleon)."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Annotated, Any

import click
import numpy as np
import numpy.typing as npt

from bench.figures import Figure, lower, neither, tabulate
from bench.options import Names, Output, benchmark, numbers
from bench.process import measure, say, timed
from bench.vectors import opened_index
from edge.budget import MemoryBudget
from edge.config import parse_size
from edge.devices.searchers import queue_length
from edge.errors import EdgeError
from edge.ivf.base import RESCORE
from edge.ivf.index import IndexOptions
from edge.trace import Trace

_CODECS = ("flat", "sq8", "pq")
_RESULTS = (10, 100)
_QUEUES = (2, 4, 8, 16, 32, 64)
_SIMULATED = 100_000
_SIMULATED_AT_ONCE = 10_000
"""Number of searches whose queues are in memory at a time."""

_MEMORY = parse_size("4GB")
_DIM = 64
_CENTRES = 200
_SPREAD = 0.5
_LIST_ROWS = 312
_PROBED = 24
_FOUND = 10
_ADDED = 20_000
"""The searched index: of made-up vectors, `_ADDED` at a time. A search probes `_PROBED` lists for `_FOUND` rows."""

Floats = npt.NDArray[np.float32]


@benchmark
def searchers(
    *,
    counts: Annotated[Sequence[int], numbers(1, 64), "Numbers of searchers."] = (1, 2, 4, 8),
    of: Annotated[str, "Kind of the searchers, as in `--device searchers`."] = "remote",
    codecs: Annotated[Sequence[str], Names(_CODECS), "Codecs of the lists: flat, sq8, pq."] = _CODECS[1:],
    rows: Annotated[int, click.IntRange(5000), "Made-up vectors."] = 40_000,
    queries: Annotated[int, click.IntRange(2), "Measured searches."] = 200,
    output: Output,
) -> None:
    """Search with several searchers behind a coordinator, and compare the results with those of the host alone.

    Before that, the queue lengths of the bound are simulated. Exit code 2 if a result differs.
    """
    report: dict[str, Any] = {"queues": queue_rows(_RESULTS, _SIMULATED), "searches": []}
    for codec in codecs:
        say(f"searching with codec {codec}")
        task = {"name": codec, "codec": codec, "of": of, "counts": counts, "rows": rows, "queries": queries}
        report["searches"] += measure(work, task, threads=1)["rows"]
    shown = f"queues that lose nothing in 99 of 100 searches ({_SIMULATED:,} simulated)"
    output.put(report, figures(report), shown)
    if not all(row["identical"] for row in report["searches"]):
        raise EdgeError("the searchers changed what was found")


def queue_rows(results: Sequence[int], searches: int) -> list[dict[str, Any]]:
    rows = []
    for count in results:
        for queues in _QUEUES:
            length = queue_length(count, queues)
            lost, shorter = (
                simulated_loss(count, queues, each, searches=searches, seed=queues) for each in (length, length - 1)
            )
            rows.append({"results": count, "queues": queues, "length": length, "lost": lost, "lost_shorter": shorter})
    return rows


def simulated_loss(results: int, queues: int, length: int, *, searches: int, seed: int) -> float:
    """Share of simulated searches in which a queue of this length drops one of the best `results`: a check of the bound
    of `queue_length`."""
    random = np.random.default_rng(seed)
    lost = 0
    for start in range(0, searches, _SIMULATED_AT_ONCE):
        count = min(_SIMULATED_AT_ONCE, searches - start)
        held = random.multinomial(results, np.full(queues, 1 / queues), size=count)
        lost += int((held.max(axis=1) > length).sum())
    return lost / searches


def figures(report: dict[str, Any]) -> Iterator[Figure]:
    queues = {f"{row['results']} results, {row['queues']} queues": row for row in report["queues"]}
    lengths = {"length": lower("length", ""), "lost": lower("lost", "%"), "lost_shorter": neither("one shorter", "%")}
    yield from tabulate(queues, lengths, "searches that lose a result")
    searches = {f"{row['codec']}, {row['searchers'] or 'host'}": row for row in report["searches"]}
    found = {
        "median_s": lower("median", "s"),
        "asked": neither("asked"),
        "again": neither("asked again"),
        "queue": neither("queue"),
    }
    yield from tabulate(searches, found, "searches by codec and number of searchers")


def work(task: dict[str, Any]) -> dict[str, Any]:
    random = np.random.default_rng(3)
    centres = random.standard_normal((_CENTRES, _DIM), np.float32)
    with tempfile.TemporaryDirectory() as folder:
        budget = MemoryBudget(_MEMORY)
        options = IndexOptions(codec=task["codec"], flat_limit=0, list_rows=_LIST_ROWS)
        with opened_index(Path(folder), _DIM, budget, options=options) as (index, database):
            for start in range(0, task["rows"], _ADDED):
                ids = np.arange(start, min(task["rows"], start + _ADDED))
                with database.write() as db:
                    index.add(db, ids, _near(centres, len(ids), random))
            index.maintain(database.write, full=True)
            with database.read() as db:
                nbytes = index.status(db).nbytes
        queries = _near(centres, task["queries"], random)
        expected: list[tuple[bytes, bytes]] = []
        rows = []
        for count in (0, *task["counts"]):  # 0 stands for the host
            row, found = _run(Path(folder), budget, options, queries, count, nbytes, task)
            expected = expected or found
            rows.append({"codec": task["codec"], **row, "identical": found == expected})
    return {"rows": rows}


def _run(
    folder: Path, budget: MemoryBudget, options: IndexOptions, queries: Floats, count: int, nbytes: int,
    task: dict[str, Any],
) -> tuple[dict[str, Any], list[tuple[bytes, bytes]]]:  # fmt: skip
    from edge.devices.searchers import SearchersDevice

    trace = Trace()
    kept = _FOUND if task["codec"] == "flat" else RESCORE * _FOUND
    length = queue_length(kept, count) if count else kept
    place = SearchersDevice(budget, of=task["of"], count=count, cap=nbytes, trace=trace) if count else None
    given: dict[str, Any] = {"trace": trace, "options": options, "place": place, "threads": 1}
    with (
        closing(place) if place else nullcontext(),
        opened_index(folder, _DIM, budget, **given) as (index, database),
        database.read() as db,
    ):

        def search(query: Floats) -> tuple[bytes, bytes]:
            found = index.search(db, query[None], _FOUND, nprobe=_PROBED)
            return found.ids.tobytes(), found.scores.tobytes()

        first = [search(query) for query in queries]
        before = trace.snapshot()
        again, seconds = timed(search, queries)
        counted = trace.since(before)
    return {
        "searchers": count, "median_s": statistics.median(seconds), "queue": length,
        "asked": int(counted.get("searchers.asked", 0)), "again": int(counted.get("searchers.again", 0)),
    }, first + again  # fmt: skip


def _near(centres: Floats, count: int, random: np.random.Generator) -> Floats:
    """Unit vectors [count, dim] around random centres."""
    rows = centres[random.integers(len(centres), size=count)]
    rows = rows + _SPREAD * random.standard_normal(rows.shape, np.float32)
    unit: Floats = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return unit
