"""`LinkRate`: predicts the time of a transfer from its size, learned from the transfers of one link."""

from __future__ import annotations

import threading
from dataclasses import dataclass

_SMOOTHING = 0.2

_ASSUMED = 1e-9
"""Seconds per byte before the first measurement: a disk that reads 1 GB a second."""

_FULL_WEIGHT = 8
"""Largest weight of a class of sizes: further transfers do not increase it."""


@dataclass(slots=True)
class _Size:
    """Transfers of about one size: smoothed bytes and seconds, and their number."""

    nbytes: float
    seconds: float
    count: int = 1


class LinkRate:
    """Fits seconds = latency + bytes / bandwidth. Thread-safe.

    Transfers are smoothed by class of size (a power of two), so that a thousand small reads do not displace the data
    about large ones. The fit minimizes relative errors. Small transfers then determine the latency, and large ones the
    bandwidth.
    """

    def __init__(self) -> None:
        self._sizes: dict[int, _Size] = {}
        self._lock = threading.Lock()
        self._fit: tuple[float, float] | None = None

    @property
    def bandwidth(self) -> float:
        """Bytes per second without the latency; 0 before the first transfer."""
        per_byte = self._fitted()[1]
        return 1 / per_byte if per_byte else 0.0

    @property
    def latency(self) -> float:
        """Seconds of a transfer besides the time for its bytes; 0 if only one size of transfers has been seen."""
        return self._fitted()[0]

    def seconds(self, nbytes: float) -> float:
        """Expected seconds of a transfer of `nbytes` bytes; 0 before the first transfer."""
        latency, per_byte = self._fitted()
        return latency + nbytes * per_byte

    def throughput(self, nbytes: float) -> float:
        """Bytes per second of consecutive transfers of `nbytes` bytes each; 0 before the first transfer."""
        seconds = self.seconds(nbytes)
        return nbytes / seconds if seconds else 0.0

    def loss(self, nbytes: float) -> float:
        """Seconds per byte to read a block of `nbytes` bytes again (see `edge.budget.Loss`)."""
        return self.seconds(nbytes) / nbytes if nbytes and self._sizes else _ASSUMED

    def add(self, nbytes: int, seconds: float) -> None:
        """Learns from a finished transfer."""
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
    """The line (latency, per_byte) that fits best, with neither term below 0.

    It minimizes the sum of count * ((latency + nbytes * per_byte - seconds) / seconds)**2.
    """
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
    # The best line without a latency goes through zero. It is used, too, if larger transfers were not slower.
    squares = sum(w * size.nbytes**2 for w, size in zip(weights, sizes, strict=True))
    return 0.0, sum(w * size.nbytes * size.seconds for w, size in zip(weights, sizes, strict=True)) / squares
