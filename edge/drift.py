"""When a placement of clusters has aged (VectorLiteRAG, section IV-B3)."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Drift:
    """What a period of requests showed.

    Attributes:
        requests: how many.
        attainment: share of them that met the deadline.
        hit_rate: their mean hit rate.
        outdated: whether to profile and place again.
        frequencies: probes of each cluster [nlist] in this period, to place by.
    """

    requests: int
    attainment: float
    hit_rate: float
    outdated: bool
    frequencies: npt.NDArray[np.int64]


class DriftMonitor:
    """Counts hits and kept deadlines, and says when a placement no longer fits its traffic. Thread-safe.

    Counters are reset every `period` requests. A placement is outdated when fewer requests than `target` met their
    deadline *and* hit rates differ from what was expected: slowness alone has other causes.
    """

    def __init__(
        self, nlist: int, expected: float, *, target: float = 0.9, tolerance: float = 0.1, period: int = 2000
    ) -> None:
        """
        Args:
            expected: mean hit rate the placement promised.
            tolerance: difference of mean hit rates that counts.
        """
        self._expected = expected
        self._target = target
        self._tolerance = tolerance
        self._period = period
        self._lock = threading.Lock()
        self._counts = np.zeros(nlist, np.int64)
        self._requests = self._kept = 0
        self._hits = 0.0

    def record(self, probes: npt.NDArray[np.int64], hit_rate: float, *, kept: bool) -> Drift | None:
        """Counts one request; at the end of a period, what it showed.

        Args:
            probes: clusters it probed [nprobe].
            hit_rate: share of them the fast tier held.
            kept: it met its deadline.
        """
        with self._lock:
            self._counts[probes] += 1
            self._requests += 1
            self._kept += kept
            self._hits += hit_rate
            if self._requests < self._period:
                return None
            attainment, mean = self._kept / self._requests, self._hits / self._requests
            outdated = attainment < self._target and abs(mean - self._expected) > self._tolerance
            drift = Drift(self._requests, attainment, mean, outdated, self._counts)
            self._counts = np.zeros_like(self._counts)
            self._requests = self._kept = 0
            self._hits = 0.0
            return drift

    def frequencies(self) -> npt.NDArray[np.int64]:
        """Probes of each cluster [nlist] so far in this period; `record` returns those of a period that has ended."""
        with self._lock:
            return np.array(self._counts)
