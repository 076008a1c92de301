"""The prediction follows what is written, at most a tenth of the time, and what both want is never let go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from edge.apps.assistant import prefetching
from edge.apps.assistant.prefetching import Prefetcher, Query


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(prefetching.time, "perf_counter", lambda: now[0])
    return now


def made(library: Any, clock: list[float], seconds: float) -> tuple[Prefetcher, list[tuple[str, ...]]]:
    """One whose predictions take so many seconds each; and the texts they were made from."""
    asked: list[tuple[str, ...]] = []

    def embed(queries: Sequence[Query]) -> np.ndarray:
        clock[0] += seconds
        asked.append(tuple(text for query in queries for text in query.near))
        return np.zeros((len(queries), 64), np.float32)

    return Prefetcher(library, embed), asked


def test_predictions_follow_the_text_and_take_a_tenth_of_the_time(library: Any, clock: list[float]) -> None:
    sight, asked = made(library, clock, 0.05)
    sight.begin(["question"], 4.0)
    for step in range(1, 31):
        clock[0] += 0.1
        sight.follow(lambda text: [Query.of(text), Query.of("other")], f"text {step}")
    assert asked[0] == ("question",)
    assert 5 <= len(asked) - 1 <= 7, "every half second and a little of some three"
    assert asked[-1][0].startswith("text 2")
    lengths = [count for count, _ in library.calls("lookahead")]
    assert lengths == [1, *[2] * (len(asked) - 1)]
    left = [seconds for _, seconds in library.calls("lookahead")]
    assert left[0] == pytest.approx(3.95), "what the prediction took is gone"
    assert left == sorted(left, reverse=True)
    assert [ahead.cancelled for ahead in library.aheads] == [True] * (len(asked) - 1) + [False]
    sight.close()
    assert sight.window is None
    assert library.aheads[-1].cancelled


def test_nothing_is_predicted_from_nothing(library: Any, clock: list[float]) -> None:
    sight, asked = made(library, clock, 0.0)
    sight.begin(["question"], None)
    clock[0] += 1
    sight.follow(lambda text: [], "1.")
    assert asked == [("question",)]
    assert library.calls("lookahead") == [(1, None)]


def test_after_the_expected_end_there_is_no_time_left(library: Any, clock: list[float]) -> None:
    sight, _ = made(library, clock, 0.0)
    sight.begin(["question"], 0.5)
    clock[0] += 2
    sight.follow(lambda text: [Query.of(text)], "longer than expected")
    assert library.calls("lookahead")[-1] == (1, 0.0)
