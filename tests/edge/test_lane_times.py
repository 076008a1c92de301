"""What a lane knows of time: waits, time that nobody waited for, and how fast its link is."""

from __future__ import annotations

import threading
import time

import pytest

from edge.lanes import Lane


def test_stalls_and_hidden_time_make_up_the_busy_time(lane: Lane) -> None:
    def work() -> int:
        time.sleep(0.01)
        return 1

    before = time.perf_counter()
    hidden = lane.submit("hidden", work, 1)
    while not hidden.done:  # the caller has something better to do
        time.sleep(0.001)
    hidden.wait()
    counters = lane.trace.snapshot()
    assert (counters["disk.stall_s"], counters["disk.hidden_s"]) == (0, hidden.seconds), "nobody waited"
    stalled = [lane.submit("stalled", work, 1) for _ in range(3)]
    for ticket in stalled:
        ticket.wait()
    elapsed = time.perf_counter() - before
    counters = lane.trace.snapshot()
    accounted = counters["disk.stall_s"] + counters["disk.hidden_s"]
    assert counters["disk.busy_s"] == pytest.approx(sum(t.seconds for t in (hidden, *stalled)))
    assert counters["disk.busy_s"] * 0.999 <= accounted <= elapsed, "no second is missing, none counted twice"


def test_waiting_again_counts_nothing_again(lane: Lane) -> None:
    """A block that stays in memory is waited for in every pass; it was hidden or stalled for once."""
    gate = threading.Event()
    ticket = lane.submit("once", lambda: int(gate.wait(30)), 1)
    threading.Timer(0.02, gate.set).start()
    while not ticket.done:
        time.sleep(0.001)
    ticket.wait()
    once = lane.trace.snapshot()
    assert once["disk.hidden_s"] > 0
    for _ in range(5):
        ticket.wait()
    assert lane.trace.snapshot()["disk.hidden_s"] == once["disk.hidden_s"]


def test_a_limited_link_is_as_slow_as_it_says() -> None:
    with Lane("link", bandwidth_limit=10e6) as lane:
        tickets = [lane.submit("x", lambda: 100_000, 100_000) for _ in range(5)]
        for ticket in tickets:
            ticket.wait()
            assert ticket.seconds >= 0.01 * 0.999
        assert 0 < lane.bandwidth <= 10e6 * 1.001
        assert lane.trace.snapshot()["link.busy_s"] >= 0.05 * 0.999


def test_the_bandwidth_is_smoothed(lane: Lane) -> None:
    def work() -> int:
        time.sleep(0.001)
        return 1000

    first = lane.submit("first", work, 1000)
    first.wait()
    lane.submit("ended", lambda: 0, 0).wait()
    assert lane.bandwidth == pytest.approx(1000 / first.seconds)
    lane.bandwidth = 100.0
    second = lane.submit("second", work, 1000)
    second.wait()
    lane.submit("ended", lambda: 0, 0).wait()
    assert lane.bandwidth == pytest.approx(100 + 0.2 * (1000 / second.seconds - 100))


def test_a_transfer_slower_than_its_link_is_not_slowed_down(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    with Lane("link", bandwidth_limit=1e6) as lane:

        def work() -> int:
            until = time.perf_counter() + 0.02
            while time.perf_counter() < until:
                pass
            return 10_000

        monkeypatch.setattr("edge.lanes.time.sleep", slept.append)
        lane.submit("x", work, 10_000).wait()
        monkeypatch.undo()
    assert slept == []
