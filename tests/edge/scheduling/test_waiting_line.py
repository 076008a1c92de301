"""Order, sharing, cancellation and deadlines of threads that wait for the same kind of work."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive.waiting import PATIENCE_S, until

from edge.errors import DeadlinePassed, Withdrawn
from edge.scheduling.waiting_line import BATCH, PERSON, PROGRAM, Taken, Urgency, WaitingLine, current_urgency, urgent


class Held:
    """A line whose first piece of work waits until it is let go, so that others come while it runs."""

    def __init__(self, most: int = 1, window: int = 16) -> None:
        self.pieces: list[list[str]] = []
        self.threads: list[int] = []
        self.go = threading.Event()
        self.most = most
        self.line: WaitingLine[str] = WaitingLine(self.work)
        self.line.window = window
        self.pool = ThreadPoolExecutor(40)

    def work(self, taken: Taken[str]) -> None:
        tasks = [task for task in (taken.next() for _ in range(self.most if self.pieces else 1)) if task is not None]
        self.pieces.append(tasks)
        self.threads.append(threading.get_ident())
        if len(self.pieces) == 1:
            assert self.go.wait(PATIENCE_S)
        if "bad" in tasks:
            raise ValueError("a bad task")

    def start(self, task: str, urgency: Urgency | None = None) -> Future[None]:
        """Puts a task in line and waits until it is there, or has left again because its deadline was short."""
        before = len(self.line)

        def run() -> None:
            with urgent(urgency or Urgency()):
                self.line.run(task)

        future = self.pool.submit(run)
        until(lambda: (future.done() or len(self.line) == before + 1) and bool(self.pieces))
        return future

    def finish(self) -> None:
        self.go.set()
        self.pool.shutdown()


@settings(max_examples=40, deadline=None)
@given(
    priorities=st.lists(st.sampled_from([PERSON, PROGRAM, BATCH]), max_size=8),
    window=st.integers(0, 4),
    most=st.integers(1, 3),
)
def test_the_most_urgent_goes_first_and_nobody_is_passed_over_too_often(
    priorities: list[int], window: int, most: int
) -> None:
    held = Held(most, window)
    futures = [held.start("first")]
    futures += [held.start(str(i), Urgency(priority)) for i, priority in enumerate(priorities)]
    held.finish()
    for future in futures:
        future.result()
    order = [int(task) for piece in held.pieces[1:] for task in piece]
    assert sorted(order) == list(range(len(priorities))), "each was done once"
    assert max(map(len, held.pieces)) <= most
    place = {task: at for at, task in enumerate(order)}
    for task in order:
        passed = [other for other in order if other > task and place[other] < place[task]]
        assert len(passed) <= window, "a task is overtaken so often at most"
        assert all(priorities[other] < priorities[task] for other in passed), "and only by more urgent ones"
    if window >= len(priorities):
        assert order == sorted(order, key=lambda i: (priorities[i], i))


def test_an_error_reaches_every_task_of_the_piece_and_no_other() -> None:
    held = Held(most=2)
    first, bad, beside, later = (held.start(name) for name in ("first", "bad", "beside", "later"))
    held.finish()
    assert held.pieces == [["first"], ["bad", "beside"], ["later"]], "one thread does the work of several"
    assert len(held.line) == 0
    assert first.result() is None
    assert later.result() is None
    for future in (bad, beside):
        with pytest.raises(ValueError, match="a bad task"):
            future.result()


def test_one_that_waits_can_be_withdrawn_or_be_too_late() -> None:
    held = Held()
    urgency = Urgency()
    first, gone, last = held.start("first"), held.start("gone", urgency), held.start("last")
    late = held.start("late", Urgency(seconds=0.05))
    urgency.cancel()
    with pytest.raises(Withdrawn):
        gone.result(PATIENCE_S)
    with pytest.raises(DeadlinePassed, match=r"0\.05 seconds"):
        late.result(PATIENCE_S)
    held.finish()
    assert (first.result(), last.result()) == (None, None)
    assert held.pieces == [["first"], ["last"]]


def test_what_was_put_back_keeps_its_place_and_what_is_done_goes_on_at_once() -> None:
    seen: list[str] = []
    all_there, ended = threading.Event(), threading.Event()

    def work(taken: Taken[str]) -> None:
        first = taken.next()
        assert first is not None
        seen.append(first)
        if first == "a":
            assert all_there.wait(PATIENCE_S)
            second, third = taken.next(), taken.next()
            assert (second, third) == ("b", "c")
            taken.put_back(third)
            taken.done(second)
            assert ended.wait(PATIENCE_S), "b's thread goes on while a's work lasts"

    line: WaitingLine[str] = WaitingLine(work)
    with ThreadPoolExecutor(3) as pool:
        futures = []
        for name in "abc":
            futures.append(pool.submit(line.run, name))
            until(lambda: len(line) == len(futures))
        all_there.set()
        futures[1].result(PATIENCE_S)
        ended.set()
        for future in futures:
            future.result(PATIENCE_S)
    assert seen == ["a", "c"]


def test_an_interrupted_thread_leaves_the_others_their_tasks() -> None:
    tried: list[list[str | None]] = []

    def work(taken: Taken[str]) -> None:
        until(lambda: bool(tried) or len(line) == 2)
        tried.append([taken.next(), taken.next()])
        if len(tried) == 1:
            raise KeyboardInterrupt

    line: WaitingLine[str] = WaitingLine(work)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(line.run, "a")
        until(lambda: len(line) == 1)
        second = pool.submit(line.run, "b")
        with pytest.raises(KeyboardInterrupt):
            first.result(PATIENCE_S)
        assert second.result(PATIENCE_S) is None
    assert tried == [["a", "b"], ["b", None]]


def test_an_urgency_belongs_to_what_is_done_inside() -> None:
    mine = Urgency(PERSON, seconds=100)
    with urgent(mine):
        assert current_urgency() is mine
    assert current_urgency() is not mine
    heard: list[int] = []
    with mine.heard(lambda: heard.append(1)):
        mine.cancel()
    mine.cancel()
    assert heard == [1], "who listens no more hears nothing"
    with pytest.raises(Withdrawn):
        mine.check()
