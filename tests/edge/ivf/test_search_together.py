"""Searches that wait for a slow place are searched together, and each leaves with its last list."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from naive.lists import gridded
from naive.searching import Rig
from naive.waiting import until

from edge.errors import CorruptBlock
from edge.ivf.base import Found, Vectors
from edge.ivf.plan import probe

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
    first = index.ask(queries[0])
    index.waits(1)
    others = [index.ask(own) for own in queries[1:]]
    index.waits(7)
    index.go_on.set()
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
    first = index.ask(queries[0], 2)
    index.waits(1)
    others = [index.ask(own, 2) for own in queries[1:]]
    index.waits(6)
    index.go_on.set()
    for own, asked in zip(queries, [first, *others], strict=True):
        if 4 in probe(own, centroids, 2):
            with pytest.raises(CorruptBlock):
                asked.result()
        else:
            index.rig.check(own, asked.result(), 5, 2)


def test_a_batch_that_does_not_fit_is_searched_one_by_one(slow: Make) -> None:
    index = slow(memory=1 << 20)
    queries = [index.near(number, 3) for number in range(5)]
    first = index.ask(queries[0])
    index.waits(1)
    others = [index.ask(own) for own in queries[1:]]
    index.waits(5)
    room = index.rig.budget.reserve("others", index.rig.budget.free - (40 << 10))
    index.go_on.set()
    for own, asked in zip(queries, [first, *others], strict=True):
        index.rig.check(own, asked.result(), 5, 3)
    room.release()


def test_other_options_are_not_mixed(slow: Make) -> None:
    index = slow()
    queries = [index.near(number) for number in range(4)]
    first = index.ask(queries[0])
    index.waits(1)
    others = [index.ask(own, nprobe) for own, nprobe in zip(queries[1:], (1, 2, 4), strict=True)]
    index.waits(4)
    index.go_on.set()
    for own, asked, nprobe in zip(queries, [first, *others], (3, 1, 2, 4), strict=True):
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
