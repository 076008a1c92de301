"""Which of several devices serves which queries: against plain loops, and with equal results."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from naive.lists import Lists, clustered, write_lists

from edge.budget import MemoryBudget
from edge.devices.cpu import CpuDevice
from edge.devices.faiss_codec import FaissCodecs
from edge.devices.limited import LimitedDevice
from edge.devices.remote import RemoteDevice
from edge.errors import ConfigError, InputError
from edge.ivf.base import Found
from edge.ivf.device import Candidates, SearchPlace, SearchRequest, open_devices
from edge.ivf.dispatch import Dispatch
from edge.ivf.plan import keys_of, probe
from edge.ivf.search import IndexSearcher
from edge.link import Lane

DIM = 16
SETS = st.sets(st.integers(0, 8))


def tier(holds: set[int], nbytes: int = 0, lost: bool = False) -> Any:
    """A stand-in for a device that holds some parts."""

    def absent(keys: set[int]) -> list[int]:
        return [key for key in keys if key not in holds]

    residency = SimpleNamespace(absent=absent, nbytes=nbytes, name="lists")
    made = SimpleNamespace(residency=residency, lost=lost, holds=holds)
    return _Hashable(made)


class _Hashable:
    def __init__(self, made: SimpleNamespace) -> None:
        self.__dict__ = made.__dict__


@given(devices=st.lists(st.tuples(SETS, st.integers(0, 2), st.booleans()), max_size=4), keys=SETS)
def test_the_device_with_most_of_the_lists_is_chosen(devices: list[tuple[set[int], int, bool]], keys: set[int]) -> None:
    tiers = [tier(*device) for device in devices]
    chosen = Dispatch(tiers).choose(keys)
    answering = [number for number, (_, _, lost) in enumerate(devices) if not lost]
    if not answering:
        assert chosen is None
        return
    ranks = {n: (-len(devices[n][0] & keys), devices[n][1], n) for n in answering}
    assert chosen is tiers[min(answering, key=ranks.__getitem__)]


@given(waiting=st.lists(SETS, min_size=1, max_size=6), holds=SETS)
def test_a_free_device_takes_the_batch_of_which_it_holds_most(waiting: list[set[int]], holds: set[int]) -> None:
    device = tier(holds)
    taken = Dispatch([device]).take(waiting, device)
    assert taken == min(range(len(waiting)), key=lambda n: (-len(waiting[n] & holds), n))


def test_a_busy_device_is_left_out_where_another_is_idle() -> None:
    full, empty = tier({1, 2, 3}, 10), tier(set())
    dispatch = Dispatch([full, empty])
    with dispatch.searching(full):
        assert dispatch.choose({1, 2}, idle=True) is empty
        assert dispatch.choose({1, 2}) is full
        with dispatch.searching(empty):
            assert dispatch.choose({1, 2}, idle=True) is full
    assert dispatch.choose({1, 2}, idle=True) is full


@pytest.mark.parametrize("count", [1, 2, 5])
def test_every_batch_runs_once_and_all_devices_work(count: int) -> None:
    tiers = [tier(set()) for _ in range(count)]
    together = threading.Barrier(count)
    ran: list[tuple[Any, int]] = []

    def work(on: Any, batch: int) -> None:
        if not [1 for other, _ in ran if other is on]:
            together.wait(60)  # fails unless every device has a batch at the same time
        ran.append((on, batch))

    Dispatch(tiers).run([({n}, n) for n in range(3 * count)], work)
    assert sorted(batch for _, batch in ran) == list(range(3 * count))
    Dispatch([*tiers, tier(set(), lost=True)]).run([], work)


def test_an_error_of_a_batch_is_raised_and_no_batch_begins_after_it() -> None:
    began: list[int] = []

    def work(on: Any, batch: int) -> None:
        began.append(batch)
        if batch == 2:
            raise InputError("this one")

    with pytest.raises(InputError, match="this one"):
        Dispatch([tier(set())]).run([({n}, n) for n in range(5)], work)
    assert began == [0, 1, 2]


class Watched(CpuDevice):
    """Counts the requests of a device."""

    def __init__(self, memory: MemoryBudget, lane: Lane) -> None:
        super().__init__(memory, link=lane)
        self.requests = 0

    def search(self, request: SearchRequest) -> Candidates:
        self.requests += bool(request.lists)
        return super().search(request)


class Several:
    """An index that is searched by the host alone, and with several devices."""

    def __init__(self, folder: Path) -> None:
        vectors = clustered(1500, DIM)
        codecs = FaissCodecs(threads=1)
        self.lists: Lists = write_lists(
            folder, vectors, codec=codecs.open(codecs.train("sq8", vectors, seed=0)), nlist=24, deleted=0.1, pending=9
        )
        self.budget = MemoryBudget(1 << 36, baseline=0)
        self.lane = Lane()
        self.host = CpuDevice(self.budget, link=self.lane)
        self.alone = IndexSearcher(self.host)
        self.devices: list[SearchPlace] = []
        self.searcher = self.alone

    def place(self, *devices: SearchPlace) -> None:
        self.devices = list(devices)
        self.searcher = IndexSearcher(self.host, places=devices)

    def search(self, queries: np.ndarray, **options: Any) -> Found:
        return self.searcher.search(self.lists.snapshot, queries, 7, nprobe=5, **options)

    def check(self, count: int, **options: Any) -> Found:
        queries = clustered(count, DIM, seed=count)
        expected = self.alone.search(self.lists.snapshot, queries, 7, nprobe=5, allowed=options.get("allowed"))
        found = self.search(queries, **options)
        assert found.ids.tolist() == expected.ids.tolist()
        assert found.scores.tobytes() == expected.scores.tobytes()
        assert found.nprobe == expected.nprobe
        return found

    def close(self) -> None:
        for closing in (self.searcher, self.alone, *self.devices, self.host, self.lane):
            closing.close()
        self.lists.close()
        assert not {owner: n for owner, n in self.budget.holders().items() if n}


@pytest.fixture
def several(tmp_path: Path) -> Iterator[Several]:
    made = Several(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("count", [1, 2, 4])
def test_several_devices_find_what_the_host_finds(several: Several, count: int) -> None:
    inner = [Watched(several.budget, several.lane) for _ in range(count)]
    several.place(*(LimitedDevice(several.budget, cap=100_000, inner=device) for device in inner))
    for queries in (1, 2, 40, 3, 40):
        several.check(queries)
    several.check(6, allowed=np.sort(several.lists.ids[::7]))
    assert sum(device.requests for device in inner) > 0, "the devices have searched"


def test_a_search_runs_where_its_lists_are(several: Several) -> None:
    """The lookahead of a query and its search take the device that holds the query's lists."""
    several.place(*(LimitedDevice(several.budget, cap=1 << 20) for _ in range(3)))
    snapshot, queries = several.lists.snapshot, clustered(6, DIM, seed=1)
    far = int(np.argmin(queries @ queries[0]))
    tiers = several.searcher.places
    for number, query in ((2, 0), (1, far)):
        with several.searcher.lookahead(snapshot, queries[[query]], nprobe=5, depth=5, place=tiers[number]) as window:
            window.wait()
            several.search(queries[[query]], window=window)
    keys = [keys_of(snapshot, queries[[query]], 5) for query in (0, far)]
    assert set(tiers[2].residency.keys()) == keys[0]
    assert set(tiers[1].residency.keys()) == keys[1]
    for number, query in ((2, 0), (1, far)):
        before = {tier: len(tier.residency) for tier in tiers}
        found = several.search(queries[[query]])
        assert found.hits == len(keys[number == 1]), "all were there"
        assert {tier: len(tier.residency) for tier in tiers} == before
        with several.searcher.lookahead(snapshot, queries[[query]], nprobe=5, depth=5) as window:
            assert window.residency is tiers[number].residency


def test_a_device_that_dies_is_left_out(several: Several) -> None:
    devices = [RemoteDevice(several.budget, cap=1 << 20) for _ in range(2)]
    several.place(*devices)
    several.check(20)
    os.kill(devices[0]._process.pid, signal.SIGKILL if hasattr(signal, "SIGKILL") else signal.SIGTERM)
    devices[0]._process.wait()
    first, second = several.searcher.places
    several.check(20, place=first)
    for _ in range(3):
        several.check(20)
        several.check(1)
    assert (first.lost, second.lost) == (True, False)
    assert several.searcher.dispatch.answering == [second]


def test_the_keys_of_queries_are_those_of_the_lists_they_probe(several: Several) -> None:
    snapshot, queries = several.lists.snapshot, clustered(3, DIM, seed=2)
    expected = {
        part.key
        for row in probe(queries, snapshot.centroids, 4).tolist()
        for number in row
        for part in snapshot.lists[number]
    }
    assert keys_of(snapshot, queries, 4) == expected


def test_as_many_devices_are_opened_as_are_wanted() -> None:
    budget = MemoryBudget(1 << 20, baseline=0)
    opened = open_devices("limited:cap=100kB,count=3", budget)
    assert [device.memory.limit for device in opened] == [100_000] * 3
    assert len({id(device.memory) for device in opened}) == 3
    for device in opened:
        device.close()
    (together,) = open_devices("searchers:of=cpu,count=3,cap=10kB", budget)
    assert together.name == "3 searchers"
    together.close()
    for text in ("limited:count=0", "limited:count=many", "limited:count=65"):
        with pytest.raises(ConfigError, match="1 to 64 devices"):
            open_devices(text, budget)
    assert budget.used == 0


def test_no_device_stays_open_if_one_does_not_fit() -> None:
    budget = MemoryBudget(250_000, baseline=0)
    with pytest.raises(Exception, match="limited cpu"):
        open_devices("limited:cap=100kB,count=3", budget)
    assert budget.used == 0
