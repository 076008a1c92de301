"""Searches that wait for a slow place are searched together, and each leaves with its last list."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from naive.lists import clustered, gridded, trained, write_lists
from naive.searching import Rig
from naive.waiting import until

from edge.budget import MemoryBudget
from edge.devices.cpu import CpuDevice, LimitedDevice
from edge.errors import CorruptBlock
from edge.ivf.base import Found, Vectors
from edge.ivf.device import Candidates, SearchRequest
from edge.ivf.placement import Placement
from edge.ivf.plan import probe
from edge.ivf.reading import Reader
from edge.ivf.search import IndexSearcher
from edge.link import Lane
from edge.trace import Trace

DIM = 16


class Slow:
    """An index whose reads wait for `go_on`, and take longer than scans."""

    def __init__(self, folder: Path, **shape: object) -> None:
        self.rig = Rig(folder, gridded(1200, DIM), nlist=12, files=1, **shape)
        self.rig.searcher.host.pace = 1e-18
        self.rig.searcher._searches = 1  # a search alone shares nothing
        self.rig.lane.rate.add(10_000, 1.0)
        (self.file,) = self.rig.lists.files
        self.go_on = threading.Event()
        self.read = self.file.read
        self.file.read = self._read  # type: ignore[method-assign]
        self.broken: set[int] = set()
        self.pool = ThreadPoolExecutor(16)

    def _read(self, block: object, into: memoryview) -> None:
        assert self.go_on.wait(60)
        self.read(block, into)  # type: ignore[arg-type]
        if block.index in self.broken:  # type: ignore[attr-defined]
            raise CorruptBlock("broken")

    def ask(self, queries: Vectors, nprobe: int = 3) -> Future[Found]:
        return self.pool.submit(self.rig.search, queries, 5, nprobe)

    def waits(self, count: int) -> None:
        until(lambda: len(self.rig.searcher._line) == count)

    def together(self, queries: Sequence[Vectors], *nprobes: int, go_on: bool = True) -> list[Future[Found]]:
        """Asks the first ones alone, and the others while these are read."""
        nprobes = nprobes or (3,) * len(queries)
        asked = [self.ask(queries[0], nprobes[0])]
        self.waits(1)
        asked += [self.ask(own, nprobe) for own, nprobe in zip(queries[1:], nprobes[1:], strict=True)]
        self.waits(len(queries))
        if go_on:
            self.go_on.set()
        return asked

    def near(self, number: int, count: int = 1) -> Vectors:
        """Queries [count, dim] near the centroid of a list."""
        noise = np.random.default_rng(number).integers(-1, 2, (count, DIM)) / 16
        return (self.rig.lists.snapshot.centroids[number] + noise).astype(np.float32)

    def close(self) -> None:
        self.go_on.set()
        self.pool.shutdown()
        self.rig.close()


Make = Callable[..., Slow]


@pytest.fixture
def slow(tmp_path: Path, small_process: None) -> Iterator[Make]:
    made: list[Slow] = []

    def make(**shape: object) -> Slow:
        made.append(Slow(tmp_path / str(len(made)), **shape))
        return made[-1]

    (tmp_path / "0").mkdir()
    (tmp_path / "1").mkdir()
    yield make
    for one in made:
        one.close()


def test_those_that_wait_read_each_list_once_and_find_what_they_would_alone(slow: Make) -> None:
    index = slow(memory=1 << 20, capacity=1)  # no list stays
    queries = [index.near(number % 3, 1 + number % 2) for number in range(7)]
    first, *others = index.together(queries)
    for own, asked in zip(queries, [first, *others], strict=True):
        index.rig.check(own, asked.result(), 5, 3)
    lists = [set(probe(own, index.rig.lists.snapshot.centroids, 3).ravel().tolist()) for own in queries]
    assert len(index.file.reads) == len(lists[0]) + len(set().union(*lists[1:]))
    counted = sum(asked.result().lists_read for asked in (first, *others))
    assert counted == len(index.file.reads), "every read is counted once"


def test_one_of_lists_in_memory_waits_for_nobody(slow: Make) -> None:
    index = slow()
    index.go_on.set()
    known = index.near(0)
    index.rig.search(known, 5, 2)
    index.go_on.clear()
    far = int(probe(known, index.rig.lists.snapshot.centroids, 12)[0, -1])
    waiting = index.ask(index.near(far), 1)
    index.waits(1)
    index.rig.check(known, index.ask(known, 2).result(), 5, 2)
    assert not waiting.done()


def test_a_search_leaves_with_its_last_list(slow: Make) -> None:
    """The second of two searches in a batch probes a list that is read first, and ends while the other is missing."""
    index = slow(memory=1 << 20, capacity=1)
    blocks = {part.codes.index: n for n, parts in enumerate(index.rig.lists.snapshot.lists) for part in parts}
    early, late = blocks[min(blocks)], blocks[max(blocks)]
    gates = {max(blocks): threading.Event()}
    before = index.file.read

    def read(block: object, into: memoryview) -> None:
        before(block, into)  # type: ignore[arg-type]
        assert gates.get(block.index, index.go_on).wait(60)  # type: ignore[attr-defined]

    index.file.read = read  # type: ignore[method-assign]
    first = index.ask(index.near(early), 1)
    index.waits(1)
    second = index.ask(index.near(late), 1)  # the first of the batch, whose thread works for both
    index.waits(2)
    third = index.ask(index.near(early) * 2, 1)
    index.waits(3)
    index.go_on.set()
    index.rig.check(index.near(early), first.result(), 5, 1)
    index.rig.check(index.near(early) * 2, third.result(), 5, 1)
    assert not second.done()
    gates[max(blocks)].set()
    index.rig.check(index.near(late), second.result(), 5, 1)


def test_a_list_that_cannot_be_read_fails_those_that_need_it(slow: Make) -> None:
    index = slow()
    queries = [index.near(number) for number in range(6)]
    centroids = index.rig.lists.snapshot.centroids
    blocks = {n: parts[0].codes.index for n, parts in enumerate(index.rig.lists.snapshot.lists)}
    index.broken = {blocks[4]}
    for own, asked in zip(queries, index.together(queries, *[2] * 6), strict=True):
        if 4 in probe(own, centroids, 2):
            with pytest.raises(CorruptBlock):
                asked.result()
        else:
            index.rig.check(own, asked.result(), 5, 2)


def test_a_batch_that_does_not_fit_is_searched_one_by_one(slow: Make) -> None:
    index = slow(memory=1 << 20)
    queries = [index.near(number, 3) for number in range(5)]
    found = index.together(queries, go_on=False)
    room = index.rig.budget.reserve("others", index.rig.budget.free - (40 << 10))
    index.go_on.set()
    for own, asked in zip(queries, found, strict=True):
        index.rig.check(own, asked.result(), 5, 3)
    room.release()


def test_other_options_are_not_mixed(slow: Make) -> None:
    index = slow()
    queries, nprobes = [index.near(number) for number in range(4)], (3, 1, 2, 4)
    for own, asked, nprobe in zip(queries, index.together(queries, *nprobes), nprobes, strict=True):
        index.rig.check(own, asked.result(), 5, nprobe)
        assert asked.result().nprobe == nprobe


def test_the_lists_of_the_next_one_in_line_are_on_their_way(slow: Make) -> None:
    index = slow()
    residency, snapshot = index.rig.searcher.host.residency, index.rig.lists.snapshot

    def lists(query: Vectors, nprobe: int) -> list[tuple[str, int]]:
        return [part.key for n in probe(query, snapshot.centroids, nprobe)[0].tolist() for part in snapshot.lists[n]]

    first = index.ask(index.near(0), 1)
    index.waits(1)
    until(lambda: not residency.absent(lists(index.near(0), 1)))
    second = index.ask(index.near(7), 4)
    until(lambda: not residency.absent(lists(index.near(7), 4)))
    index.waits(2)
    third = index.ask(index.near(3) * -1, 2)
    index.waits(3)
    index.go_on.set()
    index.rig.check(index.near(0), first.result(), 5, 1)
    index.rig.check(index.near(7), second.result(), 5, 4)
    index.rig.check(index.near(3) * -1, third.result(), 5, 2)
    assert len(index.file.reads) == len(set(index.file.reads)), "nothing is read twice"
    assert not any(entry.guards for entry in residency._entries.values())


PATIENCE = 60.0


class Counting(CpuDevice):
    """Counts the lists that it scans, tells when it has scanned so many, and may be told to wait before it scans."""

    def __init__(self, memory: MemoryBudget, link: Lane) -> None:
        super().__init__(memory, link=link)
        self.scanned = 0
        self.enough = 1 << 30
        self.reached = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()

    def search(self, request: SearchRequest) -> Candidates:
        assert self.go_on.wait(PATIENCE)
        found = super().search(request)
        self.scanned += len(request.lists)
        if self.scanned >= self.enough:
            self.reached.set()
        return found


class Sharing:
    """An index, searched by a host alone and by a host with a device."""

    def __init__(self, folder: Path) -> None:
        vectors = clustered(1600, DIM)
        self.lists = write_lists(folder, vectors, codec=trained("flat", vectors), nlist=32)
        self.parts = [part for parts in self.lists.snapshot.lists for part in parts]
        self.budget = MemoryBudget(1 << 28, part=True)
        self.lane, self.other_lane = Lane(), Lane()
        self.host = Counting(self.budget, self.lane)
        self.inner = Counting(self.budget, self.other_lane)
        self.device = LimitedDevice(self.budget, cap=1 << 22, inner=self.inner)
        self.alone = IndexSearcher(self.host)
        self.searcher = IndexSearcher(self.host, place=self.device)
        self.queries = clustered(3, DIM, seed=5)

    def search(self, searcher: IndexSearcher) -> Found:
        return searcher.search(self.lists.snapshot, self.queries, 5, nprobe=32)

    def check(self, found: Found) -> None:
        expected = self.search(self.alone)
        assert found.ids.tolist() == expected.ids.tolist()
        assert found.scores.tobytes() == expected.scores.tobytes()
        assert found.hits + found.lists_read == len(self.parts)

    def close(self) -> None:
        for closing in (self.searcher, self.alone, self.device, self.inner, self.host, self.lane, self.other_lane):
            closing.close()
        self.lists.close()
        assert not {owner: n for owner, n in self.budget.holders().items() if n}


@pytest.fixture
def sharing(tmp_path: Path) -> Iterator[Sharing]:
    made = Sharing(tmp_path)
    yield made
    made.close()


def test_a_host_scans_what_the_link_is_too_slow_for(sharing: Sharing) -> None:
    """The link stands still until the host has scanned all parts but the few whose transfers have begun."""
    begun = threading.Event()

    def occupied() -> int:
        begun.set()
        assert sharing.host.reached.wait(PATIENCE), "the host has left parts to a link that stands still"
        return 0

    sharing.device.link.submit("standing", occupied, 0)
    assert begun.wait(PATIENCE)
    sharing.host.enough = len(sharing.parts) - 1
    found = sharing.search(sharing.searcher)
    assert sharing.host.scanned >= len(sharing.parts) - 1
    assert sharing.host.scanned + sharing.inner.scanned == len(sharing.parts)
    sharing.check(found)


def test_a_device_scans_what_the_host_is_too_slow_for(sharing: Sharing) -> None:
    """The host stands still with its first part until the device has scanned all others."""
    sharing.host.go_on.clear()
    sharing.inner.enough = len(sharing.parts) - 1
    threading.Thread(
        target=lambda: (sharing.inner.reached.wait(PATIENCE), sharing.host.go_on.set()), daemon=True
    ).start()
    found = sharing.search(sharing.searcher)
    assert sharing.host.scanned <= 1
    assert sharing.host.scanned + sharing.inner.scanned == len(sharing.parts)
    sharing.check(found)


def test_a_reader_gives_each_part_away_or_hands_it_out(sharing: Sharing) -> None:
    """Parts are given from the end, an eighth of those that are left at most, and never one that is there."""
    tier = sharing.searcher.place
    begun, go_on = threading.Event(), threading.Event()

    def occupied() -> int:
        begun.set()
        assert go_on.wait(PATIENCE)
        return 0

    first = Reader(tier, sharing.parts, range(4), stream=False)
    for batch in first:
        for readable in batch:
            readable.release()
    first.close()
    sharing.device.link.submit("standing", occupied, 0)
    assert begun.wait(PATIENCE)
    cold = Reader(tier, sharing.parts[8:], range(8), stream=False)
    assert sum(len(some) for some in iter(lambda: cold.give(100), [])) == 7, "the first stays where none was handed out"
    cold.close()
    tier.residency.discard([part.key for part in sharing.parts[8:]])
    reader = Reader(tier, sharing.parts, range(len(sharing.parts)), stream=False)
    assert reader.hits == 4
    left, given = len(sharing.parts), []
    for most in (1, 2, 100, 1, 100):
        some = reader.give(most)
        assert len(some) == min(most, -(-left // 8))
        left -= len(some)
        given += some
    while some := reader.give(100):
        given += some
    assert sorted(given) == list(range(4, len(sharing.parts))), "all that have not begun, and none that is there"
    assert (reader.parts_read, reader.bytes_read) == (0, 0)
    assert set(tier.residency.keys()) == {part.key for part in sharing.parts[:4]}
    handed = [readable.number for batch in reader for readable in batch]
    assert sorted(handed) == [0, 1, 2, 3]
    go_on.set()
    reader.close()


def test_those_that_waited_past_their_deadline_are_given_fewer_lists(slow: Make) -> None:
    index = slow(memory=4 << 20, capacity=1)
    index.rig.lists.snapshot = replace(index.rig.lists.snapshot, recall=((1, 0.5), (2, 0.945), (3, 0.95)))
    searcher = index.rig.searcher
    searcher.placement = Placement(searcher.host, 1e-9, searcher._batch_seconds, 16, Trace())
    queries = [index.near(number % 3, 1 + number % 2) for number in range(5)]
    for own, asked in zip(queries, index.together(queries), strict=True):
        index.rig.check(own, asked.result(), 5, 2)
        assert asked.result().lists_cut == 1
