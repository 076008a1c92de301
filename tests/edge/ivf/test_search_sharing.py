"""Cold parts are shared between the link to a device and the host: whoever is free takes the next one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from naive.lists import clustered, write_lists

from edge.budget import MemoryBudget
from edge.devices.cpu import CpuDevice
from edge.devices.faiss_codec import FaissCodecs
from edge.devices.limited import LimitedDevice
from edge.ivf.base import Found
from edge.ivf.device import Candidates, SearchRequest
from edge.ivf.reading import Reader
from edge.ivf.search import IndexSearcher
from edge.link import Lane

DIM = 16
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
        codecs = FaissCodecs(threads=1)
        self.lists = write_lists(folder, vectors, codec=codecs.open(codecs.train("flat", vectors, seed=0)), nlist=32)
        self.parts = [part for parts in self.lists.snapshot.lists for part in parts]
        self.budget = MemoryBudget(1 << 28, part=True)
        self.lane, self.other_lane = Lane(), Lane()
        self.host = Counting(self.budget, self.lane)
        self.inner = Counting(self.budget, self.other_lane)
        self.device = LimitedDevice(self.budget, cap=1 << 22, inner=self.inner)
        self.alone = IndexSearcher(self.host)
        self.searcher = IndexSearcher(self.host, places=[self.device])
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
    tier = sharing.searcher.places[0]
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
