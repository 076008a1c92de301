"""`Places`: where shards run and how requests reach them. `Reading`: requests of one search to one shard, which go to
another copy if the first is late or gone. `Assignment`: which copy of a shard searches, by the lists in its memory
(TeleRAG, section 4.2, assigns micro-batches that wait together; here each request goes at once to the copy that will
probably finish first)."""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from edge.apps.cluster.catalogue import Catalogue, HeldState, Replica
from edge.apps.cluster.messages import NoSuchVersion, ShardLost, asked
from edge.apps.cluster.shard import Reader, Send, Shard
from edge.blocks import distinct
from edge.budget import MemoryBudget
from edge.config import Config
from edge.errors import EdgeError, Unreachable
from edge.ivf.base import IndexOptions, Quantizer
from edge.ivf.plan import probe, probed
from edge.ivf.storage.snapshots import SnapshotLease
from edge.resident import Closing

Answer = Future[tuple[bytes, bytes]]
Assignments = Mapping[str, "Assignment"]

_SCAN = 0.2  # Of scanning a list, beside that of reading it.


def assignments(catalogue: Catalogue, shards: Mapping[str, Sequence[Replica]], budget: MemoryBudget) -> Assignments:
    """For each shard with several copies, if all shards have the newest lists."""
    several = [name for name, copies in shards.items() if len(copies) > 1]
    quantizer = catalogue.quantizer() if several else None
    versions = {one.quantizer for one in catalogue.version()[1].values()}
    if quantizer is None or len(quantizer.centroids) == 1 or versions != {quantizer.version}:
        return {}
    lease = SnapshotLease(budget, quantizer.centroids.nbytes)
    return {name: Assignment(quantizer, lease) for name in several}


class Assignment:
    """The copies of one shard in one version: the lists that they hold, and their work. Thread-safe."""

    def __init__(self, quantizer: Quantizer, lease: object = None) -> None:
        self._centroids, self._lease = quantizer.centroids, lease
        self._count = count = len(quantizer.centroids)
        self._nprobe = probed(quantizer.recall, IndexOptions().recall_target)[0] if quantizer.recall else count
        self._held = defaultdict[Replica, npt.NDArray[np.bool_]](lambda: np.zeros(count, np.bool_))
        self._coming = defaultdict[Replica, npt.NDArray[np.int64]](lambda: np.zeros(count, np.int64))
        self._work = defaultdict[Replica, float](float)
        self._lock = threading.Lock()

    def take(self, copies: Sequence[Replica], vectors: bytes) -> tuple[Replica, Callable[[Answer], None]]:
        """For queries with these vectors; the first one among equals."""
        queries = np.frombuffer(vectors, np.float32).reshape(-1, self._centroids.shape[1])
        lists = distinct(probe(queries, self._centroids, self._nprobe))

        def work(copy: Replica) -> float:
            unread = ~self._held[copy][lists] & (self._coming[copy][lists] == 0)
            return 1 + _SCAN * len(lists) + float(np.count_nonzero(unread))

        def ended(answer: Answer) -> None:
            """The copy holds none if it has failed."""
            told = b"" if answer.cancelled() or answer.exception() else answer.result()[1]
            bits = np.frombuffer(told or bytes(-(-self._count // 8)), np.uint8)
            with self._lock:
                self._work[chosen] -= own
                self._coming[chosen][lists] -= 1
                self._held[chosen] = np.unpackbits(bits, count=self._count) > 0

        with self._lock:
            chosen = min(copies, key=lambda copy: self._work[copy] + work(copy))
            own = work(chosen)
            self._work[chosen] += own
            self._coming[chosen][lists] += 1
        return chosen, ended


Result = TypeVar("Result")

_FIRST_HEDGE_S = 0.05
_SHARE = 0.95
_LATENCIES = 200
"""A second copy is asked when the first takes longer than this share of the latest (Dean and Barroso, "The tail at
scale", 2013)."""

_GATHER = "gather"

_LOOK_S = 5.0


class Places(Protocol):
    """Sends requests to copies of shards, and starts the processes that answer them."""

    def send(self, replica: Replica, verb: str, head: bytes, raw: bytes) -> Future[tuple[bytes, bytes]]:
        """Sends a request."""

    def readers(self, count: int) -> list[Send]:
        """Starts readers of files; 0 for as many as there are processors. They end with this connection."""

    def trouble(self) -> str:
        """A sentence if no process can be started or found any more; empty otherwise."""

    def close(self) -> None:
        """Ends the connection. Shards that others may use go on."""


class LocalPlaces(Closing):
    def __init__(self, *, config: Config) -> None:
        self._config = config
        self._shards: dict[str, Shard] = {}
        self._threads = ThreadPoolExecutor(16, "edge-shards")
        self._opening = threading.Lock()
        self._reading = ThreadPoolExecutor(1, "edge-reader")
        self._reader: Reader | None = None

    def send(self, replica: Replica, verb: str, head: bytes, raw: bytes) -> Future[tuple[bytes, bytes]]:
        return self._threads.submit(self._answer, replica, verb, head, raw)

    def _answer(self, replica: Replica, verb: str, head: bytes, raw: bytes) -> tuple[bytes, bytes]:
        with self._opening:
            if replica.folder not in self._shards:
                self._shards[replica.folder] = Shard(replica.folder, memory=replica.memory, config=self._config)
            shard = self._shards[replica.folder]
        return shard.answer(verb, head, raw)

    def readers(self, count: int) -> list[Send]:
        """One: more would wait for the same processors."""
        if self._reader is None:
            self._reader = Reader(memory=self._config.memory, config=self._config)
        reader = self._reader
        return [lambda verb, head, raw: self._reading.submit(reader.answer, verb, head, raw)]

    def trouble(self) -> str:
        return ""

    def close(self) -> None:
        self._threads.shutdown()
        self._reading.shutdown()
        if self._reader is not None:
            self._reader.close()
        while self._shards:
            self._shards.popitem()[1].close()


class Latencies:
    """Thread-safe."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=_LATENCIES)

    def add(self, seconds: float) -> None:
        self._seconds.append(seconds)

    @property
    def hedge_s(self) -> float:
        found = sorted(self._seconds)
        return found[int(_SHARE * len(found))] if len(found) >= 20 else _FIRST_HEDGE_S


class Reading:
    """All requests after `gather` go to the copy that answered it, because ids are its own."""

    def __init__(
        self, places: Places, replicas: Sequence[Replica], version: int, held: Mapping[tuple[str, int], HeldState],
        latencies: Latencies, patience: float, assignment: Assignment | None = None,
    ) -> None:  # fmt: skip
        """`replicas`: the preferred one first. `held`: the states of all copies. `patience`: seconds. `assignment`
        chooses the copy that gathers."""
        self._places = places
        self._replicas = list(replicas)
        self._version = version
        self._held = held
        self._latencies = latencies
        self._patience = patience
        self._assignment = assignment

    def __call__(self, verb: str, head: bytes, raw: bytes) -> tuple[bytes, bytes]:
        shard, began, why, changed = self._replicas[0].shard, time.monotonic(), "it was not asked", False
        end = began + self._patience
        waiting: dict[Future[tuple[bytes, bytes]], Replica] = {}
        left = list(self._replicas)
        while left or waiting:
            if left and (not waiting or time.monotonic() - began >= self._latencies.hedge_s):
                future, replica = self._sent(left, verb, head, raw)
                left.remove(replica)
                waiting[future] = replica
            limit = end if not left else min(end, began + self._latencies.hedge_s)
            done, _ = wait(waiting, max(0.0, limit - time.monotonic()), FIRST_COMPLETED)
            if not done and time.monotonic() >= end:
                why = f"there is no answer after {self._patience:g} s"
                break
            for future in done:
                replica = waiting.pop(future)
                try:
                    answer = self._checked(replica, future.result(), verb, head, raw, end)
                except Exception as error:  # whatever the transport raises for a process that is gone
                    why = _first_line(error)
                    changed = isinstance(error, NoSuchVersion)
                    continue
                others = [] if verb == _GATHER else [one for one in self._replicas if one is not replica]
                self._replicas = [replica, *others]
                self._latencies.add(time.monotonic() - began)
                return answer
        raise ShardLost(shard, why if changed else self._places.trouble() or why, changed=changed)

    def _sent(self, left: Sequence[Replica], verb: str, head: bytes, raw: bytes) -> tuple[Answer, Replica]:
        if verb != _GATHER or self._assignment is None or len(self._replicas) == 1:
            return self._places.send(left[0], verb, head, raw), left[0]
        replica, ended = self._assignment.take(left, raw)
        future = self._places.send(replica, verb, head, raw)
        future.add_done_callback(ended)
        return future, replica

    def _checked(
        self, replica: Replica, answer: tuple[bytes, bytes], verb: str, head: bytes, raw: bytes, end: float
    ) -> tuple[bytes, bytes]:
        """Asked for again if the copy has been restarted and is still in the state of this version."""
        if not answer[0].startswith(b'{"error"') or json.loads(answer[0])["error"][0] != NoSuchVersion.__name__:
            return answer
        token = self._held[replica.shard, replica.number].token
        send(self._places, replica, "publish", end - time.monotonic(), version=self._version, token=token)
        again = self._places.send(replica, verb, head, raw)
        return again.result(max(0.0, end - time.monotonic()))


def send(
    places: Places, replica: Replica, verb: str, seconds: float | None, raw: bytes = b"", **arguments: Any
) -> tuple[Any, bytes]:
    def call(verb: str, head: bytes, raw: bytes) -> tuple[bytes, bytes]:
        return received(places, places.send(replica, verb, head, raw), partial(ShardLost, replica.name), seconds)

    return asked(call, verb, raw, **arguments)


def received(
    places: Places, future: Future[Result], lost: Callable[[str], Unreachable], seconds: float | None = None
) -> Result:
    try:
        return first(places, [future]).pop().result() if seconds is None else future.result(seconds)
    except EdgeError:
        raise
    except Exception as error:  # whatever the transport raises for a process that is gone
        raise lost(places.trouble() or _first_line(error)) from error


def first(places: Places, waiting: Iterable[Future[Result]]) -> set[Future[Result]]:
    """Without a bound to the time."""
    while not (done := wait(waiting, _LOOK_S, FIRST_COMPLETED).done):
        if why := places.trouble():
            raise Unreachable(why)
    return done


def _first_line(error: Exception) -> str:
    error = getattr(error, "cause", None) or error  # of Ray, which puts a trace before it
    return str(error).strip().split("\n")[0] or type(error).__name__
