"""A generator is timed by itself."""

from __future__ import annotations

import time
from collections.abc import Iterator

from edge.apps.assistant.timing import GeneratorClock
from edge.runtimes.generation.base import Piece


def test_only_the_generators_own_time_counts() -> None:
    closed = []

    def answer() -> Iterator[Piece]:
        try:
            time.sleep(0.05)
            yield Piece("a")
            time.sleep(0.02)
            yield Piece("b")
            yield Piece("c")
        finally:
            closed.append(True)

    clock = GeneratorClock()
    for piece in clock.timed(answer()):
        time.sleep(0.1)
        if piece.text == "b":
            break
    assert clock.count == 2
    assert 0.05 <= clock.first < 0.1
    assert 0.02 <= clock.seconds - clock.first < 0.1
    clock = GeneratorClock()
    assert len(list(clock.timed(answer()))) == clock.count == 3
    assert closed
