"""Several searchers as one device: the host's results, for any number of searchers, and if any of them dies."""

from __future__ import annotations

import functools
import gc
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from naive.beside import DIM, Both
from naive.lists import trained

from edge.budget import MemoryBudget
from edge.devices.cpu import CpuDevice, LimitedDevice
from edge.devices.remote import RemoteDevice
from edge.devices.searchers import SearchersDevice, queue_length, share_of_queue
from edge.errors import CapabilityError, DeviceLost, PartLost, RangeError
from edge.ivf.base import Bytes
from edge.ivf.device import Candidates, ListScan, SearchRequest, open_device
from edge.trace import Trace

WIDTH = 40


def several(count: int, of: str = "cpu", **options: str) -> Callable[..., SearchersDevice]:
    return functools.partial(SearchersDevice, of=of, count=count, **options)


def test_searchers_have_options_of_their_own() -> None:
    """Two cards are `cuda:count=2,on=cuda:0+cuda:1`."""
    device = open_device("limited:count=4,cap=1MB+2MB,latency=0", MemoryBudget(1 << 36, baseline=0))
    assert (device.name, device.memory.limit) == ("4 searchers", 6 * 10**6)
    assert [one.memory.limit for one in device._own] == [10**6, 2 * 10**6, 10**6, 2 * 10**6]  # type: ignore[attr-defined]
    device.close()
    device = open_device("searchers:of=cpu,count=3,cap=10kB", MemoryBudget(1 << 20, baseline=0))
    assert (device.name, device.memory.limit) == ("3 searchers", 30_000)
    device.close()
    ledger = MemoryBudget(1 << 36, baseline=0)
    with pytest.raises(CapabilityError, match="no memory of its own"):
        SearchersDevice(ledger, searchers=[CpuDevice(ledger)])
    assert ledger.used == 0


def test_several_remote_searchers_return_what_one_returns(tmp_path: Path) -> None:
    """The merged queues of the coordinator themselves, before the host scores anything again."""
    random = np.random.default_rng(6)
    rows = random.standard_normal((3000, DIM)).astype(np.float32)
    queries = random.standard_normal((12, DIM)).astype(np.float32)
    sizes = (1, 3, 700, 1296, 1000)
    ledger = MemoryBudget(4 << 30, baseline=0)
    remote = [RemoteDevice(ledger, cap=1 << 20) for _ in range(8)]
    try:
        for name in ("flat", "sq8"):
            codec = trained(name, rows)
            codes = codec.encode(rows)
            found = {}
            for count in (1, 2, 4, 8):
                device = SearchersDevice(ledger, searchers=remote[:count])
                scans, start = [], 0
                for number, size in enumerate(sizes):
                    buffer = device.allocate(codes[start : start + size].nbytes)
                    device.write(buffer, codes[start : start + size])
                    probing = [query for query in range(len(queries)) if (query + number) % 3]
                    scans.append(ListScan(buffer, start, size, None, probing))
                    start += size
                seen = Candidates.empty(len(queries), WIDTH)
                answer = device.search(SearchRequest(codec, queries, scans, np.arange(start), seen))
                order = np.lexsort((answer.labels, -answer.scores))
                found[count] = [np.take_along_axis(each, order, axis=1) for each in (answer.scores, answer.labels)]
                for scan in scans:
                    device.free(scan.codes)
                device.close()
            for count in (2, 4, 8):
                assert found[count][0].tobytes() == found[1][0].tobytes()
                assert found[count][1].tolist() == found[1][1].tolist()
    finally:
        for device in remote:
            device.close()
    assert ledger.used == 0


@pytest.mark.parametrize("codec", ["flat", "sq8", "pq"])
@pytest.mark.parametrize(
    ("of", "count", "lists"),
    [("cpu", 3, "striped"), ("remote", 1, "striped"), ("limited+fpga", 2, "striped"), ("cpu", 3, "whole")],
)
def test_searchers_of_every_kind_find_what_the_host_finds(
    tmp_path: Path, codec: str, of: str, count: int, lists: str
) -> None:
    both = Both(tmp_path, codec, several(count, of, lists=lists))
    for nprobe in (5, 5, 16):
        both.check(nprobe=nprobe)
    both.check(nprobe=2, allowed=np.sort(both.lists.ids[::7]))
    place = both.searcher.place
    assert len(place.residency) > 0
    used = [searcher.device.memory.used for searcher in both.device._searchers]
    assert min(used) > 0, "every searcher holds some rows"
    both.close()


class Watched(LimitedDevice):
    """Keeps the widths of the queues that it was asked for, and dies when it is told to."""

    def __init__(self, memory: MemoryBudget) -> None:
        super().__init__(memory, cap=1 << 20, bandwidth=1e12)
        self.widths: list[int] = []
        self.searches_left = self.writes_left = 10**9

    def search(self, request: SearchRequest) -> Candidates:
        self.widths.append(request.seen.scores.shape[1])
        self.searches_left -= 1
        if self.searches_left < 0:
            raise DeviceLost("a watched device has died")
        return super().search(request)

    def write(self, buffer: Bytes, data: Bytes) -> None:
        self.writes_left -= 1
        if self.writes_left < 0:
            raise DeviceLost("a watched device has died")
        super().write(buffer, data)


class Asked:
    """Watched searchers that hold one list, and one query."""

    def __init__(self, rows: np.ndarray, count: int = 4, **options: str) -> None:
        self.ledger = MemoryBudget(1 << 36, baseline=0)
        self.trace = Trace()
        self.watched = [Watched(self.ledger) for _ in range(count)]
        self.device = SearchersDevice(self.ledger, searchers=self.watched, trace=self.trace, **options)
        self.codec = trained("flat", rows)
        self.rows = rows
        codes = self.codec.encode(rows)
        self.buffer = self.device.allocate(codes.nbytes)
        self.device.write(self.buffer, codes)

    def search(self, query: np.ndarray, seen: Candidates | None = None) -> Candidates:
        lists = [ListScan(self.buffer, 0, len(self.rows), None, [0])]
        seen = seen or Candidates.empty(1, WIDTH)
        labels = np.arange(len(self.rows))
        return self.device.search(SearchRequest(self.codec, query[None], lists, labels, seen))

    def check(self, query: np.ndarray) -> None:
        found = self.search(query)
        best = np.argsort(-(self.rows @ query))[:WIDTH]
        assert set(found.labels[0].tolist()) == set(best.tolist())

    def close(self) -> None:
        self.device.free(self.buffer)
        self.device.close()
        for watched in self.watched:
            assert watched.memory.used == 0
            watched.close()


def test_queues_are_truncated_and_hardly_ever_too_short() -> None:
    random = np.random.default_rng(1)
    asked = Asked(random.standard_normal((4000, DIM)).astype(np.float32))
    for _ in range(200):
        asked.check(random.standard_normal(DIM).astype(np.float32))
    length = queue_length(WIDTH, 4)
    assert length < WIDTH / 2
    widths = [width for watched in asked.watched for width in watched.widths]
    assert set(widths) <= {length, WIDTH}
    assert widths.count(length) == 200 * 4
    assert asked.trace.snapshot()["searchers.again"] == widths.count(WIDTH) <= 200 * 0.03
    asked.close()


@pytest.mark.parametrize("near", [30, 100])
def test_a_searcher_that_holds_all_near_rows_is_asked_again(near: int) -> None:
    random = np.random.default_rng(2)
    rows = random.standard_normal((4000, DIM)).astype(np.float32)
    query = random.standard_normal(DIM).astype(np.float32)
    rows[1 : 4 * near : 4] = query + 0.1 * random.standard_normal((near, DIM)).astype(np.float32)
    asked = Asked(rows)
    asked.check(query)
    assert asked.trace.snapshot()["searchers.again"] == 1
    assert [watched.widths[1:] for watched in asked.watched] == [[], [WIDTH], [], []]
    asked.close()


@pytest.mark.parametrize("count", [30, 2])
def test_fewer_rows_than_places_or_searchers_are_all_found(count: int) -> None:
    rows = np.random.default_rng(3).standard_normal((count, DIM)).astype(np.float32)
    asked = Asked(rows)
    assert sorted(asked.search(rows[0]).labels[0].tolist()) == [-1] * (WIDTH - count) + list(range(count))
    asked.close()


def test_a_searcher_that_dies_is_taken_out_and_changes_nothing_that_was_found() -> None:
    rows = np.random.default_rng(4).standard_normal((400, DIM)).astype(np.float32)
    rows[2::4] += 3 * rows[0]  # the third searcher holds the best rows, and is asked twice
    asked = Asked(rows)
    asked.watched[2].searches_left = 1
    seen = Candidates.empty(1, WIDTH)
    with pytest.raises(PartLost, match="one of the 4 searchers is lost: a watched device has died"):
        asked.search(rows[0], seen)
    assert (seen.labels == -1).all()
    with pytest.raises(PartLost, match="rows of the lists"):
        asked.search(rows[0])
    again = asked.device.allocate(rows.nbytes)
    asked.device.write(again, asked.codec.encode(rows))
    asked.device.free(asked.buffer)
    asked.buffer = again
    asked.check(rows[0])
    asked.watched[0].writes_left = 0
    refused = asked.device.allocate(rows.nbytes)
    with pytest.raises(PartLost):
        asked.device.write(refused, asked.codec.encode(rows))
    asked.device.free(refused)
    for watched in (asked.watched[1], asked.watched[3]):
        watched.searches_left = watched.writes_left = 0
    last = asked.device.allocate(rows.nbytes)
    with pytest.raises(DeviceLost, match="all 4 searchers are lost") as all_lost:
        asked.device.write(last, asked.codec.encode(rows))
    assert not isinstance(all_lost.value, PartLost)
    with pytest.raises(DeviceLost, match="all 4 searchers are lost"):
        asked.device.allocate(100)
    assert asked.trace.snapshot()["searchers.lost"] == 4
    asked.device.free(last)
    asked.close()


@pytest.mark.parametrize("when", ["before", "between"])
def test_others_take_over_when_a_process_dies(tmp_path: Path, when: str) -> None:
    both = Both(tmp_path, "sq8", several(3, "remote"), cap=1 << 20)
    place = both.searcher.place
    if when == "between":
        both.check()
        assert len(place.residency) > 0
    _kill(both.device._searchers[1].device)
    both.check()  # the host searches the lists that can no longer be searched there
    assert not place.lost
    for _ in range(3):  # the others are filled, and search
        both.check()
    assert len(place.residency) > 0
    asked = both.trace.snapshot()["searchers.asked"]
    assert both.check().hits > 0
    assert both.trace.snapshot()["searchers.asked"] > asked
    assert both.trace.snapshot()["searchers.lost"] == 1
    for searcher in both.device._searchers:
        _kill(searcher.device)
    for _ in range(2):
        both.check()
    assert place.lost
    both.close()


def _kill(device: RemoteDevice) -> None:
    device._process.kill()
    device._process.wait()


def test_a_higher_confidence_means_longer_queues() -> None:
    random = np.random.default_rng(1)
    rows = random.standard_normal((400, DIM)).astype(np.float32)
    widths = []
    for confidence in ("0.5", "0.999"):
        asked = Asked(rows, 2, confidence=confidence)
        asked.search(rows[0])
        widths.append(asked.watched[0].widths[0])
        asked.close()
    assert widths == [queue_length(WIDTH, 2, confidence=0.5), queue_length(WIDTH, 2, confidence=0.999)]
    assert widths[0] < widths[1] < WIDTH


def test_a_list_that_could_not_be_sent_leaves_no_memory_behind(tmp_path: Path) -> None:
    gc.collect()
    gc.disable()  # objects that only the garbage collector finds would be held until then
    try:
        both = Both(tmp_path, "sq8", several(2, "remote"), cap=1 << 20)
        _kill(both.device._searchers[0].device)
        both.check()
        both.close()
    finally:
        gc.enable()


def _tail(results: int, queues: int, length: int) -> float:
    """Probability that a given one of `queues` queues gets more than `length` of the best `results`."""
    return math.fsum(share_of_queue(results, queues, count) for count in range(length + 1, results + 1))


@pytest.mark.parametrize(("queues", "length"), [(2, 63), (4, 38), (8, 23), (16, 15), (32, 10), (64, 8)])
def test_queues_are_as_short_as_the_bound_allows(queues: int, length: int) -> None:
    assert queue_length(100, queues) == length
    assert queues * _tail(100, queues, length) <= 0.01 < queues * _tail(100, queues, length - 1)


@pytest.mark.parametrize(("queues", "results"), [(4, 20), (16, 100)])
def test_striped_lists_lose_nothing_in_99_of_100_searches_and_whole_lists_do(queues: int, results: int) -> None:
    random = np.random.default_rng(5)
    length = queue_length(results, queues)
    dealt = random.integers(queues, size=(10_000, results))
    most = np.stack([np.bincount(row, minlength=queues).max() for row in dealt])
    assert (most <= length).mean() >= 0.99
    # Near results lie in few lists, and each list in one place.
    whole = random.integers(queues, size=(1000, 3))[:, :, None].repeat(results // 3, axis=2).reshape(1000, -1)
    most = np.stack([np.bincount(row, minlength=queues).max() for row in whole])
    assert (most <= length).mean() < 0.5


def test_the_tail_by_hand() -> None:
    """Three results in two queues: 3 in one with 1/8, at least 2 with 1/2."""
    assert (_tail(3, 2, 2), _tail(3, 2, 1)) == (pytest.approx(1 / 8), pytest.approx(1 / 2))
    assert (_tail(3, 1, 2), _tail(3, 1, 3)) == (1, 0)
    assert queue_length(3, 2, confidence=0.74) == 2
    assert queue_length(3, 2, confidence=0.76) == 3
    assert queue_length(1, 1000, confidence=0.5) == 1
    assert queue_length(10, 1) == 10
    with pytest.raises(RangeError):
        queue_length(100, 16, confidence=1.0)
