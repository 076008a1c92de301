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


class Watch:
    """A clock that moves only when it is told to, or slept on."""

    def __init__(self) -> None:
        self.reading = 0.0

    def now(self) -> float:
        return self.reading

    def sleep(self, seconds: float) -> None:
        self.reading += seconds


def test_a_limited_link_is_as_slow_as_it_says() -> None:
    watch = Watch()
    with Lane("link", bandwidth_limit=10e6, latency=0.5, clock=watch) as lane:
        for nbytes in (100_000, 200_000, 4_000_000):
            ticket = lane.submit("x", lambda nbytes=nbytes: nbytes, nbytes)
            ticket.wait()
            assert ticket.seconds == pytest.approx(0.5 + nbytes / 10e6)
        assert lane.rate.bandwidth == pytest.approx(10e6)
        assert lane.rate.latency == pytest.approx(0.5)
        assert lane.trace.snapshot()["link.busy_s"] == pytest.approx(3 * 0.5 + 0.43)


def test_a_transfer_slower_than_its_link_is_not_slowed_down() -> None:
    watch = Watch()
    with Lane("link", bandwidth_limit=1e6, clock=watch) as lane:

        def work() -> int:
            watch.reading += 0.02
            return 10_000

        lane.submit("x", work, 10_000).wait()
    assert watch.reading == 0.02
