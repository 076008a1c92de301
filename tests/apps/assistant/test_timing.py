"""A generator is timed by itself."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from edge.apps.assistant import timing
from edge.apps.assistant.timing import GeneratorClock
from edge.runtimes.generation.base import Piece


def test_only_the_generators_own_time_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def passes(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: now))
    closed = []

    def answer() -> Iterator[Piece]:
        try:
            passes(5)
            yield Piece("a")
            passes(2)
            yield Piece("b")
            yield Piece("c")
        finally:
            closed.append(True)

    clock = GeneratorClock()
    for piece in clock.timed(answer()):
        passes(100)
        if piece.text == "b":
            break
    assert clock.count == 2
    assert (clock.first, clock.seconds) == (5, 7)
    clock = GeneratorClock()
    assert len(list(clock.timed(answer()))) == clock.count == 3
    assert closed
