"""How many bytes a prediction should fetch: what it misses by bytes, and the best point (TeleRAG, appendix B)."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence

from edge.errors import InputError

_SAMPLES = 4096


class MissCurve:
    """Share of needed blocks that a prediction misses, as a function of the bytes fetched: learned from what was
    needed after earlier predictions. Thread-safe."""

    def __init__(self) -> None:
        self._needed: list[float] = []
        self._lock = threading.Lock()

    def observe(self, positions: Sequence[float]) -> None:
        """For each block that was needed: bytes that had to be fetched, in the order of the prediction, until it was
        there; infinity for one that was not predicted."""
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
    """Bytes that minimise fetch and search time together (TeleRAG, appendix B).

    t1 = max(window, b / bandwidth), t2 = miss(b) * slow_seconds: least at b = bandwidth * seconds, or past it at a step
    of the miss curve, where t1 grows more slowly than t2 falls.

    Args:
        bandwidth: of the link, bytes per second.
        seconds: the window.
        misses: (bytes, miss rate), ascending; see `MissCurve.points`.
        slow_seconds: time of a search in which everything misses.

    Raises:
        InputError: bandwidth or window are negative.
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
