"""Micro-batches of similar queries, and which device serves which (TeleRAG, section 4.2). A free device takes the
waiting micro-batch by its lists now; the paper assigns all before the first runs."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from edge.ivf.base import ListPart, Snapshot, Vectors
from edge.ivf.plan import probe
from edge.ivf.reading import DeviceTier
from edge.scheduling.predictor import RunningMean

Counts = npt.NDArray[np.int64]
Seconds = npt.NDArray[np.float64]

PLANNING_NBYTES = 256
"""Bytes that `search_bytes` needs per part while it runs."""

_DOUBT = 0.2
"""Standard deviation of the ratio of measured to expected seconds before the first search."""


class SearchCost:
    """Learns from the times of searches. Thread-safe."""

    def __init__(self) -> None:
        self._scan = RunningMean()
        """Seconds per byte scanned."""
        self._ratio = RunningMean(1.0, _DOUBT, count=2)
        """Ratio of measured to expected seconds. It differs from 1 if the machine is busy or reads overlap scans."""

    def learn(self, read: int, scanned: int, seconds: float, bandwidth: float) -> None:
        """Learns from one search the seconds of its bytes scanned. `bandwidth` is that of the link; 0 if nothing was
        ever read."""
        if scanned <= 0 or (read and not bandwidth):
            return
        reading = read / bandwidth if read else 0.0
        expected = reading + self._scan.mean * scanned
        if self._scan.count and expected:
            self._ratio.add(seconds / expected)
        if not self._scan.count or reading < seconds / 2:  # otherwise the reads hide the time of the scans
            self._scan.add(max(0.0, seconds - reading) / scanned)

    def expected(self, read: int, scanned: int, bandwidth: float) -> float:
        """The seconds that a search, or a batch of searches, of these bytes probably takes; 0 before the first one."""
        reading = read / bandwidth if bandwidth else 0.0
        return (reading + self._scan.mean * scanned) * self._ratio.mean

    def seconds(self, read: Counts, scanned: Counts, bandwidth: float) -> Seconds | None:
        """Upper bounds [n] of the seconds that searches of these bytes [n] take; None before the first search."""
        if not self._scan.count or (not bandwidth and read.any()):
            return None
        reading = read / bandwidth if bandwidth else np.zeros(len(read))
        return np.asarray((reading + self._scan.mean * scanned) * self._ratio.upper, np.float64)


def search_bytes(snapshot: Snapshot, query: Vectors, tiers: Sequence[DeviceTier]) -> tuple[Counts, Counts]:
    """Bytes that a search for `query` [dim] reads and scans, each [nlist], by the number of lists it probes. Parts in
    `tiers` are not read."""
    order = probe(query[None], snapshot.centroids, snapshot.nlist)[0].tolist()
    parts = [part for number in order for part in snapshot.lists[number]]
    ends = np.cumsum([len(snapshot.lists[number]) for number in order])
    cold = _cold(parts, tiers)
    scanned = [part.nbytes for part in parts]
    read = [part.nbytes if part.key in cold else 0 for part in parts]
    return _totals(read, ends), _totals(scanned, ends)


def resident(snapshot: Snapshot, tiers: Sequence[DeviceTier]) -> npt.NDArray[np.bool_]:
    """For each list [nlist] whether all its parts are in `tiers`, or are being read into them."""
    cold = _cold([part for parts in snapshot.lists for part in parts], tiers)
    return np.array([all(part.key not in cold for part in parts) for parts in snapshot.lists], np.bool_)


def _cold(parts: Sequence[ListPart], tiers: Sequence[DeviceTier]) -> set[Hashable]:
    cold: set[Hashable] = {part.key for part in parts}
    for tier in tiers:
        cold = set(tier.residency.absent(cold))
    return cold


def fitting_nprobe(expected: Seconds, slack: float) -> int:
    """The largest number of lists whose search fits into `slack` seconds, at least 1 (PipeRAG, S3). `expected` seconds
    [n] ascend."""
    return max(1, int(np.searchsorted(expected, slack, side="right")))


def _totals(nbytes: Sequence[int], ends: Counts) -> Counts:
    return np.concatenate(([0], np.cumsum(nbytes, dtype=np.int64)))[ends]


def group(queries: Vectors, size: int) -> list[npt.NDArray[np.int64]]:
    """Cuts queries [q, dim] into micro-batches of at most `size` by greedy nearest neighbours (L2)."""
    left = np.arange(len(queries))
    groups = []
    while len(left):
        difference = queries[left] - queries[left[0]]
        distance = np.einsum("ij,ij->i", difference, difference)
        distance[0] = -1.0  # the first query itself, even if it has a duplicate
        near = np.argsort(distance, kind="stable")[:size]
        groups.append(left[near])
        left = np.delete(left, near)
    return groups


T = TypeVar("T")

Keys = Collection[Hashable]
"""Keys of the list parts that a query or a micro-batch probes."""


class Dispatch:
    """Several devices, each with lists of its own. Thread-safe."""

    def __init__(self, tiers: Sequence[DeviceTier]) -> None:
        self.tiers = list(tiers)
        self._searching: Counter[DeviceTier] = Counter()
        self._lock = threading.Lock()

    @property
    def answering(self) -> list[DeviceTier]:
        return [tier for tier in self.tiers if not tier.lost]

    def choose(self, keys: Keys, *, idle: bool = False) -> DeviceTier | None:
        """The device that holds most of the parts, of those with the fewest running searches if `idle`; among equals
        the emptiest. None if all are lost."""
        tiers = self.answering
        with self._lock:
            fewest = min((self._searching[tier] for tier in tiers), default=0)
            tiers = [tier for tier in tiers if not idle or self._searching[tier] == fewest]
        if len(tiers) < 2:
            return tiers[0] if tiers else None
        return max(tiers, key=lambda tier: (held(tier, keys), -tier.residency.nbytes))

    @contextmanager
    def searching(self, tier: DeviceTier | None) -> Iterator[None]:
        if tier is None:
            yield
            return
        with self._lock:
            self._searching[tier] += 1
        try:
            yield
        finally:
            with self._lock:
                self._searching[tier] -= 1

    def take(self, waiting: Sequence[Keys], tier: DeviceTier) -> int:
        """Number of the waiting micro-batch that has the most parts on a device; the first among equals."""
        return max(range(len(waiting)), key=lambda number: (held(tier, waiting[number]), -number))

    def run(self, batches: Sequence[tuple[Keys, T]], work: Callable[[DeviceTier, T], None]) -> None:
        """Runs micro-batches on all devices in parallel, `work` in a thread of the device. The first error is raised
        when all threads have ended."""
        waiting = list(batches)
        errors: list[BaseException] = []

        def serve(tier: DeviceTier) -> None:
            while True:
                with self._lock:
                    if not waiting or errors:
                        return
                    _, batch = waiting.pop(self.take([keys for keys, _ in waiting], tier))
                try:
                    with self.searching(tier):
                        work(tier, batch)
                except BaseException as error:  # raised again in the caller's thread
                    errors.append(error)

        threads = [
            threading.Thread(target=serve, args=(tier,), name=f"edge-{tier.residency.name}", daemon=True)
            for tier in self.answering
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]


def held(tier: DeviceTier, keys: Keys) -> int:
    return len(keys) - len(tier.residency.absent(keys))
