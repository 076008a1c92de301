"""Work behind the caller's own: one piece at a time, and of those that wait the newest."""

from __future__ import annotations

import threading

import pytest
from naive.waiting import PATIENCE_S

from edge.scheduling.background import Background


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
