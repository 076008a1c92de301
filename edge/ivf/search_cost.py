"""`SearchCost`: estimates the time of a search from the bytes it reads and scans.

A search reads only lists that are not resident, and their number is known before the search starts. A time per number
of lists, measured once, would be too short when the lists are cold and too long when they are cached.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from edge.ivf.base import Snapshot, Vectors
from edge.ivf.probing import probe
from edge.ivf.tiers import Tier
from edge.scheduling.running_mean import RunningMean

Counts = npt.NDArray[np.int64]
Seconds = npt.NDArray[np.float64]

PLANNING_NBYTES = 256
"""Bytes that `search_bytes` needs per part while it runs."""

_DOUBT = 0.2
"""Standard deviation of the ratio of measured to expected seconds before the first search."""


class SearchCost:
    """Learns from the times of searches of one query each. Thread-safe."""

    def __init__(self) -> None:
        self._scan = RunningMean()
        """Seconds per byte scanned."""
        self._ratio = RunningMean(1.0, _DOUBT, count=2)
        """Ratio of measured to expected seconds. It differs from 1 if the machine is busy or reads overlap scans."""

    def learn(self, read: int, scanned: int, seconds: float, bandwidth: float) -> None:
        """Learns from one search.

        Args:
            read, scanned: bytes that the search read and scanned. Bytes that were read were also scanned.
            bandwidth: bytes per second of the link they were read over; 0 if nothing was ever read.
        """
        if scanned <= 0 or (read and not bandwidth):
            return
        reading = read / bandwidth if read else 0.0
        expected = reading + self._scan.mean * scanned
        if self._scan.count and expected:
            self._ratio.add(seconds / expected)
        if not self._scan.count or reading < seconds / 2:  # otherwise the reads hide the time of the scans
            self._scan.add(max(0.0, seconds - reading) / scanned)

    def seconds(self, read: Counts, scanned: Counts, bandwidth: float) -> Seconds | None:
        """Upper bounds [n] of the seconds that searches of these bytes [n] take; None before the first search."""
        if not self._scan.count or (not bandwidth and read.any()):
            return None
        reading = read / bandwidth if bandwidth else np.zeros(len(read))
        return np.asarray((reading + self._scan.mean * scanned) * self._ratio.upper, np.float64)


def search_bytes(snapshot: Snapshot, query: Vectors, tiers: Sequence[Tier]) -> tuple[Counts, Counts]:
    """Bytes that a search for `query` [dim] reads and scans, by the number of lists it probes.

    Parts that are in `tiers`, or are being read into them, are not read.

    Returns:
        Bytes read and bytes scanned, each [nlist].
    """
    order = probe(query[None], snapshot.centroids, snapshot.nlist)[0].tolist()
    parts = [part for number in order for part in snapshot.lists[number]]
    ends = np.cumsum([len(snapshot.lists[number]) for number in order])
    cold = {part.key for part in parts}
    for tier in tiers:
        cold = set(tier.residency.absent(cold))
    scanned = [part.nbytes for part in parts]
    read = [part.nbytes if part.key in cold else 0 for part in parts]
    return _totals(read, ends), _totals(scanned, ends)


def fitting_nprobe(expected: Seconds, slack: float) -> int:
    """The largest number of lists whose search fits into `slack` seconds; 1 if none does (PipeRAG, S3).

    Args:
        expected: seconds by the number of lists, [n], ascending.
    """
    return max(1, int(np.searchsorted(expected, slack, side="right")))


def _totals(nbytes: Sequence[int], ends: Counts) -> Counts:
    """Total bytes of the parts before each of `ends` [n]."""
    return np.concatenate(([0], np.cumsum(nbytes, dtype=np.int64)))[ends]
