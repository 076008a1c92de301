"""The times that a lane measures: waits, time that nobody waited for, and the speed of its link."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from naive.held import Held
from naive.waiting import PATIENCE_S, until

from edge.link import Lane, Ticket


def test_stalls_and_hidden_time_make_up_the_busy_time(lane: Lane) -> None:
    def work() -> int:
        time.sleep(0.01)
        return 1

    before = time.perf_counter()
    hidden = lane.submit("hidden", work, 1)
    until(lambda: hidden.done)  # the caller has something better to do
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
    ticket = lane.submit("once", lambda: int(gate.wait(PATIENCE_S)), 1)
    threading.Timer(0.02, gate.set).start()
    until(lambda: ticket.done)
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


def asked(lane: Lane, count: int, nbytes: int = 0, *, wake: bool = False) -> list[Ticket]:
    return [lane.submit(f"transfer {number}", lambda: nbytes, nbytes, wake=wake) for number in range(count)]


@pytest.mark.parametrize(
    ("depth", "count", "nbytes", "seconds"),
    [
        (1, 4, 0, 8.0),  # one latency after the other
        (4, 4, 0, 2.0),  # all at once
        (3, 4, 0, 4.0),  # the fourth one begins when the first one ends
        (64, 200, 0, 8.0),
        (1, 2, 10, 2 * 3.0),
        (8, 4, 10, 2.0 + 4 * 1.0),  # bytes move one transfer after the other
    ],
)
def test_latencies_overlap_as_deep_as_the_link(depth: int, count: int, nbytes: int, seconds: float) -> None:
    """A latency of 2 s, and 10 bytes in a second."""
    watch = Watch()
    with Lane("link", latency=2.0, bandwidth_limit=10.0, depth=depth, clock=watch) as lane:
        for ticket in asked(lane, count, nbytes):
            ticket.wait()
        assert watch.reading == pytest.approx(seconds)


def test_work_of_the_caller_hides_a_latency() -> None:
    watch = Watch()
    with Lane("link", latency=2.0, clock=watch) as lane:
        (ticket,) = asked(lane, 1)
        watch.sleep(1.5)
        ticket.wait()
        assert watch.reading == 2.0
        (ticket,) = asked(lane, 1)
        watch.sleep(5.0)
        ticket.wait()
        assert watch.reading == 7.0
        assert ticket.seconds == 2.0
        for ticket in asked(lane, 2):
            watch.sleep(2.0)
            ticket.wait()
        assert watch.reading == 11.0, "the link was at work while nobody waited"
        assert lane.trace.counters["link.hidden_s"] == pytest.approx(8.0 - 0.5)


def test_the_thread_that_waits_does_what_the_worker_was_not_woken_for(lane: Lane) -> None:
    threads: list[str] = []

    def work() -> int:
        threads.append(threading.current_thread().name)
        return 1

    quiet = [lane.submit("quiet", work, 1, wake=False) for _ in range(3)]
    for ticket in quiet:
        ticket.wait()
    assert threads == [threading.current_thread().name] * 3


def test_quiet_requests_keep_their_order_among_others(lane: Lane, held: Held) -> None:
    """A request that waits behind others wakes the worker. None waits for ever, and withdrawn requests are not done."""
    done: list[str] = []

    def work(name: str) -> Callable[[], int]:
        return lambda: done.append(name) or 1  # type: ignore[func-returns-value]

    tickets = [lane.submit(name, work(name), 1, wake=name == "loud") for name in ("one", "loud", "gone", "last")]
    assert tickets[2].cancel()
    threading.Timer(0.02, held.open).start()
    tickets[3].wait()
    assert done == ["one", "loud", "last"]
    more = [lane.submit(name, work(name), 1, wake=False) for name in ("a", "b")]
    more[1].wait()
    assert done[3:] == ["a", "b"]
    left = lane.submit("left", work("left"), 1, wake=False)
    lane.close()
    assert left.cancelled
    assert done[5:] == []
