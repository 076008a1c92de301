"""Predictions are made where they pay, follow the text where that pays, and never leave a reply with none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from edge.apps.assistant import retrieval as prefetching
from edge.apps.assistant.retrieval import FOLLOWING, LOOKAHEAD, Prefetcher, Retrieval
from edge.cache.lookahead import LookaheadOutcome
from edge.scheduling.predictor import BenefitGate, Seconds, TimePredictor
from edge.trace import Trace


class Clock:
    """Stands for the time module."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


class Behind:
    """Does work at once, and tells how long it took."""

    def __init__(self, clock: Clock) -> None:
        self.busy = False
        self.seconds = 0.0
        self._clock = clock

    def submit(self, work: Callable[[], object]) -> None:
        before = self._clock.now
        work()
        self.seconds += self._clock.now - before

    def settle(self) -> None: ...


class Rig:
    """A prefetcher whose predictions take so many seconds each; `asked` are the texts they were made from."""

    def __init__(self, library: Any, clock: Clock, seconds: float, *, reply_s: float | None = 4.0) -> None:
        self.asked: list[tuple[str, ...]] = []
        self.reply_s = reply_s
        self.trace = Trace(events=True)
        self.gate = BenefitGate(TimePredictor(), self.trace)
        self.library = library
        self._clock = clock
        self._seconds = seconds
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("edge.apps.assistant.retrieval.Background", lambda name: Behind(clock))
            self.prefetcher = Prefetcher(library, self, self.gate)

    def of(self, queries: Sequence[Retrieval]) -> np.ndarray:
        texts = tuple(text for query in queries for text in query.near)
        if texts not in self.asked:  # each is embedded once
            self._clock.now += self._seconds
            self.asked.append(texts)
        return np.full((len(queries), 64), float(len(self.asked)), np.float32)

    def cost(self, queries: Sequence[Retrieval]) -> Seconds:
        return Seconds(self._seconds)

    def left(self, written: int) -> Seconds | None:
        return None if self.reply_s is None else Seconds(max(0.0, self.reply_s - 0.1 * written))

    def begin(self) -> None:
        self.prefetcher.begin("hyde/passage", ["question"], self.left)

    def write(self, tokens: int, becoming: Any, first: int = 1) -> None:
        """A token each tenth of a second."""
        for token in range(first, first + tokens):
            self._clock.now += 0.1
            self.prefetcher.follow(becoming, f"text {token}", token)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(prefetching, "time", made)
    return made


def both(text: str) -> list[Retrieval]:
    return [Retrieval.of(text), Retrieval.of("other")]


def test_predictions_follow_the_text_and_take_a_quarter_of_the_time(library: Any, clock: Clock) -> None:
    rig = Rig(library, clock, 0.15)
    rig.begin()
    rig.write(30, both)
    assert rig.asked[0] == ("question",)
    assert 6 <= len(rig.asked) - 1 <= 8, "every half second and a little of some four"
    assert int(rig.asked[-1][0].removeprefix("text ")) > 24
    assert [count for count, _ in library.calls("lookahead")] == [1, *[2] * (len(rig.asked) - 1)]
    left = [seconds for _, seconds in library.calls("lookahead")]
    assert left == sorted(left, reverse=True)
    assert [ahead.cancelled for ahead in library.aheads] == [True] * (len(rig.asked) - 1) + [False]
    assert [ahead.followed for ahead in library.aheads] == [False] + [True] * (len(rig.asked) - 1)
    rig.prefetcher.close()
    assert rig.prefetcher.ready() is None
    assert library.aheads[-1].cancelled


def test_following_that_saves_less_than_it_costs_is_not_done_and_the_trace_says_why(library: Any, clock: Clock) -> None:
    rig = Rig(library, clock, 0.02)
    for _ in range(8):
        rig.begin()
        rig.write(20, both)
        count = len(library.aheads[-1].earlier)
        library.aheads[-1].outcomes = [LookaheadOutcome(0.3), *[LookaheadOutcome(0.01, 0.001)] * count]
        rig.prefetcher.close()
    counters = rig.trace.snapshot()
    assert counters["gate.following.started"] == 2, "it was tried"
    assert counters["gate.following.refused"] == 6
    assert counters["gate.lookahead.started"] == 8
    assert "gate.lookahead.refused" not in counters
    refusal = next(event for event in rig.trace._events if event["name"] == "no following")
    assert refusal["args"]["saves_s"] == pytest.approx(0.001)
    assert refusal["args"]["costs_s"] == pytest.approx(0.02)
    rig.asked.clear()
    rig.begin()
    rig.write(20, both)
    assert rig.asked == [("question",)]


def test_following_that_pays_goes_on(library: Any, clock: Clock) -> None:
    rig = Rig(library, clock, 0.011)
    for _ in range(8):
        rig.begin()
        rig.write(20, both)
        count = len(library.aheads[-1].earlier)
        library.aheads[-1].outcomes = [LookaheadOutcome(0.3), *[LookaheadOutcome(0.2, 0.1)] * count]
        rig.prefetcher.close()
    assert "gate.following.refused" not in rig.trace.snapshot()
    assert rig.gate.predictor.saving(f"{FOLLOWING}/hyde/passage").mean == pytest.approx(0.1)
    assert rig.gate.predictor.saving(f"{LOOKAHEAD}/hyde/passage").mean == pytest.approx(0.3)


def test_lookahead_that_does_harm_is_not_begun_and_leaves_what_was_begun_before(library: Any, clock: Clock) -> None:
    rig = Rig(library, clock, 0.001)
    for _ in range(3):
        rig.gate.learn(LOOKAHEAD, "hyde/answer", -0.05)
    rig.begin()
    before = rig.prefetcher.ready()
    rig.prefetcher.begin("hyde/answer", ["another"], rig.left)
    rig.write(20, None)
    assert rig.asked == [("question",)]
    assert rig.prefetcher.ready() is before
    assert rig.trace.snapshot()["gate.lookahead.refused"] == 1
    rig.prefetcher.begin("hyde/answer", ["another"], rig.left)
    rig.write(30, both)
    assert rig.prefetcher.ready() is not before, "its text may be followed all the same"


def test_a_reply_that_is_longer_than_expected_has_its_prediction_continued(library: Any, clock: Clock) -> None:
    """The window of the first prediction ends after half a second; the reply goes on."""
    rig = Rig(library, clock, 0.0, reply_s=0.5)
    rig.begin()
    rig.reply_s = 5.0
    rig.write(8, None)
    assert rig.asked == [("question",)], "nothing is embedded again"
    (_, first), (_, second) = library.calls("lookahead")
    assert first == 0.5
    assert second == pytest.approx(4.5)
    assert library.aheads[0].cancelled
    assert not library.aheads[1].cancelled
    assert not library.aheads[1].followed


def test_an_empty_prediction_does_not_withdraw_the_one_before(library: Any, clock: Clock) -> None:
    rig = Rig(library, clock, 0.0)
    rig.begin()
    library.fetches = 0
    rig.write(10, both)
    assert rig.prefetcher.ready() is library.aheads[0]
    assert not library.aheads[0].cancelled
    assert all(ahead.cancelled for ahead in library.aheads[1:])
    assert len(library.aheads) > 1


def test_a_short_text_counts_for_little(library: Any, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(library, clock, 0.0)
    base, new = np.array([[1.0, 0.0]], np.float32), np.array([[0.0, 1.0], [0.0, 1.0]], np.float32)
    monkeypatch.setattr(rig, "of", lambda queries: base)
    shares = [rig.prefetcher._mixed(new, share) for share in (0.05, 0.5, 1.0)]
    assert all(np.array_equal(mixed[0], new[0]) for mixed in shares), "all queries but the last one are complete"
    assert [mixed[1, 1] / mixed[1].sum() for mixed in shares] == pytest.approx([0.05, 0.5, 1.0])
    assert all(np.linalg.norm(mixed[1]) == pytest.approx(1.0) for mixed in shares)


def test_predictions_that_do_not_slow_the_generator_cost_nothing(library: Any, clock: Clock) -> None:
    """A token takes a tenth of a second, whether something is predicted meanwhile or not."""
    rig = Rig(library, clock, 0.02)
    rig.begin()
    for token in range(1, 30):
        clock.now += 0.1 if token < 10 else 0.08  # the prediction itself takes 0.02 of them
        rig.prefetcher.follow(both if token >= 9 else None, f"text {token}", token)
    cost = rig.prefetcher._cost([Retrieval.of("x")])
    assert cost is not None
    assert cost.mean == pytest.approx(0.0, abs=1e-6)
    slow = Rig(library, clock, 0.02)
    slow.begin()
    slow.write(8, None)
    slow.write(20, both, first=9)
    cost = slow.prefetcher._cost([Retrieval.of("x")])
    assert cost is not None
    assert cost.mean == pytest.approx(0.02, rel=0.1), "each second of predicting adds a second"


def test_no_prediction_begins_that_the_search_would_wait_for(library: Any, clock: Clock) -> None:
    rig = Rig(library, clock, 0.15, reply_s=1.0)
    rig.begin()
    rig.write(30, both)
    assert len(rig.asked) > 1
    assert int(rig.asked[-1][0].removeprefix("text ")) in (5, 6, 7, 8), "0.2 s are left after eight tokens"
