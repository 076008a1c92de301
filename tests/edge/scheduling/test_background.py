"""Work behind the caller's own: one piece at a time, and of those that wait the newest."""

from __future__ import annotations

import threading

import pytest
from naive.waiting import PATIENCE_S

from edge.errors import InputError
from edge.scheduling.background import Background, RetrievalPipeline
from edge.trace import Trace


def test_only_the_newest_that_waits_is_done() -> None:
    behind = Background("test")
    gate, begun = threading.Event(), threading.Event()
    done: list[int] = []

    def first() -> None:
        begun.set()
        gate.wait(PATIENCE_S)
        done.append(0)

    def piece(number: int) -> None:
        done.append(number)
        if number == 3:
            last.set()

    last = threading.Event()
    behind.submit(first)
    assert begun.wait(PATIENCE_S)
    for number in (1, 2, 3):
        behind.submit(lambda number=number: piece(number))
    assert behind.busy
    gate.set()
    assert last.wait(PATIENCE_S)
    behind.settle()
    assert done == [0, 3]
    assert not behind.busy
    assert behind.seconds > 0


def test_settling_waits_for_what_is_under_way_and_gives_up_the_rest() -> None:
    behind = Background("test")
    gate, begun = threading.Event(), threading.Event()
    done: list[str] = []

    def first() -> None:
        begun.set()
        gate.wait(PATIENCE_S)
        done.append("first")

    behind.submit(first)
    assert begun.wait(PATIENCE_S)
    behind.submit(lambda: done.append("second"))
    threading.Timer(0.05, gate.set).start()
    behind.settle()
    assert done == ["first"]
    behind.settle()


def test_an_error_is_raised_once_where_it_is_waited_for() -> None:
    behind = Background("test")
    begun = threading.Event()

    def fails() -> None:
        begun.set()
        raise KeyError("x")

    behind.submit(fails)
    assert begun.wait(PATIENCE_S)
    with pytest.raises(KeyError):
        behind.settle()
    behind.settle()
    again = threading.Event()
    behind.submit(again.set)
    assert again.wait(PATIENCE_S)
    behind.settle()
    with RetrievalPipeline(lambda query, seconds: 1 / 0) as pipeline:
        pipeline.ask("x", 1.0)
        with pytest.raises(ZeroDivisionError):
            pipeline.take()


def test_a_pipeline_searches_behind_the_callers_work() -> None:
    trace = Trace()
    let = threading.Event()

    def search(query: str, seconds: float) -> str:
        let.wait()
        return f"{query} within {seconds}"

    with RetrievalPipeline(search, trace=trace) as pipeline:
        pipeline.ask("old", 1.0)
        pipeline.ask("rivers", 0.2)
        let.set()
        assert pipeline.take() == "rivers within 0.2"
        with pytest.raises(InputError, match="no retrieval is under way"):
            pipeline.take()
    assert trace.counters["pipelining.searches"] == 1


@pytest.mark.parametrize("slack", [0.1, 2.0, 100.0])
@pytest.mark.parametrize(("takes", "late"), [(1.0, 0), (2.19, 0), (2.21, 1), (50.0, 1)])
def test_a_search_is_late_beyond_a_tenth_more_than_the_time_there_was(takes: float, late: int, slack: float) -> None:
    """Two seconds pass from `ask` to `take`, regardless of the predicted slack."""
    trace = Trace()
    clock = [0.0]
    searching, written = threading.Event(), threading.Event()

    def search(query: str, seconds: float) -> str:
        searching.set()
        written.wait(PATIENCE_S)
        clock[0] = takes
        return query

    def now() -> float:
        if threading.current_thread() is threading.main_thread() and clock[0] == 2.0:
            written.set()
        return clock[0]

    with RetrievalPipeline(search, trace=trace, clock=now) as pipeline:
        pipeline.ask("rivers", slack)
        searching.wait(PATIENCE_S)
        clock[0] = 2.0
        pipeline.take()
    counters = trace.snapshot()
    assert counters.get("pipelining.late", 0) == late
    assert counters["pipelining.search_s"] == pytest.approx(takes)
    assert counters["pipelining.slack_error_s"] == pytest.approx(abs(slack - 2.0))
