"""How long a generation will take, learned from those before: the window in which clusters can be fetched for free; and
how long a search takes.

TeleRAG (section 4.1) fixes one average per pipeline on a calibration set. Here every step of every pipeline has its own
length, learned while answering, and the length of the prompt counts: seconds = prefill of its tokens + expected output
tokens * seconds per token.
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge.curve import Curve

_SMOOTHING = 0.3
_FORMAT = 1
_REPEATS = 2
_LONG_SECONDS = 0.25
"""A search this long is the last one measured: a curve is not worth reading a whole index for."""


@dataclass(slots=True)
class _Mean:
    """Exponentially smoothed mean; the first values count fully."""

    value: float = 0.0
    count: int = 0

    def add(self, value: float) -> None:
        self.count += 1
        self.value += (value - self.value) * max(_SMOOTHING, 1 / self.count)


class GenerationTimes:
    """Learned output lengths of steps and speeds of generators. Thread-safe.

    A file that cannot be read or written is no obstacle: what it would tell is learned again.
    """

    def __init__(self, path: Path | None = None) -> None:
        """Starts from what was saved at `path`; None keeps nothing."""
        self._path = path
        self._lock = threading.Lock()
        self._lengths: dict[str, _Mean] = {}
        self._token_s: dict[str, _Mean] = {}
        self._prefill_s: dict[str, _Mean] = {}
        self._load()

    def expect(self, generator: str, pipeline: str, step: str, prompt_tokens: int) -> float | None:
        """Seconds that a step is expected to take; None before the first one was seen."""
        with self._lock:
            length = self._lengths.get(f"{generator}/{pipeline}/{step}")
            token = self._token_s.get(generator)
            prefill = self._prefill_s.get(generator)
        if length is None or token is None:
            return None
        return (prefill.value * prompt_tokens if prefill else 0.0) + length.value * token.value

    def learn(
        self, generator: str, pipeline: str, step: str, *, computed: int, new: int, ttft_s: float, seconds: float
    ) -> None:
        """Takes in one finished generation.

        Args:
            computed: prompt tokens that had to be computed (those with reused states did not).
            new: tokens written.
            ttft_s: seconds to the first of them; `seconds` to the last.
        """
        if new < 1 or not 0 <= ttft_s <= seconds < math.inf:
            return
        with self._lock:
            self._lengths.setdefault(f"{generator}/{pipeline}/{step}", _Mean()).add(new)
            if new > 1:
                self._token_s.setdefault(generator, _Mean()).add((seconds - ttft_s) / (new - 1))
            if computed > 0:
                self._prefill_s.setdefault(generator, _Mean()).add(ttft_s / computed)

    def save(self) -> None:
        """Keeps what was learned for the next process."""
        if self._path is None:
            return
        with self._lock:
            state = {
                "format": _FORMAT,
                **{
                    name: {key: [mean.value, mean.count] for key, mean in means.items()}
                    for name, means in self._tables().items()
                },
            }
        draft = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            draft.write_text(json.dumps(state), encoding="utf-8")
            draft.replace(self._path)
        except OSError:
            draft.unlink(missing_ok=True)

    def _load(self) -> None:
        try:
            state = json.loads(self._path.read_text(encoding="utf-8")) if self._path is not None else {}
            if state.get("format") != _FORMAT:
                return
            for name, means in self._tables().items():
                means.update({str(key): _mean(pair) for key, pair in state[name].items()})
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            for means in self._tables().values():
                means.clear()

    def _tables(self) -> dict[str, dict[str, _Mean]]:
        return {"lengths": self._lengths, "token_s": self._token_s, "prefill_s": self._prefill_s}


class RetrievalTimes:
    """How long a search takes by nprobe, measured on the collection in use when it is first asked for. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._curves: dict[int, Curve] = {}

    def curve(self, search: Callable[[int], object], nlist: int) -> Curve:
        """Seconds by nprobe of an index of `nlist` lists.

        Args:
            search: searches so many lists. It is called with 1, 2, 4, ... until that takes long or all are searched:
                beyond, the curve goes on as it ended.
        """
        with self._lock:
            if nlist not in self._curves:
                self._curves = {nlist: Curve.measured(_measure(search, nlist))}
            return self._curves[nlist]


def _measure(search: Callable[[int], object], nlist: int) -> list[tuple[int, float]]:
    points: list[tuple[int, float]] = []
    nprobe = 1
    search(nprobe)  # the first search also warms up what all share
    while True:
        seconds = min(_seconds(search, nprobe) for _ in range(_REPEATS))
        points.append((nprobe, seconds))
        if nprobe == nlist or seconds > _LONG_SECONDS:
            return points
        nprobe = min(2 * nprobe, nlist)


def _seconds(search: Callable[[int], object], nprobe: int) -> float:
    started = time.perf_counter()
    search(nprobe)
    return time.perf_counter() - started


def _mean(pair: Any) -> _Mean:
    value, count = float(pair[0]), int(pair[1])
    if not (math.isfinite(value) and value >= 0 and count >= 1):
        raise ValueError(f"{pair!r} is no mean")
    return _Mean(value, count)
