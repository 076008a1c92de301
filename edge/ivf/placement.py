"""`Placement`: the share of an index's lists that stays in memory, or on a device, so that searches keep a deadline
(VectorLiteRAG).

The paper fits a Beta distribution to hit rates. Here the latest searches are replayed with their times."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from edge.cache.cached_block import Fetch
from edge.ivf.base import ListPart, Snapshot, Vectors
from edge.ivf.reading import DeviceTier
from edge.link import Ticket
from edge.scheduling.background import Background
from edge.trace import Trace

Lists = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]

Seconds = Callable[[int, int], float]
"""The seconds of a batch of searches that reads and scans so many bytes."""

KEPT = 0.9
"""The share of the searches that should keep the deadline."""

AIM = KEPT + 0.015
"""The share to aim at: searches that were not used for the choice keep the deadline more rarely, by 1.3 to 1.9 points
(entered by hand)."""

_NEAR = 0.01
"""If no share of the lists is enough, the smallest one is held that comes so near to the best attainment."""

_PERIOD = 128
"""Searches between two examinations of the placement (section IV-B3)."""

_REST = 50
"""An examination is followed by a rest that is longer by this factor. It takes 0.4 s of one core with a full log."""

LOG = 2048
"""The latest searches that are replayed."""

_LOG_NBYTES = 1 << 20
"""Memory of the probes of these searches. If searches probe so many lists that they need more, fewer are replayed."""

_LARGEST = 2
"""Lists that are held take at most this part (1/2) of the limit. Without states and cells answers would take longer
than the searches save."""

_SPARE = 16
"""This part (1/16) of the limit stays free beside the lists that are held, for the work of requests."""

_WASTE = 1.1
"""A placement is kept as long as it is enough, and holds at most this many times the bytes of the smallest one."""

_SLOWEST = 4.0
_STEPS = 8
"""Bounds of the search for a slowdown. A machine that is busier than that keeps no deadline by holding lists."""

_PRIORITY = 2.0
"""Lists that are held cross the link after those that are needed now, and after those that a lookahead predicts."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A search of the past: its time, the lists [n] that it probed, each once, and its seconds."""

    at: float
    lists: Lists
    took: float = 0.0


@dataclass(frozen=True, slots=True)
class Share:
    """A choice of lists [n], the most frequently probed first; `kept` is the share of searches in time, `hit_rate` the
    mean share of a search's bytes."""

    lists: Lists
    nbytes: int
    kept: float
    hit_rate: float


def replayed(log: Sequence[Asked], nbytes: Lists, held: Mask, seconds: Seconds, most: int) -> Floats:
    """The seconds of each search [n] of a log, if the lists `held` [nlist] of `nbytes` [nlist] are in memory. Others
    wait for the link, at most `most` in one batch, which reads each list once."""
    scanned = [int(nbytes[one.lists].sum()) for one in log]
    cold = [one.lists[~held[one.lists]] for one in log]
    took = np.array([0.0 if len(lists) else seconds(0, own) for lists, own in zip(cold, scanned, strict=True)])
    waiting = [number for number, lists in enumerate(cold) if len(lists)]
    first, free = 0, -np.inf
    while first < len(waiting):
        free = max(free, log[waiting[first]].at)
        batch = [number for number in waiting[first : first + most] if log[number].at <= free]
        read = np.unique(np.concatenate([cold[number] for number in batch]))
        free += seconds(int(nbytes[read].sum()), sum(scanned[number] for number in batch))
        took[batch] = [free - log[number].at for number in batch]
        first += len(batch)
    return took


def hit_rate(log: Sequence[Asked], nbytes: Lists, held: Mask) -> float:
    """The mean share of a search's bytes that is among the lists `held` [nlist]."""
    rates = [nbytes[one.lists][held[one.lists]].sum() / max(1, nbytes[one.lists].sum()) for one in log]
    return float(np.mean(rates)) if rates else 0.0


def slowdown(log: Sequence[Asked], nbytes: Lists, held: Mask, seconds: Seconds, most: int) -> float:
    """The factor, from 1 to `_SLOWEST`, by which each batch took longer than its `seconds`. It covers what bytes do
    not."""
    took = float(np.mean([one.took for one in log]))
    low, high = 1.0, _SLOWEST
    for _ in range(_STEPS):
        middle = (low + high) / 2
        slower = partial(_times, seconds, middle)
        low, high = (middle, high) if replayed(log, nbytes, held, slower, most).mean() < took else (low, middle)
    return low


def _times(seconds: Seconds, factor: float, read: int, scanned: int) -> float:
    return factor * seconds(read, scanned)


def smallest_share(
    log: Sequence[Asked], nbytes: Lists, seconds: Seconds, *, within: float, most: int, room: int
) -> Share:
    """The fewest of the most frequently probed lists, of at most `room` bytes, with which the share `AIM` of searches
    keeps the deadline; if none are enough, the fewest with which nearly as many do."""
    counts = np.bincount(np.concatenate([one.lists for one in log]), minlength=len(nbytes))
    order = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)].astype(np.int64)

    def held(count: int) -> Mask:
        return _mask(order[:count], len(nbytes))

    def attained(count: int) -> float:
        return float((replayed(log, nbytes, held(count), seconds, most) <= within).mean())

    low, high = 0, int(np.searchsorted(np.cumsum(nbytes[order]), room, side="right"))
    goal = min(AIM, attained(high) - _NEAR)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if attained(middle) >= goal else (middle + 1, high)
    lists = order[:low]
    return Share(lists, int(nbytes[lists].sum()), attained(low), hit_rate(log, nbytes, held(low)))


def _mask(lists: Lists, nlist: int) -> Mask:
    mask = np.zeros(nlist, np.bool_)
    mask[lists] = True
    return mask


class Placement:
    """Holds the lists of one index that a deadline needs, and chooses anew, in the background, when the traffic has
    changed. Thread-safe."""

    def __init__(
        self, tier: DeviceTier, within: float, seconds: Callable[[Snapshot], Seconds], most: int, trace: Trace
    ):
        """Places lists in a tier. `seconds` gives the measured times of batches of at most `most` searches."""
        self.within = within
        self.share: Share | None = None
        self.nbytes = 0
        self._tier = tier
        self._seconds = seconds
        self._most = most
        self._trace = trace
        self._log: deque[Asked] = deque()
        self._logged = 0  # bytes
        self._centroids: Vectors | None = None  # which the lists of the log belong to
        self._searches = self._late = 0  # since the last examination
        self._rests_until = 0.0
        self._lock = threading.Lock()
        self._background = Background("edge-placement")
        self._lease = tier.host_memory.reserve("placement", _LOG_NBYTES)

    def note(self, snapshot: Snapshot, probes: Lists, asked: float, took: float) -> None:
        """Notes a search, when it was asked and how many seconds it took, and the lists that it probed [q, nprobe]."""
        lists = np.unique(probes)
        late = took > self.within
        self._trace.count("placement.searches")
        self._trace.count("placement.late", late)
        with self._lock:
            if snapshot.centroids is not self._centroids:  # trained anew: the numbers mean other lists
                self._centroids, self.share, self._logged = snapshot.centroids, None, 0
                self._log.clear()
            self._log.append(Asked(asked, lists, took))
            self._logged += lists.nbytes
            while self._logged > _LOG_NBYTES or len(self._log) > LOG:
                self._logged -= self._log.popleft().lists.nbytes
            self._searches += 1
            self._late += late
            now = time.perf_counter()
            if self._searches < _PERIOD or now < self._rests_until or self._background.busy:
                return
            if self._late or self.nbytes:  # otherwise nothing could be better
                self._background.submit(lambda: self._examine(snapshot))
            self._searches = self._late = 0

    def close(self) -> None:
        self._background.settle()
        self._lease.release()

    def _examine(self, snapshot: Snapshot) -> None:
        began = time.perf_counter()
        try:
            self._place(snapshot)
        finally:
            ended = time.perf_counter()
            self._rests_until = ended + _REST * (ended - began)

    def _place(self, snapshot: Snapshot) -> None:
        """Chooses the lists, unless the present ones are still right, and holds them."""
        with self._lock:
            if snapshot.centroids is not self._centroids:
                return
            log = sorted(self._log, key=lambda one: one.at)
            now = self.share
        nbytes = np.array([sum(part.nbytes for part in parts) for parts in snapshot.lists], np.int64)
        seconds = self._seconds(snapshot)
        with self._trace.span("place lists", "placement"):
            if now is not None:  # lists that are in memory beside those held only make it faster
                factor = slowdown(log[-_PERIOD:], nbytes, _mask(now.lists, len(nbytes)), seconds, self._most)
                seconds = partial(_times, seconds, factor)
            limit = self._tier.device.memory.limit
            chosen = smallest_share(log, nbytes, seconds, within=self.within, most=self._most, room=limit // _LARGEST)
            if now is not None and self._suffices(now, chosen, log, nbytes, seconds):
                chosen = now
            else:
                self._trace.count("placement.changes")
            parts = [part for number in chosen.lists.tolist() for part in snapshot.lists[number]]
            blocks = [(part.key, part.nbytes, self._fetch(part)) for part in parts]
            count = self._tier.residency.hold(blocks, limit // _SPARE)
        with self._lock:
            self.nbytes = sum(part.nbytes for part in parts[:count])
            if snapshot.centroids is self._centroids:
                self.share = chosen

    def _suffices(self, now: Share, chosen: Share, log: Sequence[Asked], nbytes: Lists, seconds: Seconds) -> bool:
        held = _mask(now.lists, len(nbytes))
        kept = float((replayed(log, nbytes, held, seconds, self._most) <= self.within).mean())
        return kept >= min(KEPT, chosen.kept - _NEAR) and nbytes[now.lists].sum() <= _WASTE * chosen.nbytes

    def _fetch(self, part: ListPart) -> Fetch:
        tier = self._tier

        def start(buffer: object) -> Ticket:
            work = tier.filling(part, buffer, "placed")
            return tier.device.link.submit(str(part.codes), work, part.nbytes, priority=_PRIORITY)

        return start
