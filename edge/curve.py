"""A measured time as a function of a count."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from edge.errors import InputError


@dataclass(frozen=True, slots=True)
class Curve:
    """Seconds as a function of a count, piecewise linear through measured points.

    Before the first point it is constant, and past the last it goes on like the last piece. A straight line through all
    points would be off by up to 46 % where the count is small.

    Attributes:
        counts: ascending.
        seconds: not descending; what was measured out of order is taken for the larger (see `measured`).
    """

    counts: tuple[int, ...]
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        ordered = all(a < b for a, b in pairwise(self.counts))
        rising = all(a <= b for a, b in pairwise(self.seconds))
        if not self.counts or len(self.counts) != len(self.seconds) or not ordered or not rising or self.seconds[0] < 0:
            raise InputError(f"a curve needs ascending counts and seconds that never fall, not {self.counts}")

    @classmethod
    def measured(cls, points: Sequence[tuple[int, float]]) -> Curve:
        """A curve through measurements in any order; noise that makes it fall is flattened upwards, so that nothing is
        promised that was not kept.

        Raises:
            InputError: there are no points, or a count occurs twice.
        """
        ordered = sorted(points)
        return cls(tuple(count for count, _ in ordered), tuple(accumulate((s for _, s in ordered), max)))

    def __call__(self, count: float) -> float:
        """Seconds at `count`."""
        if len(self.counts) == 1 or count <= self.counts[0]:
            return self.seconds[0]
        right = min(bisect.bisect_left(self.counts, count), len(self.counts) - 1)
        if count == self.counts[right]:
            return self.seconds[right]
        left = right - 1
        share = (count - self.counts[left]) / (self.counts[right] - self.counts[left])
        return self.seconds[left] + share * (self.seconds[right] - self.seconds[left])
