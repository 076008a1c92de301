"""One worker per link: order of the requests, withdrawal, and every second accounted for once."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable

import numpy as np
import pytest
from naive.held import Held
from naive.source import MemorySource, numbered_blocks
from naive.waiting import PATIENCE_S, at_once, until

from edge.blocks import BlockId
from edge.errors import CorruptBlock, EdgeError, StorageError
from edge.link import Lane, Ticket


def recorder(order: list[str], name: str) -> object:
    def work() -> int:
        order.append(name)
        return 1

    return work


def submit(lane: Lane, order: list[str], name: str, **keys: float) -> Ticket:
    return lane.submit(name, recorder(order, name), 1, **keys)  # type: ignore[arg-type]


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
    ]
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


def test_waiting_for_what_was_withdrawn_is_an_error_not_an_empty_buffer(lane: Lane, held: Held) -> None:
    ticket = submit(lane, [], "withdrawn")
    ticket.cancel()
    with pytest.raises(EdgeError, match="withdrawn"):
        ticket.wait()


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


def test_fetch_fills_the_buffer_and_counts_its_bytes(lane: Lane) -> None:
    source = MemorySource(numbered_blocks([100, 50]))
    buffers = [bytearray(100), bytearray(100)]
    for i, buffer in enumerate(buffers):
        lane.fetch(source, BlockId("layer", i), memoryview(buffer)).wait()
        assert bytes(buffer[: 100 - 50 * i]) == source.blocks[BlockId("layer", i)]
    counters = lane.trace.snapshot()
    assert (counters["disk.bytes"], counters["disk.transfers"]) == (150, 2)
    assert lane.rate.bandwidth > 0


def test_who_waits_for_an_idle_lane_transfers_itself(lane: Lane, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[tuple[str, str]] = []

    def work(name: str) -> Callable[[], int]:
        return lambda: done.append((name, threading.current_thread().name)) or 1

    monkeypatch.setattr(lane.link.condition, "notify", lambda n=1: None)  # the worker sleeps on
    first, second = lane.submit("first", work("first"), 1), lane.submit("second", work("second"), 1)
    first.wait()
    second.wait()
    own = threading.current_thread().name
    assert done == [("first", own), ("second", own)]
    assert lane.trace.snapshot()["disk.transfers"] == 2


def test_nobody_overtakes_the_queue_or_a_running_transfer(lane: Lane, held: Held) -> None:
    order: list[str] = []

    def work(name: str) -> Callable[[], int]:
        return lambda: order.append(name) or 1

    lane.submit("first", work("first"), 1)
    second = lane.submit("second", work("second"), 1)
    threading.Timer(0.05, held.open).start()
    second.wait()
    assert order == ["first", "second"]


def test_close_waits_for_a_transfer_in_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    lane = Lane()
    monkeypatch.setattr(lane.link.condition, "notify", lambda n=1: None)
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


def test_an_idle_lane_keeps_no_buffer_alive(lane: Lane) -> None:
    source = MemorySource(numbered_blocks([4096]))
    buffer = np.zeros(4096, np.uint8)
    watched = weakref.ref(buffer)
    ticket = lane.fetch(source, BlockId("layer", 0), buffer.data)
    ticket.wait()
    del buffer, ticket
    until(lambda: watched() is None)  # the worker sets `done` a moment before it is idle


def test_a_ticket_that_is_kept_keeps_no_buffer_alive(lane: Lane, held: Held) -> None:
    source = MemorySource(numbered_blocks([4096]))
    buffers = [np.zeros(4096, np.uint8) for _ in range(2)]
    watched = [weakref.ref(buffer) for buffer in buffers]
    tickets = [lane.fetch(source, BlockId("layer", 0), buffer.data) for buffer in buffers]
    del buffers
    tickets[0].cancel()
    assert watched[0]() is None
    held.open()
    tickets[1].wait()
    lane.submit("last", lambda: 0, 0).wait()
    assert watched[1]() is None


def test_a_failed_transfer_keeps_no_buffer_alive(lane: Lane) -> None:
    source = MemorySource(numbered_blocks([4096]))
    source.broken = set(source.blocks)
    buffer = np.zeros(4096, np.uint8)
    watched = weakref.ref(buffer)
    ticket = lane.fetch(source, BlockId("layer", 0), buffer.data)
    with pytest.raises(StorageError):
        ticket.wait()
    del buffer, ticket
    for _ in range(20):
        gc.collect()  # an error and the frames it remembers are a cycle
        if watched() is None:
            return
        time.sleep(0.005)
    pytest.fail("the buffer of a failed transfer is still alive")


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


def test_the_order_holds_when_the_first_in_the_queue_is_withdrawn(lane: Lane, held: Held) -> None:
    order: list[str] = []
    tickets = {p: submit(lane, order, str(p), priority=p) for p in (1, 10, 2, 11)}
    assert tickets.pop(1).cancel()
    held.open()
    for ticket in tickets.values():
        ticket.wait()
    assert order == ["2", "10", "11"]


def test_the_worker_does_not_overtake_who_transfers_in_its_own_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    lane = Lane()
    monkeypatch.setattr(lane.link.condition, "notify", lambda n=1: None)
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
    monkeypatch.setattr(lane.link.condition, "notify", lambda n=1: None)
    late = submit(lane, ran, "late", deadline=time.perf_counter() - 1)
    assert not lane.link._claim(late)
    monkeypatch.undo()
    submit(lane, ran, "next").wait()
    assert ran == ["next"]
    assert late.cancelled
