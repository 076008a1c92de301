"""The lists that a search probes: how many, which for each query, what they cost, and their parts, each once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.blocks import distinct
from edge.errors import InputError
from edge.ivf.base import CHECKSUM_NBYTES, Ids, ListPart, Snapshot, Vectors
from edge.ivf.device import ListScan
from edge.ivf.reading import DeviceTier
from edge.scheduling.predictor import RunningMean


def lists_to_probe(snapshot: Snapshot, target: float) -> int:
    """The lists that reach `target`. A tuned index probes at least the share of its lists that was chosen."""
    if snapshot.tuned is None:
        return choose_nprobe(snapshot, target)
    chosen, of = snapshot.tuned.nprobe, snapshot.tuned.parameters.lists
    share = min(snapshot.nlist, -(-chosen * snapshot.nlist // of))
    return max(share, choose_nprobe(snapshot, snapshot.tuned.aim))


def choose_nprobe(snapshot: Snapshot, recall: float) -> int:
    """The fewest lists that reached `recall`, or else the highest one; all if nothing was measured."""
    if not 0 < recall <= 1:
        raise InputError(f"recall is above 0 and at most 1, not {recall}")
    return probed(snapshot.recall, recall)[0] if snapshot.recall else snapshot.nlist


def probed(curve: Sequence[tuple[int, float]], recall: float) -> tuple[int, float]:
    """The first point (lists, recall@10) of an ascending curve that reaches `recall`, or else its highest recall."""
    wanted = min(recall, curve[-1][1])
    return next(point for point in curve if point[1] >= wanted)


LOSS = 0.01
"""The expected recall that a search may lose to keep its deadline."""


def least_lists(snapshot: Snapshot, nprobe: int) -> int:
    """The fewest of `nprobe` lists with which a search finds at most `LOSS` less; all if nothing was measured, or if it
    has to see every list."""
    reached = [recall for lists, recall in snapshot.recall if lists <= nprobe < snapshot.nlist]
    return min(nprobe, probed(snapshot.recall, reached[-1] - LOSS)[0]) if reached else nprobe


def lists_in_time(
    snapshot: Snapshot,
    probes: npt.NDArray[np.int64],
    tiers: Sequence[DeviceTier],
    seconds: Callable[[int, int], float],
    slack: float,
) -> int:
    """The largest number of each query's lists `probes` [q, nprobe] that are searched together within `slack` seconds,
    but at least `least_lists`. `seconds` of so many bytes that are read (not in `tiers`) and scanned."""
    nprobe = probes.shape[1]
    numbers, inverse = np.unique(probes.T, return_inverse=True)  # the transpose is in the order of ranks
    parts = [snapshot.lists[number] for number in numbers.tolist()]
    cold = _cold([part for own in parts for part in own], tiers)
    nbytes = np.array([sum(part.nbytes for part in own) for own in parts])
    missing = np.array([sum(part.nbytes for part in own if part.key in cold) for own in parts])
    at, firsts = inverse.reshape(nprobe, -1), np.full(len(numbers), nprobe)
    np.minimum.at(firsts, at, np.arange(nprobe)[:, None])  # each list is read once, with its best rank
    read = np.bincount(firsts, weights=missing, minlength=nprobe).cumsum()
    scanned = nbytes[at].sum(axis=1).cumsum()
    expected = [seconds(int(own), int(all_)) for own, all_ in zip(read[:nprobe], scanned, strict=True)]
    return max(least_lists(snapshot, nprobe), fitting_nprobe(np.array(expected), slack))


def probe(queries: Vectors, centroids: Vectors, nprobe: int) -> npt.NDArray[np.int64]:
    """The `nprobe` nearest lists of each query [q, nprobe], best first, the lower number among equals. Each query is
    multiplied alone, so that its lists do not depend on its batch."""
    nlist = len(centroids)
    nprobe = min(nprobe, nlist)
    lists = np.empty((len(queries), nprobe), np.int64)
    for row, query in zip(lists, queries, strict=True):
        scores = centroids @ query
        best = np.arange(nlist)
        if nprobe < nlist:
            best = np.flatnonzero(scores >= np.partition(scores, nlist - nprobe)[nlist - nprobe])
        row[:] = best[np.lexsort((best, -scores[best]))[:nprobe]]
    return lists


def checked_queries(queries: Vectors, dim: int) -> Vectors:
    queries = np.ascontiguousarray(queries, np.float32)
    if queries.ndim != 2 or queries.shape[1] != dim:
        raise InputError(f"queries must be [q, {dim}], not {list(queries.shape)}")
    if not np.isfinite(queries).all():
        raise InputError("a query is not finite")
    return queries


COPY_NBYTES = 1 << 20
"""Bytes of codes that a device copies at a time, where live rows are not adjacent."""

_ROW_NBYTES = 16
"""Bytes of a label and an id."""


class ScanPlan:
    """The parts that a search scans, best-ranked lists first, and the labels of their rows: numbers through the rows of
    all parts. `queries` and `expected` are by part and by query; `ids` and `checksums` (CRC-32 of the float32 vectors)
    by label."""

    def __init__(self, snapshot: Snapshot, probes: npt.NDArray[np.int64], allowed: Ids | None) -> None:
        """Plans for the lists of each query [q, n], best first; `allowed` ids ascend (None for all)."""
        self._allowed = allowed
        self.parts: list[ListPart] = []
        self.queries: list[list[int]] = []
        self.expected = [0] * len(probes)
        probing: dict[int, list[int]] = {}
        for rank in probes.T.tolist():  # rank by rank, so that a list's best rank decides its place
            for query, number in enumerate(rank):
                probing.setdefault(number, []).append(query)
        for number, queries in probing.items():
            parts = snapshot.lists[number]
            self.parts += parts
            self.queries += [queries] * len(parts)
            for query in queries:
                self.expected[query] += len(parts)
        self._starts = [0, *accumulate(part.rows for part in self.parts)]
        self._bases = np.array(self._starts)
        # Made once for all parts: numpy releases the interpreter lock in `arange`, and getting the lock back can take
        # longer than scanning a small part.
        self.labels = np.arange(self._starts[-1])
        self.ids = np.empty(self._starts[-1], np.int64)
        # Exact codes are the vectors themselves, which were checked when their block was read.
        self.checksums = np.empty(0 if snapshot.codec.spec.exact else self._starts[-1], np.uint32)

    @staticmethod
    def memory_needed(snapshot: Snapshot, probes: npt.NDArray[np.int64]) -> int:
        """Bytes that a plan holds, and that a device needs to copy the live rows of one part."""
        parts = [part for number in distinct(probes).tolist() for part in snapshot.lists[number]]
        largest = max((part.rows for part in parts), default=0)
        rows = sum(part.rows for part in parts)
        copied = min(COPY_NBYTES, largest * snapshot.codec.spec.code_size)
        # For one part at a time: the mask of live rows, their numbers and labels; two pieces of copied codes.
        per_row = _ROW_NBYTES + (0 if snapshot.codec.spec.exact else CHECKSUM_NBYTES)
        return int(rows * per_row + largest * 32 + 2 * copied + probes.nbytes * 4 + len(parts) * 512)

    def scan(self, number: int, ids: Ids, codes: Any, checksums: npt.NDArray[np.uint32]) -> ListScan:
        """Describes part `number`, whose codes are in a device's buffer, and remembers the ids of its rows."""
        first, end = self._starts[number], self._starts[number + 1]
        self.ids[first:end] = ids
        if len(self.checksums):
            self.checksums[first:end] = checksums
        return ListScan(codes, first, end - first, self._live(self.parts[number], ids), self.queries[number])

    def locate(self, labels: Ids) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Part [n] and row in the part [n] of each label [n]."""
        parts = np.searchsorted(self._bases, labels, side="right") - 1
        return parts, labels - self._bases[parts]

    def _live(self, part: ListPart, ids: Ids) -> npt.NDArray[np.int64] | None:
        """Numbers of the live rows that may be returned, ascending; None for all."""
        if self._allowed is None and not len(part.deleted):
            return None
        keep = np.ones(part.rows, np.bool_) if self._allowed is None else member(self._allowed, ids)
        keep[part.deleted] = False
        return None if keep.all() else np.flatnonzero(keep)


def member(sorted_ids: Ids, ids: Ids) -> npt.NDArray[np.bool_]:
    if not len(sorted_ids):
        return np.zeros(len(ids), np.bool_)
    at = np.searchsorted(sorted_ids, ids)
    at[at == len(sorted_ids)] = 0
    found: npt.NDArray[np.bool_] = sorted_ids[at] == ids
    return found


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
        """Learns from one search the seconds of its bytes. `bandwidth` of the link; 0 if nothing was read."""
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
    """Bytes that `query` [dim] reads (not in `tiers`) and scans, each [nlist], by the lists it probes."""
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
    """The most lists whose search fits into `slack` seconds, at least 1 (PipeRAG, S3). `expected` [n] ascend."""
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
