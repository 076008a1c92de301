"""`Pace`: how long a search takes by the bytes it reads and scans.

What a search reads depends on what is resident just now, and that is known before it starts: a time that was measured
once by the number of lists promises too much where they are cold, and too little where they are cached.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from edge.expectation import Expected
from edge.ivf.base import Snapshot, Vectors
from edge.ivf.router import probe
from edge.ivf.tiers import Tier

Counts = npt.NDArray[np.int64]
Seconds = npt.NDArray[np.float64]

PLANNING_NBYTES = 256
"""Of a part, for a moment, while `search_bytes` goes through all of them."""

_DOUBT = 0.2
"""Deviation of the ratio of seconds to expectations before there were any."""


class Pace:
    """Learns from searches of one query each. Thread-safe."""

    def __init__(self) -> None:
        self._scan = Expected()
        """Seconds per byte scanned."""
        self._ratio = Expected(1.0, _DOUBT, count=2)
        """Of what searches took to what was expected: a busy machine, reads that hide behind scans."""

    def learn(self, read: int, scanned: int, seconds: float, bandwidth: float) -> None:
        """Takes in one search.

        Args:
            read, scanned: its bytes; those that were read were also scanned.
            bandwidth: of the link they came over, bytes per second; 0 if nothing ever came.
        """
        if scanned <= 0 or (read and not bandwidth):
            return
        reading = read / bandwidth if read else 0.0
        expected = reading + self._scan.mean * scanned
        if self._scan.count and expected:
            self._ratio.add(seconds / expected)
        if not self._scan.count or reading < seconds / 2:  # else what scanning took is hidden in what reading took
            self._scan.add(max(0.0, seconds - reading) / scanned)

    def seconds(self, read: Counts, scanned: Counts, bandwidth: float) -> Seconds | None:
        """What searches of so many bytes [n] will hardly exceed, [n]; None while nothing is known."""
        if not self._scan.count or (not bandwidth and read.any()):
            return None
        reading = read / bandwidth if bandwidth else np.zeros(len(read))
        return np.asarray((reading + self._scan.mean * scanned) * self._ratio.upper, np.float64)


def search_bytes(snapshot: Snapshot, query: Vectors, tiers: Sequence[Tier]) -> tuple[Counts, Counts]:
    """Bytes that a search for `query` [dim] reads and scans by the number of lists it probes, each [nlist], with what
    is in `tiers` or on its way there now."""
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
    """The most lists, of 1 to n, whose search fits into `slack` seconds; 1 if none does (PipeRAG, S3).

    Args:
        expected: seconds by the number of lists, [n], never falling.
    """
    return max(1, int(np.searchsorted(expected, slack, side="right")))


def _totals(nbytes: Sequence[int], ends: Counts) -> Counts:
    """Bytes of all parts before each of `ends` [n]."""
    return np.concatenate(([0], np.cumsum(nbytes, dtype=np.int64)))[ends]
