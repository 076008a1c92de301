"""`searchers`: queues by the bound, shares of devices, and several searchers beside one (Chameleon)."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
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

_DEVICES = 1000
"""Number of devices that figure 4.10 divides."""

_FIXED = (("1:4", 0.2), ("1:1", 0.5), ("4:1", 0.8))
"""Ratios of generating to retrieving devices that do not depend on the workload, and the share that generates."""

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

SHARES: Sequence[tuple[str, float, float]] = (
    ("Dec-S", 0.16, 53.7), ("EncDec-S, interval 8", 2.37, 77.1), ("EncDec-S, interval 64", 14.9, 94.1),
    ("Dec-L", 0.78, 64.0), ("EncDec-L, interval 8", 14.1, 93.8), ("EncDec-L, interval 64", 98.0, 99.0),
)  # fmt: skip
"""Ratio of generation time to retrieval time in an interval, and percentage of generating devices: figure 4.10. The
times are not published. They follow from the percentages, so the comparison is circular."""


@dataclass(frozen=True, slots=True)
class Alternation:
    """Generation of a `batch` of sequences that waits for a retrieval every `interval` tokens. `step` and `retrieval`
    are the seconds of a token and of a retrieval for the batch on one device."""

    interval: int
    batch: int
    step: float
    retrieval: float

    def throughput(self, generating: int, retrieving: int) -> float:
        """Tokens per second. A generating device waits while it retrieves, and the slower side sets the rate."""
        tokens = self.interval * self.batch
        write = tokens * generating / (self.interval * self.step + self.retrieval)
        return min(write, tokens * retrieving / self.retrieval)

    @property
    def generating_share(self) -> float:
        """The best share of generating devices, between a half and one."""
        generation = self.interval * self.step
        return (generation + self.retrieval) / (generation + 2 * self.retrieval)

    def efficiency(self, share: float) -> float:
        """Throughput if this share of many devices generates, as a part of the highest throughput."""
        generation = self.interval * self.step
        rate = min(share / (generation + self.retrieval), (1 - share) / self.retrieval)
        return rate * (generation + 2 * self.retrieval)


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

    Before that, the queue lengths of the bound are simulated, and the best division of devices is compared with trying
    every one. Exit code 2 if a result differs.
    """
    report: dict[str, Any] = {"queues": queue_rows(), "shares": share_rows(), "searches": []}
    for codec in codecs:
        say(f"searching with codec {codec}")
        task = {"name": codec, "codec": codec, "of": of, "counts": counts, "rows": rows, "queries": queries}
        report["searches"] += measure(work, task, threads=1)["rows"]
    shown = f"queues that lose nothing in 99 of 100 searches ({_SIMULATED:,} simulated); shares of {_DEVICES} devices"
    output.put(report, figures(report), shown)
    if not all(row["identical"] for row in report["searches"]):
        raise EdgeError("the searchers changed what was found")


def queue_rows(results: Sequence[int] = _RESULTS, searches: int = _SIMULATED) -> list[dict[str, Any]]:
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


def share_rows() -> list[dict[str, Any]]:
    """The workloads of figure 4.10: the share by the closed form, the best of all divisions, and fixed ratios."""
    rows = []
    for name, ratio, published in SHARES:
        work = Alternation(1, 1, ratio, 1.0)
        rates = [work.throughput(count, _DEVICES - count) for count in range(1, _DEVICES)]
        best = 1 + int(np.argmax(rates))
        fixed = {label: work.efficiency(share) for label, share in _FIXED}
        rows.append({
            "workload": name, "published": published / 100, "closed_form": work.generating_share,
            "best_of_all": best / _DEVICES, "efficiency": fixed,
        })  # fmt: skip
    return rows


def figures(report: dict[str, Any]) -> Iterator[Figure]:
    queues = {f"{row['results']} results, {row['queues']} queues": row for row in report["queues"]}
    lengths = {"length": lower("length", ""), "lost": lower("lost", "%"), "lost_shorter": neither("one shorter", "%")}
    yield from tabulate(queues, lengths, "searches that lose a result")
    shares = {row["workload"]: row for row in report["shares"]}
    columns = {
        "published": neither("published", "%"), "closed_form": neither("by the formula", "%"),
        "best_of_all": neither("best of all", "%"),
        **{f"efficiency.{ratio}": neither(f"of the best rate at {ratio}", "%") for ratio, _ in _FIXED},
    }  # fmt: skip
    yield from tabulate(shares, columns, "share of devices that generate")
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
