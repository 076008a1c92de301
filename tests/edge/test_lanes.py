"""One worker per link and for all its users: order of the requests, withdrawal, and every second accounted for once."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from naive.held import Held
from naive.source import MemorySource, numbered_blocks
from naive.waiting import PATIENCE_S, at_once, until

from edge.blocks import BlockId
from edge.errors import CorruptBlock, EdgeError, StorageError
from edge.link import Lane, LinkRate, Ticket


def put_to_sleep(lane: Lane, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker waits and is not woken any more. One that has just started would find requests without being woken."""
    until(lambda: bool(lane.link.condition._waiters))  # type: ignore[attr-defined]
    monkeypatch.setattr(lane.link.condition, "notify", lambda n=1: None)


def submit(lane: Lane, order: list[str], name: str, **keys: Any) -> Ticket:
    return lane.submit(name, lambda: order.append(name) or 1, 1, **keys)  # type: ignore[func-returns-value]


def test_priority_then_deadline_then_first_come(lane: Lane, held: Held) -> None:
    order: list[str] = []
    far = time.perf_counter() + 1000
    tickets = [
        submit(lane, order, "late", priority=5),
        submit(lane, order, "first come", priority=1),
        submit(lane, order, "second come", priority=1),
        submit(lane, order, "far deadline", priority=1, deadline=far + 1),
        submit(lane, order, "near deadline", priority=1, deadline=far),
        submit(lane, order, "urgent", priority=-1),
        submit(lane, order, "gone", priority=-2),
    ]
    assert tickets.pop().cancel(), "the first in the queue"
    held.open()
    for ticket in tickets:
        ticket.wait()
    assert order == ["urgent", "near deadline", "far deadline", "first come", "second come", "late"]


def test_a_deadline_that_has_passed_cancels(lane: Lane, held: Held) -> None:
    order: list[str] = []
    missed = submit(lane, order, "missed", deadline=time.perf_counter() - 1)
    kept = submit(lane, order, "kept")
    held.open()
    kept.wait()
    assert order == ["kept"]
    assert missed.done
    assert missed.cancelled
    assert lane.trace.snapshot()["disk.missed"] == 1


def test_withdrawing_before_the_start_and_after(lane: Lane, held: Held) -> None:
    order: list[str] = []
    withdrawn, kept = submit(lane, order, "withdrawn"), submit(lane, order, "kept")
    assert withdrawn.cancel()
    assert not withdrawn.cancel()
    assert withdrawn.done
    assert withdrawn.cancelled
    with pytest.raises(EdgeError, match="withdrawn"):
        withdrawn.wait()
    assert not held.ticket.cancel(), "it runs already"
    held.open()
    kept.wait()
    assert not kept.cancel()
    assert not kept.cancelled
    assert order == ["kept"]
    assert lane.trace.snapshot()["disk.transfers"] == 2


def test_settle_waits_for_a_running_transfer_and_withdraws_a_waiting_one(lane: Lane, held: Held) -> None:
    waiting = submit(lane, [], "waiting")
    waiting.settle()
    assert waiting.cancelled
    settled = threading.Event()

    def settle() -> None:
        held.ticket.settle()
        settled.set()

    thread = threading.Thread(target=settle)
    thread.start()
    assert not settled.wait(0.05)
    held.open()
    thread.join(PATIENCE_S)
    assert settled.is_set()
    assert held.ticket.done


@pytest.mark.parametrize("error", [StorageError("disk"), CorruptBlock("block"), KeyboardInterrupt(), ValueError("x")])
def test_an_error_goes_to_the_waiter_and_the_worker_goes_on(lane: Lane, error: BaseException) -> None:
    def fail() -> int:
        raise error

    ticket = lane.submit("fails", fail, 10)
    with pytest.raises(type(error)):
        ticket.wait()
    assert ticket.done
    order: list[str] = []
    submit(lane, order, "next").wait()
    assert order == ["next"]


def test_close_lets_the_running_transfer_end_and_wakes_who_waits_for_the_others() -> None:
    lane = Lane()
    held = Held(lane)
    order: list[str] = []
    queued = submit(lane, order, "queued")
    woken: list[type[BaseException] | None] = []

    def wait() -> None:
        try:
            queued.wait()
            woken.append(None)
        except BaseException as error:
            woken.append(type(error))

    waiter = threading.Thread(target=wait)
    closer = threading.Thread(target=lane.close)
    waiter.start()
    closer.start()
    waiter.join(PATIENCE_S)
    assert len(woken) == 1
    assert woken[0] is not None, "it must not look as if the transfer had taken place"
    assert queued.cancelled
    assert not held.ticket.done
    held.open()
    closer.join(PATIENCE_S)
    assert held.ticket.done
    assert order == []
    lane.close()
    with pytest.raises(RuntimeError, match="disk"):
        submit(lane, order, "too late")


def test_close_waits_for_a_transfer_in_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    lane = Lane()
    put_to_sleep(lane, monkeypatch)
    entered, gate, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> int:
        entered.set()
        assert gate.wait(PATIENCE_S)
        time.sleep(0.05)
        ended.set()
        return 1

    waiter = threading.Thread(target=lane.submit("slow", work, 1).wait)
    waiter.start()
    assert entered.wait(PATIENCE_S)
    monkeypatch.undo()
    threading.Timer(0.05, gate.set).start()
    lane.close()
    assert ended.is_set()
    waiter.join()


def test_a_ticket_that_is_kept_keeps_no_buffer_alive(lane: Lane, held: Held) -> None:
    """Whether it was withdrawn, has failed or its block has come, also after the lane is idle."""
    source = MemorySource(numbered_blocks([4096]))
    buffers = [np.zeros(4096, np.uint8) for _ in range(2)]
    watched = [weakref.ref(buffer) for buffer in buffers]
    tickets = [lane.fetch(source, BlockId("layer", 0), buffer.data) for buffer in buffers]
    del buffers
    tickets[0].cancel()
    assert watched[0]() is None
    held.open()
    tickets[1].wait()
    until(lambda: watched[1]() is None)  # the worker sets `done` a moment before it is idle
    source.broken = set(source.blocks)
    failing = np.zeros(4096, np.uint8)
    watched.append(weakref.ref(failing))
    with pytest.raises(StorageError):
        lane.fetch(source, BlockId("layer", 0), failing.data).wait()
    del failing
    until(lambda: gc.collect() >= 0 and watched[2]() is None)  # an error and the frames it remembers are a cycle


def test_threads_sharing_a_lane(lane: Lane) -> None:
    source = MemorySource(numbered_blocks([64] * 10))
    wrong: list[int] = []

    def work(seed: int) -> None:
        random = np.random.default_rng(seed)
        for _ in range(100):
            index = int(random.integers(10))
            buffer = bytearray(64)
            ticket = lane.fetch(source, BlockId("layer", index), memoryview(buffer), priority=float(random.integers(3)))
            if random.random() < 0.3 and ticket.cancel():
                continue
            ticket.wait()
            if bytes(buffer) != source.blocks[BlockId("layer", index)]:
                wrong.append(index)

    at_once(work, 5)
    assert not wrong
    assert lane.trace.snapshot()["disk.bytes"] == 64 * len(source.reads)


def test_the_worker_does_not_overtake_who_transfers_in_its_own_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    lane = Lane()
    put_to_sleep(lane, monkeypatch)
    entered, gate = threading.Event(), threading.Event()
    waiter = threading.Thread(target=lane.submit("slow", lambda: entered.set() or int(gate.wait(PATIENCE_S)), 0).wait)
    waiter.start()
    assert entered.wait(PATIENCE_S)
    monkeypatch.undo()
    second = lane.submit("second", lambda: 1, 1)
    time.sleep(0.05)
    early = second.done
    gate.set()
    second.wait()
    waiter.join()
    lane.close()
    assert not early, "one transfer at a time"


def test_who_waits_does_not_transfer_what_is_too_late(lane: Lane, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    put_to_sleep(lane, monkeypatch)
    late = submit(lane, ran, "late", deadline=time.perf_counter() - 1)
    assert not lane.link._claim(late)
    monkeypatch.undo()
    submit(lane, ran, "next").wait()
    assert ran == ["next"]
    assert late.cancelled


def test_stalls_and_hidden_time_make_up_the_busy_time(lane: Lane) -> None:
    def work() -> int:
        time.sleep(0.01)
        return 1

    before = time.perf_counter()
    hidden = lane.submit("hidden", work, 1)
    until(lambda: hidden.done)  # the caller has something better to do
    for _ in range(3):  # a block that stays in memory is waited for in every pass
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


def test_a_transfer_follows_another_over_a_second_link(lane: Lane) -> None:
    done: list[str] = []
    with Lane("link") as second:
        held = Held(lane)
        first = submit(lane, done, "disk")
        last = second.submit("device", lambda: done.append("device") or 1, 1, after=first)
        time.sleep(0.02)
        assert not last.done
        held.open()
        last.wait()
        after = second.submit("late", lambda: done.append("late") or 1, 1, after=first)  # that is over already
        after.wait()
    assert done == ["disk", "device", "late"]


def test_what_follows_a_failed_transfer_fails_with_its_error(lane: Lane) -> None:
    def fail() -> int:
        raise StorageError("the disk is gone")

    ran: list[int] = []
    with Lane("link") as second:
        first = lane.submit("first", fail, 1)
        last = second.submit("last", lambda: ran.append(1) or 1, 1, after=first)
        with pytest.raises(StorageError, match="gone"):
            last.wait()
    assert not ran


def test_withdrawing_what_follows_withdraws_what_it_follows(lane: Lane, held: Held) -> None:
    order: list[str] = []
    with Lane("link") as second:
        first = submit(lane, order, "first")
        last = submit(second, order, "last", after=first)
        assert last.cancel()
        assert first.cancelled
        assert last.cancelled
        running = submit(second, order, "running", after=held.ticket)
        assert not running.cancel(), "what it follows has begun"
        held.open()
        running.wait()
    assert order == ["running"]


def test_lanes_of_one_link_share_its_queue_and_its_rate_but_not_their_counters() -> None:
    first, second = Lane.shared("test link"), Lane.shared("test link")
    try:
        assert first.link is second.link
        held = Held(first)
        order: list[str] = []
        submit(first, order, "later", priority=2)
        submit(second, order, "sooner", priority=1)
        held.open()
        last = submit(first, order, "last", priority=3)
        last.wait()
        assert order == ["sooner", "later", "last"]
        assert second.trace.snapshot()["disk.transfers" if second.name == "disk" else "test link.transfers"] == 1
        assert second.rate is first.rate
    finally:
        first.close()
    submit(second, order, "the link lives on").wait()
    second.close()
    second.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "edge-lane-test link"]
    again = Lane.shared("test link")
    submit(again, order, "it starts again").wait()
    again.close()


def test_closing_a_lane_withdraws_its_own_transfers_only() -> None:
    first, second = Lane.shared("test link"), Lane.shared("test link")
    held = Held(second)
    order: list[str] = []
    own, other = submit(first, order, "own"), submit(second, order, "other")
    first.close()
    assert own.cancelled
    held.open()
    other.wait()
    second.close()
    assert order == ["other"]


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
        before = watch.reading

        def slow() -> int:
            watch.sleep(2.0)
            return 1_000

        lane.submit("x", slow, 1_000).wait()
        assert watch.reading == before + 2.0, "a transfer slower than its link is not slowed down"


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


@pytest.mark.parametrize("wake", [False, True])
def test_the_thread_that_waits_does_what_the_worker_was_not_woken_for(
    lane: Lane, monkeypatch: pytest.MonkeyPatch, wake: bool
) -> None:
    threads: list[str] = []

    def work() -> int:
        threads.append(threading.current_thread().name)
        return 1

    if wake:
        put_to_sleep(lane, monkeypatch)
    for ticket in [lane.submit("quiet", work, 1, wake=wake) for _ in range(3)]:
        ticket.wait()
    assert threads == [threading.current_thread().name] * 3
    assert lane.trace.snapshot()["disk.transfers"] == 3


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


def taught(sizes: list[int], latency: float, bandwidth: float, *, noise: float = 0.0) -> LinkRate:
    random = np.random.default_rng(0)
    rate = LinkRate()
    for nbytes in sizes:
        rate.add(nbytes, (latency + nbytes / bandwidth) * float(1 + noise * random.standard_normal()))
    return rate


def test_what_is_not_known_is_zero_and_no_term_is_negative() -> None:
    rate = LinkRate()
    assert (rate.bandwidth, rate.latency, rate.seconds(100), rate.throughput(100)) == (0, 0, 0, 0)
    rate.add(0, 1.0)
    rate.add(5, 0.0)
    assert rate.bandwidth == 0
    rate = taught([1000] * 10, 1.0, 1000.0)
    assert (rate.latency, rate.bandwidth) == (0.0, pytest.approx(500)), "of one size"
    rate = LinkRate()
    rate.add(4096, 0.01)  # a cold disk
    rate.add(1 << 20, 0.001)  # the page cache
    assert rate.latency == 0
    assert rate.bandwidth > 0


@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_latency_and_bandwidth_are_told_apart(noise: float) -> None:
    rate = taught([4096, 8 << 20, 60_000, 1 << 20] * 20, 100e-6, 1e9, noise=noise)
    assert rate.latency == pytest.approx(100e-6, rel=0.01 + 2 * noise)
    assert rate.bandwidth == pytest.approx(1e9, rel=0.01 + 2 * noise)
    assert rate.seconds(8 << 20) == pytest.approx(100e-6 + (8 << 20) / 1e9, rel=0.01 + 2 * noise)


def test_many_small_transfers_do_not_displace_a_few_large_ones() -> None:
    """An unweighted mean of the rates, or one over the last transfers, would be that of the small ones."""
    rate = taught([8 << 20] * 5 + [4096] * 5000, 100e-6, 1e9)
    assert rate.seconds(8 << 20) == pytest.approx(100e-6 + (8 << 20) / 1e9, rel=0.01)
    assert rate.throughput(4096) == pytest.approx(4096 / (100e-6 + 4096 / 1e9), rel=0.01)


def test_a_link_that_changes_is_learned_anew() -> None:
    rate = taught([1000, 100_000] * 20, 0.001, 1e6)
    for nbytes in [1000, 100_000] * 40:
        rate.add(nbytes, 0.002 + nbytes / 1e5)
    assert rate.bandwidth == pytest.approx(1e5, rel=0.02)
    assert rate.latency == pytest.approx(0.002, rel=0.05)
