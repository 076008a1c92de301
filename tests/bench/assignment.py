"""`assignment`: throughput of throttled copies of a shard that keep a sixth of its lists, predicted and measured, with
the copy of each request chosen in turn, by hashing, and by the lists that the copies hold (TeleRAG, section 4.2).

Requests are sent by the code that asks shards. The lists, the caches and the searches are real. The link from which a
copy reads lists is a modelled one, and all copies are in one process.
"""

from __future__ import annotations

import heapq
import itertools
import json
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any

import click
import numpy as np
import numpy.typing as npt

from bench.devices import PROBED
from bench.figures import higher, neither, tabulate
from bench.options import Count, Output, benchmark, numbers, stated
from bench.process import measure, say
from bench.rag_index import IndexData
from bench.rag_index import opened as opened_index
from bench.rag_traces import PASSAGES, PIPELINES, SHIPPED
from edge.apps.cluster.calling import Assignment, Latencies, Reading
from edge.apps.cluster.catalogue import Replica
from edge.budget import MemoryBudget
from edge.cache.cached_block import DecayedHotness, charge_of
from edge.cache.lookahead import DemandShadow
from edge.devices.limited import LimitedDevice
from edge.errors import EdgeError
from edge.ivf.base import Quantizer, Snapshot, Vectors
from edge.ivf.dispatch import group, resident
from edge.ivf.plan import keys_of
from edge.ivf.search import IndexSearcher
from edge.runtimes.embedder import Embedder

Answer = tuple[bytes, bytes]

_PROCESS_MEMORY = 16 << 30
_WORKING_NBYTES = 64 << 20
"""Memory of a copy beside its lists."""

_WORDS = 5
"""Recorded texts of fewer words are judgements, and nobody searches for them."""

_ARMS = ("in turn", "hashed", "assigned")
_PATIENCE_S = 600.0


class _Alone(Latencies):
    """Never asks a second copy, so that only the choice of the copy differs."""

    @property
    def hedge_s(self) -> float:
        return _PATIENCE_S


def recorded_texts() -> list[str]:
    """The texts that a language model wrote in all steps of the six pipelines, as if those who asked the questions did
    so at the same time: the first text of each question, then the second one of each."""
    texts: dict[str, list[str]] = {}
    for pipeline in PIPELINES:
        for line in (SHIPPED / f"{pipeline}.jsonl").read_text("utf-8").splitlines()[1:]:
            record = json.loads(line)
            if len(record["text"].split()) >= _WORDS:
                texts.setdefault(f"{pipeline} {record['for']}", []).append(record["text"].strip())
    return [text for turn in itertools.zip_longest(*texts.values()) for text in turn if text]


def micro_batches(vectors: Vectors, waiting: int, size: int) -> list[bytes]:
    """The requests [n, dim] that searches become which wait together: those with similar queries."""
    return [
        some[rows].tobytes()
        for some in (vectors[start : start + waiting] for start in range(0, len(vectors), waiting))
        for rows in group(some, size)
    ]


@dataclass(frozen=True, slots=True)
class Load:
    """Requests, the clients that send them one after the other, and the copies that answer."""

    requests: Sequence[bytes]
    warmup: int
    clients: int
    copies: Sequence[Replica]
    snapshot: Snapshot
    nprobe: int
    capacity: int
    link: float

    def assignment(self) -> Assignment:
        """A new assignment, which knows nothing of the copies."""
        spec, centroids = self.snapshot.codec.spec, self.snapshot.centroids
        return Assignment(Quantizer(1, spec, centroids, ((self.nprobe, 1.0),)))

    def order(self, arm: str, number: int) -> list[Replica]:
        """The copies in the order of preference; of `assigned` among equals."""
        key = int.from_bytes(blake2b(self.requests[number], digest_size=8).digest()) if arm == "hashed" else number
        at = key % len(self.copies)
        return [*self.copies[at:], *self.copies[:at]]

    def queries(self, request: bytes) -> Vectors:
        return np.frombuffer(request, np.float32).reshape(-1, self.snapshot.dim)


class ThrottledPlaces:
    """Copies of a shard, each with a thread, a cache and a modelled link of its own."""

    def __init__(self, load: Load, memory: MemoryBudget, capacity: int) -> None:
        self._load = load
        self._stack = ExitStack()
        self._searchers, self._threads = [], []
        for _ in load.copies:
            device = LimitedDevice(memory, cap=capacity + _WORKING_NBYTES, bandwidth=load.link)
            self._stack.callback(device.close)
            self._searchers.append(IndexSearcher(device, capacity=capacity))
            self._stack.callback(self._searchers[-1].close)
            self._threads.append(self._stack.enter_context(ThreadPoolExecutor(1)))
        self.found: dict[bytes, list[list[int]]] = {}
        self.held = self.read = 0
        self._counting = threading.Lock()

    def send(self, replica: Replica, verb: str, head: bytes, raw: bytes) -> Future[Answer]:
        return self._threads[replica.number].submit(self._answer, self._searchers[replica.number], raw)

    def _answer(self, searcher: IndexSearcher, raw: bytes) -> Answer:
        load = self._load
        found = searcher.search(load.snapshot, load.queries(raw), PASSAGES, nprobe=load.nprobe)
        with self._counting:
            self.found[raw] = found.ids.tolist()
            self.held += found.hits
            self.read += found.lists_read
        return b"{}", np.packbits(resident(load.snapshot, [searcher.host])).tobytes()

    def close(self) -> None:
        self._stack.close()


def measured(load: Load, arm: str, memory: MemoryBudget) -> tuple[float, float, dict[bytes, list[list[int]]]]:
    """Requests per second after the warm-up, the share of the lists that were in memory, and what was found."""
    places = ThrottledPlaces(load, memory, load.capacity)
    assignment = load.assignment() if arm == "assigned" else None
    latencies = _Alone()

    def ask(number: int) -> None:
        reading = Reading(places, load.order(arm, number), 1, {}, latencies, _PATIENCE_S, assignment)  # type: ignore[arg-type]
        reading("gather", b"", load.requests[number])

    try:
        with ThreadPoolExecutor(load.clients) as clients:
            list(clients.map(ask, range(load.warmup)))
            places.held = places.read = 0
            began = time.perf_counter()
            list(clients.map(ask, range(load.warmup, len(load.requests))))
            seconds = time.perf_counter() - began
        share = places.held / max(1, places.held + places.read)
        return (len(load.requests) - load.warmup) / seconds, share, places.found
    finally:
        places.close()


class ModelledCopy:
    """A copy whose cache is simulated; it answers one request after the other. It knows no clock: times are given."""

    def __init__(self, load: Load, compute: float) -> None:
        self._load, self._compute = load, compute
        self._cache = DemandShadow({}, DecayedHotness())
        self._free = 0.0
        self._parts = {part.key: part for parts in load.snapshot.lists for part in parts}

    def answer(self, now: float, request: bytes) -> tuple[float, Answer]:
        """When the answer to a request that arrives now is there, and the answer."""
        keys = keys_of(self._load.snapshot, self._load.queries(request), self._load.nprobe)
        blocks = {key: charge_of(self._parts[key].nbytes) for key in keys}
        unread = self._cache.search(blocks, self._load.capacity, absent=(), seconds=lambda _: 0.0)
        read = sum(self._parts[key].nbytes for key in unread)
        self._free = max(self._free, now) + self._compute + read / self._load.link
        held = self._cache._held
        bits = np.array([all(part.key in held for part in parts) for parts in self._load.snapshot.lists])
        return self._free, (b"{}", np.packbits(bits).tobytes())


def predicted(load: Load, arm: str, compute: float) -> float:
    """Requests per second after the warm-up, by events and without waiting. `compute` is the seconds of a request whose
    lists are all in memory."""
    copies = [ModelledCopy(load, compute) for _ in load.copies]
    assignment = load.assignment() if arm == "assigned" else None
    order = itertools.count()
    now = 0.0
    for numbers_ in (range(load.warmup), range(load.warmup, len(load.requests))):
        began, left = now, iter(numbers_)
        events: list[tuple[float, int, Callable[[], object]]] = [
            (now, next(order), lambda: None) for _ in range(load.clients)
        ]
        while events:
            now, _, finish = heapq.heappop(events)
            finish()
            if (number := next(left, None)) is None:
                continue
            preferred, request, ended = load.order(arm, number), load.requests[number], None
            copy = preferred[0]
            if assignment is not None:
                copy, ended = assignment.take(preferred, request)
            end, answer = copies[copy.number].answer(now, request)
            heapq.heappush(events, (end, next(order), _finishing(ended, answer)))
    return (len(load.requests) - load.warmup) / (now - began)


def _finishing(ended: Callable[[Future[Answer]], None] | None, answer: Answer) -> Callable[[], object]:
    done: Future[Answer] = Future()
    done.set_result(answer)
    return lambda: ended and ended(done)


def alone_s(load: Load, memory: MemoryBudget) -> float:
    """Seconds of a request on one copy whose lists are all in memory: the median."""
    nbytes = sum(part.nbytes for parts in load.snapshot.lists for part in parts)
    places = ThrottledPlaces(load, memory, 2 * nbytes)
    seconds = []
    try:
        for request in load.requests[:20]:
            places.send(load.copies[0], "gather", b"", request).result()
            began = time.perf_counter()
            places.send(load.copies[0], "gather", b"", request).result()
            seconds.append(time.perf_counter() - began)
    finally:
        places.close()
    return statistics.median(seconds)


@benchmark
def assignment(
    *,
    counts: Annotated[Sequence[int], numbers(), "Numbers of copies."] = (1, 2, 4, 8),
    traffic: Annotated[
        str, click.Choice(["recorded", "questions"]), "Texts that a model wrote in six pipelines; or test questions."
    ] = "recorded",
    searches: Annotated[Count, "Searches at most."] = 600,
    warmup: Annotated[Count, "Requests before the measurement."] = 24,
    size: Annotated[Count, "--micro-batch", "Searches in a request."] = 4,
    waiting: Annotated[Count, "Searches that wait together, of which requests are made."] = 32,
    clients: Annotated[Count, "That ask at once, for each copy."] = 3,
    link: Annotated[float, click.FloatRange(0, min_open=True), "Modelled link of a copy, in MB/s."] = 40.0,
    data: Annotated[IndexData, {"rows": 30_000, "list_rows": 100, "memory_share": round(1 / 6, 4)}],
    output: Output,
) -> None:
    """Choose the copy of a shard that searches by the lists that the copies hold, in turn, and by hashing."""
    made = data.made()
    texts = recorded_texts() if traffic == "recorded" else [case.question for case in made.asked(searches)]
    task = {
        "folder": str(made.folder), "texts": texts[:searches], "capacity": made.memory, "link": link * 1e6,
        "size": size, "waiting": waiting, "warmup": warmup, "clients": clients, "name": "assignment",
    }  # fmt: skip
    rows: dict[str, dict[str, Any]] = {}
    compute = 0.0
    for count in counts:
        say(f"{count} copies")
        done = measure(work, {**task, "count": count}, threads=1)
        rows |= done["rows"]
        compute = done["compute"]
    for name, row in rows.items():
        one = rows.get(f"1 copies, {name.split(', ')[1]}")
        row["gain"] = None if one is None else row["rate"] / one["rate"]
    conditions = {
        "copies": "throttled in one process: a modelled link each, no other machine", **made.conditions(),
        "traffic": traffic, "searches": len(task["texts"]), "micro_batch": size, "waiting": waiting,
        "clients_for_each": clients, "link_MB_s": link, "cache_bytes": made.memory, "in_memory_s": compute,
    }  # fmt: skip
    columns = {
        "rate": higher("measured", "/s"), "predicted": neither("predicted", "/s"), "error": neither("error", "%"),
        "held": neither("lists in memory", "%"), "gain": higher("times one copy"),
    }  # fmt: skip
    output.put({"conditions": conditions, "rows": rows}, tabulate(rows, columns, "requests"), stated(conditions))
    if not all(row["identical"] for row in rows.values()):
        raise EdgeError("the choice of the copy changed what was found")


def work(task: dict[str, Any]) -> dict[str, Any]:
    with ExitStack() as stack:
        process = MemoryBudget(_PROCESS_MEMORY)
        embedder = stack.enter_context(Embedder(budget=process))
        vectors = _embedded(Path(task["folder"]), task["texts"], embedder)
        index, database = stack.enter_context(opened_index(Path(task["folder"]), embedder.dim, process))
        with database.read() as db:
            snapshot = index.snapshot(db)
        count = task["count"]
        load = Load(
            micro_batches(vectors, task["waiting"], task["size"]), task["warmup"], count * task["clients"],
            [Replica("s", number, "", "", 0) for number in range(count)], snapshot,
            max(1, round(snapshot.nlist * PROBED)), task["capacity"], task["link"],
        )  # fmt: skip
        compute = alone_s(load, process)
        rows: dict[str, dict[str, Any]] = {}
        expected: Any = None
        for arm in _ARMS:
            rate, held, found = measured(load, arm, process)
            known = predicted(load, arm, compute)
            expected = expected or found
            rows[f"{count} copies, {arm}"] = {
                "rate": rate, "held": held, "predicted": known, "error": known / rate - 1,
                "identical": found == expected,
            }  # fmt: skip
        return {"rows": rows, "compute": compute}


def _embedded(folder: Path, texts: Sequence[str], embedder: Embedder) -> Vectors:
    """Vectors [n, dim] of texts as queries, kept in a file beside the index."""
    file = folder / f"asked-{blake2b(chr(0).join(texts).encode(), digest_size=8).hexdigest()}.npy"
    if not file.exists():
        np.save(file, embedder.embed(list(texts), query=True))
    found: npt.NDArray[np.float32] = np.load(file)
    return found
