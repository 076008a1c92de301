"""Guesses hide prefill behind the search, waste a bounded number of tokens, and never change an answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from naive.knowledge import Rig, segment
from naive.kv import FakeContext

from edge.errors import ModelError
from edge.speculation import Speculation

SYSTEM = segment("system", 8)
A, B, C, D = (segment(name, 20) for name in "abcd")


class SlowContext(FakeContext):
    """Computes a batch each time it is let."""

    def __init__(self, **keys: int) -> None:
        super().__init__(**keys)  # type: ignore[arg-type]
        self.steps = threading.Semaphore(0)
        self.free = False

    def prefill(self, tokens: Sequence[int], cancelled: Callable[[], bool] | None = None) -> int:
        for start in range(0, len(tokens), self.batch):
            if cancelled is not None and cancelled():
                return start
            if not self.free:
                self.steps.acquire()
            super().prefill(tokens[start : start + self.batch])
        return len(tokens)


class Bench:
    """A tree on a context that works step by step, and other requests that may come."""

    def __init__(self, **keys: int) -> None:
        self.rig = Rig(batch=4)
        self.backend = SlowContext(batch=4)
        self.rig.tree._backend = self.rig.backend = self.backend
        self.others = 0
        self.speculation = Speculation(self.rig.tree, pending=lambda: self.others, trace=self.rig.trace, **keys)

    def step(self, batches: int) -> None:
        """Lets so many batches be computed, and waits until they are."""
        wanted = self.backend.prefilled + 4 * batches
        self.backend.steps.release(batches)
        self.until(lambda: self.backend.prefilled >= wanted)

    def until(self, true: Callable[[], bool]) -> None:
        for _ in range(5_000):
            if true():
                return
            time.sleep(0.001)
        raise AssertionError("it never came about")

    def end(self) -> dict[str, float]:
        self.backend.free = True
        self.backend.steps.release(1000)
        self.speculation.close()
        return {k.removeprefix("speculation."): v for k, v in self.rig.trace.snapshot().items() if "speculation" in k}


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.end()


def test_a_right_guess_is_found_in_context(bench: Bench) -> None:
    assert bench.speculation.stage([SYSTEM, A, B]) == "started"
    bench.step(12)
    assert bench.speculation.stage([SYSTEM, A, B]) == "unchanged"
    assert bench.speculation.finish([SYSTEM, A, B])
    bench.backend.free = True
    assert bench.rig.ask([SYSTEM, A, B]) == ["context"] * 3
    counters = bench.end()
    assert counters["useful_tokens"] == 48
    assert counters["wasted_tokens"] == 0
    assert (counters["started"], counters["agreed"]) == (1, 1)
    assert bench.rig.count("speculated") == 3


def test_the_request_waits_for_a_right_guess_under_way(bench: Bench) -> None:
    bench.speculation.stage([SYSTEM, A])
    bench.step(3)
    assert bench.speculation.finish([SYSTEM, A])
    bench.backend.free = True
    bench.backend.steps.release(1)
    assert bench.rig.ask([SYSTEM, A]) == ["context"] * 2
    assert bench.backend.prefilled == 28 + 2, "nothing is computed twice"
    bench.end()


def test_a_new_guess_takes_over_what_it_shares(bench: Bench) -> None:
    bench.speculation.stage([SYSTEM, A, B])
    bench.step(3)  # in the middle of a
    assert bench.speculation.stage([SYSTEM, A, C]) == "restarted"
    bench.step(4)  # a is computed to its end, and b is not begun
    bench.step(5)
    bench.speculation.finish([SYSTEM, A, C])
    bench.backend.free = True
    assert bench.rig.ask([SYSTEM, A, C]) == ["context"] * 3
    assert bench.backend.prefilled == 8 + 20 + 20 + 2
    assert bench.end()["wasted_tokens"] == 0


def test_a_wrong_guess_stops_at_the_next_batch(bench: Bench) -> None:
    bench.speculation.stage([SYSTEM, A, B])
    bench.step(9)  # half of b
    assert not bench.speculation.finish([SYSTEM, A, C])
    bench.backend.steps.release(1)  # the batch under way
    bench.until(lambda: not bench.rig.tree.busy)
    assert bench.rig.tree.match([SYSTEM, A]).context == 28
    counters = bench.end()
    assert counters["disagreed"] == 1
    assert counters["useful_tokens"] == 28
    assert counters["wasted_tokens"] == 12


def test_nothing_starts_while_others_wait(bench: Bench) -> None:
    bench.others = 1
    assert bench.speculation.stage([SYSTEM, A]) == "deferred"
    assert bench.speculation.stage([SYSTEM, A]) == "deferred"
    bench.others = 0
    assert bench.speculation.stage([SYSTEM, A]) == "started", "the queue is empty, and the documents are still the same"
    assert bench.rig.tree.match([SYSTEM, A]).missing == 28


def test_nothing_starts_while_somebody_uses_the_context(bench: Bench) -> None:
    bench.backend.free = True
    with bench.rig.tree.prepare([SYSTEM]):
        assert bench.speculation.stage([SYSTEM, A]) == "deferred"
    assert bench.speculation.stage([SYSTEM, A]) == "started"


def test_a_guess_gives_way_to_others_and_may_start_again(bench: Bench) -> None:
    bench.speculation.stage([SYSTEM, A])
    bench.step(3)
    bench.others = 1
    bench.backend.steps.release(1)
    bench.until(lambda: not bench.rig.tree.busy)
    assert bench.backend.prefilled == 16
    bench.others = 0
    bench.until(lambda: bench.speculation.stage([SYSTEM, A]) == "started")
    bench.backend.free = True
    bench.backend.steps.release(1)
    bench.until(lambda: bench.rig.tree.match([SYSTEM, A]).context == 28)


def test_a_request_that_is_final_does_not_give_way(bench: Bench) -> None:
    bench.speculation.stage([SYSTEM, A])
    bench.step(3)
    bench.speculation.finish([SYSTEM, A])
    bench.others = 1
    bench.step(4)
    assert bench.rig.tree.match([SYSTEM, A]).context == 28


def test_the_waste_is_bounded() -> None:
    bench = Bench(max_waste=50)
    assert bench.speculation.stage([SYSTEM, A]) == "started"
    bench.step(7)
    bench.until(lambda: not bench.rig.tree.busy)
    assert bench.speculation.stage([SYSTEM, B]) == "restarted", "28 and 20 may be in vain"
    bench.step(5)
    bench.until(lambda: not bench.rig.tree.busy)
    assert bench.speculation.stage([SYSTEM, C]) == "deferred"
    bench.speculation.finish([C])
    assert bench.end()["wasted_tokens"] == 48


def test_a_search_that_fails_ends_the_guess(bench: Bench) -> None:
    def search() -> None:
        bench.speculation.stage([SYSTEM, A])
        bench.step(2)
        bench.backend.steps.release(1)
        raise ZeroDivisionError

    with bench.speculation, suppress(ZeroDivisionError):
        search()
    assert not bench.rig.tree.busy
    assert bench.backend.prefilled <= 12
    assert bench.rig.trace.counters["speculation.wasted_tokens"] == bench.backend.prefilled


def test_a_guess_that_fails_is_the_requests_to_report() -> None:
    rig = Rig()
    rig.backend.failures = [0, 1]
    with Speculation(rig.tree, pending=lambda: 0, trace=rig.trace) as speculation:
        speculation.stage([SYSTEM, A])
        for _ in range(5_000):
            if rig.trace.counters["speculation.failed"]:
                break
            time.sleep(0.001)
        assert rig.trace.counters["speculation.failed"] == 1
        speculation.finish([SYSTEM, A])
        rig.backend.failures = [0, 1]
        with pytest.raises(ModelError):
            rig.tree.prepare([SYSTEM, A])
    rig.check()


def test_without_stages_there_is_no_thread() -> None:
    rig = Rig()
    before = threading.active_count()
    with Speculation(rig.tree, pending=lambda: 0) as speculation:
        assert threading.active_count() == before
        assert not speculation.finish([SYSTEM, A])


@settings(max_examples=50)
@given(
    stages=st.lists(st.lists(st.sampled_from([A, B, C, D]), max_size=3, unique=True), max_size=5),
    final=st.lists(st.sampled_from([A, B, C, D]), max_size=3, unique=True),
    bound=st.integers(0, 120),
)
def test_the_answer_never_depends_on_guesses(stages: list[list[object]], final: list[object], bound: int) -> None:
    rig = Rig(host=500)
    with Speculation(rig.tree, pending=lambda: 0, max_waste=bound, trace=rig.trace) as speculation:
        for documents in stages:
            speculation.stage([SYSTEM, *documents])  # type: ignore[list-item]
        speculation.finish([SYSTEM, *final])  # type: ignore[list-item]
        rig.ask([SYSTEM, *final])  # type: ignore[list-item]
    rig.check()
    assert rig.trace.counters["speculation.wasted_tokens"] <= bound
    assert rig.count("guessed_tokens") == sum(
        rig.trace.counters[f"speculation.{kind}_tokens"] for kind in ("wasted", "useful")
    )


def test_what_is_under_way_counts_as_spent() -> None:
    bench = Bench(max_waste=50)
    try:
        assert bench.speculation.stage([SYSTEM, A]) == "started"
        bench.until(lambda: bench.speculation._ahead == 28)
        assert bench.speculation.stage([SYSTEM, B]) == "deferred", "28 are under way, and 28 would come on top"
    finally:
        bench.end()


def test_the_bound_itself_may_be_reached() -> None:
    bench = Bench(max_waste=28)
    assert bench.speculation.stage([SYSTEM, A]) == "started"
    bench.end()
