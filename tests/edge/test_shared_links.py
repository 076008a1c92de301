"""Several users of one link, and transfers that follow one another over two links."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from naive.held import Held

from edge.errors import StorageError
from edge.link import Lane, Ticket


def submit(lane: Lane, order: list[str], name: str, **keys: Any) -> Ticket:
    def work() -> int:
        order.append(name)
        return 1

    return lane.submit(name, work, 1, **keys)


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
