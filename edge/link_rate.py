"""`LinkRate`: how long a transfer of so many bytes takes, learned from the transfers of one link."""

from __future__ import annotations

import threading
from dataclasses import dataclass

_SMOOTHING = 0.2

_ASSUMED = 1e-9
"""Seconds per byte before anything was measured: a disk that reads 1 GB a second."""

_FULL_WEIGHT = 8
"""A class of sizes that was seen so many times weighs no more when it is seen again."""


@dataclass(slots=True)
class _Size:
    """Transfers of about one size: smoothed bytes and seconds, and how many there were."""

    nbytes: float
    seconds: float
    count: int = 1


class LinkRate:
    """Fits seconds = latency + bytes / bandwidth. Thread-safe.

    Transfers are smoothed by class of size (a power of two), so that a thousand small reads do not displace what is
    known about large ones. The fit minimises relative errors: small transfers then decide the latency and large ones
    the bandwidth.
    """

    def __init__(self) -> None:
        self._sizes: dict[int, _Size] = {}
        self._lock = threading.Lock()
        self._fit: tuple[float, float] | None = None

    @property
    def bandwidth(self) -> float:
        """Bytes per second, latency not counted; 0 before the first transfer."""
        per_byte = self._fitted()[1]
        return 1 / per_byte if per_byte else 0.0

    @property
    def latency(self) -> float:
        """Seconds that a transfer takes beside its bytes; 0 where transfers of one size alone are known."""
        return self._fitted()[0]

    def seconds(self, nbytes: float) -> float:
        """What a transfer of so many bytes will take; 0 before the first transfer."""
        latency, per_byte = self._fitted()
        return latency + nbytes * per_byte

    def throughput(self, nbytes: float) -> float:
        """Bytes per second of transfers of so many bytes each, one after the other; 0 before the first transfer."""
        seconds = self.seconds(nbytes)
        return nbytes / seconds if seconds else 0.0

    def loss(self, nbytes: float) -> float:
        """Seconds per byte of reading a block of so many bytes again (see `edge.budget.Loss`)."""
        return self.seconds(nbytes) / nbytes if nbytes and self._sizes else _ASSUMED

    def add(self, nbytes: int, seconds: float) -> None:
        """Takes in a transfer that has ended."""
        if nbytes <= 0 or seconds <= 0:
            return
        with self._lock:
            kind = nbytes.bit_length()
            size = self._sizes.get(kind)
            if size is None:
                self._sizes[kind] = _Size(nbytes, seconds)
            else:
                size.count += 1
                step = _SMOOTHING if size.count > 1 / _SMOOTHING else 1 / size.count
                size.nbytes += step * (nbytes - size.nbytes)
                size.seconds += step * (seconds - size.seconds)
            self._fit = None

    def _fitted(self) -> tuple[float, float]:
        """Latency in seconds, and seconds per byte."""
        with self._lock:
            if self._fit is None:
                self._fit = _fit(list(self._sizes.values()))
            return self._fit


def _fit(sizes: list[_Size]) -> tuple[float, float]:
    """The line that minimises the sum of count * ((latency + nbytes * per_byte - seconds) / seconds)**2, with neither
    term below 0."""
    if not sizes:
        return 0.0, 0.0
    weights = [min(size.count, _FULL_WEIGHT) / size.seconds**2 for size in sizes]
    total = sum(weights)
    x = sum(w * size.nbytes for w, size in zip(weights, sizes, strict=True)) / total
    y = sum(w * size.seconds for w, size in zip(weights, sizes, strict=True)) / total
    spread = sum(w * (size.nbytes - x) ** 2 for w, size in zip(weights, sizes, strict=True))
    common = sum(w * (size.nbytes - x) * (size.seconds - y) for w, size in zip(weights, sizes, strict=True))
    slope = common / spread if spread > 0 else 0.0
    latency = y - slope * x
    if slope > 0 and latency >= 0:
        return latency, slope
    # Without a latency the best line goes through zero. Where larger transfers were not slower, no latency is known.
    squares = sum(w * size.nbytes**2 for w, size in zip(weights, sizes, strict=True))
    return 0.0, sum(w * size.nbytes * size.seconds for w, size in zip(weights, sizes, strict=True)) / squares
