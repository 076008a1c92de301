"""`placement`: answers that begin within a deadline while lists and documents' states want the same memory
(VectorLiteRAG).

Lists are on a slow place, and a state that is not in memory has to be computed. Both crossings are modelled links with
the rates of a disk and of a prefill. The caches, the ledger, the line of waiting searches and the placement are real.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import click
import numpy as np

from bench.figures import Column, Figure, tabulate
from bench.load import ATTAINED, Arrival, attained, drawn, opened
from bench.options import Base, Count, Output, VectorsDir, benchmark, stated
from bench.process import measure, say
from bench.vectors import Floats, VectorSet, filled, opened_index
from edge.budget import MemoryBudget
from edge.cache.residency import Residency
from edge.config import parse_size
from edge.devices.cpu import CpuDevice
from edge.errors import EdgeError
from edge.ivf import plan
from edge.ivf.base import Snapshot
from edge.ivf.index import IndexOptions
from edge.ivf.placement import Asked, hit_rate
from edge.ivf.plan import probe
from edge.ivf.search import IndexSearcher
from edge.link import Lane
from edge.trace import Trace

_BUILD_MEMORY = 2 << 30
_K = 10
_CODEC = "sq8"
_NOISE = 0.15
"""Length of the difference of two questions about one topic, beside questions of length 1."""

_PASSING = 2 << 20
"""Bytes of lists in memory for the searches that run, where no list stays."""

_THREADS = 24
"""As many searches as a server works on at a time. Others wait for a thread."""

ARMS: dict[str, dict[str, Any]] = {
    "none": {"share": 0.0, "passing": True}, "all": {"share": 1.0}, "ledger": {},
    "placed": {"placed": True, "loss": -1.0}, "placed+cut": {"placed": True}, "30% held": {"share": 0.3},
}  # fmt: skip
"""The arms. `none`: a search's lists leave memory after it; `all`: those that fit stay; `ledger`:
caches give way by the seconds that they save for each byte; `placed`: the smallest share for the deadline stays;
`placed+cut`: and a search's last lists are left out if they would come too late."""


def index_of(work_dir: Path, rows: int, base: Path | None, topics: int, list_rows: int) -> tuple[VectorSet, Path]:
    """A set of vectors whose queries are the topics, and the folder of its index; made unless they exist."""
    made = VectorSet.made(work_dir / f"placement-{rows}-{topics}", rows=rows, queries=topics, base=base)
    folder = made.folder / f"index-{_CODEC}-{list_rows}"
    options = IndexOptions(codec=_CODEC, flat_limit=0, list_rows=list_rows)
    filled(folder, made.dim, MemoryBudget(_BUILD_MEMORY), made.blocks, options)
    return made, folder


@benchmark
def placement(
    *,
    rates: Annotated[str, "Arrivals a second, with commas between them."] = "2,4,6,8,12,16",
    within: Annotated[float, "Deadline of an answer's beginning in seconds."] = 0.8,
    search_within: Annotated[float, "Deadline of its search, for the placement."] = 0.4,
    seconds: Annotated[float, "Length of each load."] = 20.0,
    warmup: Annotated[int, "Searches before it; the placement is chosen after 128."] = 300,
    memory: Annotated[str, "For lists, states and the work of searches together."] = "64MB",
    bandwidth: Annotated[str, "Of the place of the lists, per second."] = "10MB",
    prefill: Annotated[str, "Bytes of states that are computed in a second."] = "10MB",
    state: Annotated[str, "The states of a topic's documents; 0 for none."] = "2MB",
    rows: Count = 200_000,
    list_rows: Annotated[Count, "Vectors per list that training aims at."] = 256,
    nprobe: Count = 16,
    topics: Count = 300,
    base: Base = None,
    work_dir: VectorsDir = Path("bench"),
    output: Output,
) -> None:
    """Search under open loads, with the memory split by the ledger, by a placement, or by a fixed share."""
    made, folder = index_of(work_dir, rows, base, topics, list_rows)
    try:
        given = [float(part) for part in rates.split(",")]
    except ValueError:
        raise click.BadParameter("rates are numbers with commas between them") from None
    common = {
        "set": str(made.folder), "folder": str(folder), "seconds": seconds, "warmup": warmup, "within": within,
        "search_within": search_within, "memory": parse_size(memory),
        "bandwidth": parse_size(bandwidth), "prefill": parse_size(prefill),
        "state": parse_size(state) if state != "0" else 0, "nprobe": nprobe,
    }  # fmt: skip
    found: dict[str, dict[str, Any]] = {}
    for rate in given:
        for name, arm in ARMS.items():
            say(f"{rate:g} a second: {name}")
            found.setdefault(f"{rate:g} a second", {})[name] = measure(
                work, {**common, **arm, "name": name, "rate": rate}, threads=1
            )
    for arms_of in found.values():
        exact = arms_of["none"]["found"]
        for arm in arms_of.values():
            arm["recall"] = float(np.mean([
                len(set(own) & set(other)) / _K for own, other in zip(arm["found"], exact, strict=True)
            ]))  # fmt: skip
    conditions = {**common, "rows": rows, "kind": made.kind, "topics": topics, "set": None, "folder": None}
    result = {"conditions": conditions, "rates": found}
    figures = [figure for rate, arms_of in found.items() for figure in tabulate(arms_of, _COLUMNS, table=rate)]
    output.put(result, [*figures, *_attained(found, given)], stated(conditions))
    if any(arm["recall"] < 1 for arms_of in found.values() for name, arm in arms_of.items() if name != "placed+cut"):
        raise EdgeError("the placement changed what was found")


_COLUMNS = {
    "kept": Column("answers begun in time", "%"), "searched": Column("searches in time", "%"),
    "p50": Column("search p50", "s"),
    "p95": Column("search p95", "s"), "first_p95": Column("with states p95", "s"),
    "hit_rate": Column("bytes of lists in memory", "%"), "of_held": Column("of those held", "%"),
    "expected": Column("as predicted", "%"), "held": Column("lists held", "B"),
    "read": Column("read for a search", "B"), "cut": Column("lists left out of a search"),
    "recall": Column("of what is found without a deadline", "%"),
}  # fmt: skip


def _attained(found: Mapping[str, Mapping[str, Any]], rates: Sequence[float]) -> list[Figure]:
    """For each arm the highest rate up to which 90 % of the searches keep the deadline."""
    names = next(iter(found.values()))
    rows = {name: {"rate": attained(rates, [arms[name]["kept"] for arms in found.values()])} for name in names}
    return list(tabulate(rows, ATTAINED, table="attained"))


def question(centres: Floats, topic: int, number: int) -> Floats:
    """The vector [1, dim] of a question about a topic. No two are equal."""
    random = np.random.default_rng(number)
    noise = random.standard_normal(centres.shape[1], np.float32)
    made = centres[topic] + noise * (_NOISE / np.linalg.norm(noise))
    return np.asarray(made[None] / np.linalg.norm(made), np.float32)


class States:
    """The states of topics' documents in a cache on the same ledger. Those that are missing are computed in turn."""

    def __init__(self, budget: MemoryBudget, nbytes: int, rate: float, trace: Trace) -> None:
        self._nbytes = nbytes
        self._lane = Lane("prefill", trace=trace, bandwidth_limit=rate)
        self._cache = Residency(budget, name="states", rate=self._lane.rate, trace=trace)

    def use(self, topic: int) -> None:
        """Returns when the states of a topic are there. Without room they are computed and forgotten."""

        def compute(buffer: Any) -> Any:
            return self._lane.submit(f"topic {topic}", lambda: buffer.fill(1) or self._nbytes, self._nbytes)

        now = self._cache.begin_round()
        handle = self._cache.claim([(topic, compute)], now)[0]
        handle = handle or self._cache.admit(topic, self._nbytes, compute, now)
        if handle is None:
            self._lane.submit(f"topic {topic}", lambda: self._nbytes, self._nbytes).wait()
            return
        with handle:
            handle.wait()

    def close(self) -> None:
        self._cache.close()
        self._lane.close()


@contextmanager
def opened_searcher(task: Mapping[str, Any], trace: Trace) -> Iterator[tuple[IndexSearcher, Snapshot, MemoryBudget]]:
    """The searcher of a task's index, with a limit of its own, whose lists cross a modelled link (`lists`)."""
    budget = MemoryBudget(task["memory"], part=True)
    options = IndexOptions(codec=_CODEC, flat_limit=0)
    within = task["search_within"] if task.get("placed") else 0.0
    folder, dim = Path(task["folder"]), VectorSet.stored(Path(task["set"])).dim
    with Lane("lists", trace=trace, bandwidth_limit=task["bandwidth"]) as lane:
        given = {"device": CpuDevice(budget, link=lane), "within": within, "trace": trace, "options": options}
        with opened_index(folder, dim, budget, read_only=True, **given) as (index, database):
            with database.read() as db:
                snapshot = index.snapshot(db)
            yield index._searcher, snapshot, budget


def work(task: dict[str, Any]) -> dict[str, Any]:
    centres = VectorSet.stored(Path(task["set"])).queries
    arrivals = drawn(task["rate"], task["seconds"], {"search": 1}, len(centres), seed=1)
    begun = 2 * task["warmup"] / task["rate"]
    before = drawn(task["rate"], begun, {"search": 1}, len(centres), seed=2)[: task["warmup"]]
    trace = Trace()
    plan.LOSS = task.get("loss", plan.LOSS)
    with opened_searcher(task, trace) as (searcher, snapshot, budget), ExitStack() as stack:
        states = States(budget, task["state"], task["prefill"], trace) if task["state"] else None
        if states is not None:
            stack.callback(states.close)
        if task.get("share"):
            _hold(searcher, snapshot, centres, task)
        if task.get("passing"):
            searcher.host.residency._capacity = _PASSING
        of = searcher, snapshot, centres, task["nprobe"], states
        asked(*of, [replace(one, number=(1 << 30) + one.number) for one in before])
        earlier = trace.snapshot()
        measured = asked(*of, arrivals)
        grown = trace.since(earlier)
        log, nbytes, mask = _replayable(searcher, snapshot, centres, arrivals, task["nprobe"])
        placed = searcher.placement
        expected = None if placed is None or placed.share is None else placed.share.hit_rate
        return {
            **measured,
            "kept": float((np.array(measured["first"]) <= task["within"]).mean()),
            "searched": float((np.array(measured["took"]) <= task["search_within"]).mean()),
            "hit_rate": 1 - grown.get("lists.bytes", 0) / sum(int(nbytes[one.lists].sum()) for one in log),
            "of_held": hit_rate(log, nbytes, mask),
            "expected": expected,
            "held": 0 if placed is None else placed.nbytes,
            "held_share": float(placed.nbytes / nbytes.sum()) if placed is not None else task.get("share", 0.0),
            "read": grown.get("lists.bytes", 0) / len(arrivals),
            "changes": grown.get("placement.changes", 0),
        }


def _replayable(
    searcher: IndexSearcher, snapshot: Snapshot, centres: Floats, arrivals: Sequence[Any], nprobe: int
) -> tuple[list[Asked], Any, Any]:
    """The measured searches as a placement logs them, the bytes of each list, and the lists that are held now."""
    nbytes = np.array([sum(part.nbytes for part in parts) for parts in snapshot.lists], np.int64)
    sample = [
        Asked(one.at, np.unique(probe(question(centres, one.topic, one.number), snapshot.centroids, nprobe)))
        for one in arrivals
    ]
    mask = np.zeros(len(nbytes), np.bool_)
    if searcher.placement is not None and searcher.placement.share is not None:
        mask[searcher.placement.share.lists] = True
    return sample, nbytes, mask


def _hold(searcher: IndexSearcher, snapshot: Snapshot, centres: Floats, task: Mapping[str, Any]) -> None:
    """Holds a fixed share of the lists, the hottest of another sample of the same traffic first."""
    arrivals = drawn(100.0, 10.0, {"search": 1}, len(centres), seed=3)
    sample, nbytes, _ = _replayable(searcher, snapshot, centres, arrivals, task["nprobe"])
    counts = np.bincount(np.concatenate([one.lists for one in sample]), minlength=len(nbytes))
    parts = [part for number in np.argsort(-counts, kind="stable") for part in snapshot.lists[number]]
    parts = parts[: round(task["share"] * len(parts))]
    searcher.host.residency.hold([(p.key, p.nbytes, searcher.host.fetch(p)) for p in parts], 4 << 20)


def asked(
    searcher: IndexSearcher, snapshot: Snapshot, centres: Floats, nprobe: int, states: States | None,
    arrivals: Sequence[Arrival],
) -> dict[str, Any]:  # fmt: skip
    """The times and results of questions that are sent when they arrive, whatever became of those before."""

    def ask(one: Arrival, at: float) -> tuple[float, float, list[int], int]:
        hits = searcher.search(snapshot, question(centres, one.topic, one.number), _K, nprobe=nprobe)
        took = time.perf_counter() - at
        if states is not None:
            states.use(one.topic)
        return took, time.perf_counter() - at, hits.ids[0].tolist(), hits.lists_cut

    took, first, found, cut = zip(*opened(arrivals, ask, _THREADS), strict=True)
    return {
        "took": took, "first": first, "found": found,
        "p50": float(np.quantile(took, 0.5)), "p95": float(np.quantile(took, 0.95)),
        "first_p95": float(np.quantile(first, 0.95)), "cut": float(np.mean(cut)),
    }  # fmt: skip
