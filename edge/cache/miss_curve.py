"""The number of bytes a prediction should fetch, from its miss rate by bytes (TeleRAG, appendix B)."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence

from edge.errors import InputError

_SAMPLES = 4096


class MissCurve:
    """Share of needed blocks that a prediction misses, as a function of the bytes fetched. Thread-safe.

    It is learned from the blocks that were needed after earlier predictions.
    """

    def __init__(self) -> None:
        self._needed: list[float] = []
        self._lock = threading.Lock()

    def observe(self, positions: Sequence[float]) -> None:
        """Learns from the blocks that were needed after a prediction.

        Args:
            positions: for each needed block, the bytes that must be fetched in the order of the prediction until the
                block is there; infinity for a block that was not predicted.
        """
        with self._lock:
            self._needed = [*self._needed, *positions][-_SAMPLES:]

    def points(self) -> list[tuple[float, float]]:
        """(bytes, miss rate): the steps of the curve, ascending in bytes, from (0, 1); empty before any observation."""
        with self._lock:
            needed = sorted(self._needed)
        if not needed:
            return []
        steps = [(0.0, 1.0)]
        for i, position in enumerate(needed, 1):
            if math.isfinite(position):
                steps.append((position, 1 - i / len(needed)))
        return steps


def bytes_to_fetch(
    bandwidth: float, seconds: float, misses: Sequence[tuple[float, float]], slow_seconds: float
) -> float:
    """Bytes to fetch for the smallest total time of fetching and searching (TeleRAG, appendix B).

    The total is t1 + t2 with t1 = max(window, b / bandwidth) and t2 = miss(b) * slow_seconds. It is smallest either at
    b = bandwidth * seconds, or at a later step of the miss curve, where t1 has grown less than t2 has fallen.

    Args:
        bandwidth: bytes per second of the link.
        seconds: length of the window.
        misses: (bytes, miss rate), ascending; see `MissCurve.points`.
        slow_seconds: time of a search that misses every block.

    Raises:
        InputError: the bandwidth or the window is negative.
    """
    if bandwidth < 0 or seconds < 0:
        raise InputError(f"a window has a bandwidth and a length of at least 0, not {bandwidth} and {seconds}")
    inside = bandwidth * seconds
    if not bandwidth or not misses:
        return inside
    reached = min((miss for nbytes, miss in misses if nbytes <= inside), default=1.0)
    choices = [(seconds + reached * slow_seconds, inside)]
    choices += [(b / bandwidth + miss * slow_seconds, b) for b, miss in misses if b > inside]
    return min(choices)[1]
