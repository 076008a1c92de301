"""Which of several devices serves which queries: against plain loops, and with equal results."""

from __future__ import annotations

import itertools
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
from hypothesis import given, settings
from naive.lists import Lists, NaiveCodec, clustered, gridded, write_lists
from naive.searching import Rig

from edge.budget import MemoryBudget
from edge.cache.residency import Handle
from edge.devices.cpu import CpuDevice
from edge.devices.faiss_codec import FaissCodecs
from edge.devices.limited import LimitedDevice
from edge.devices.remote import RemoteDevice
from edge.errors import ConfigError, InputError
from edge.ivf.base import Found
from edge.ivf.device import Candidates, SearchPlace, SearchRequest, open_devices
from edge.ivf.dispatch import Dispatch, group
from edge.ivf.plan import keys_of, probe
from edge.ivf.reading import Reader
from edge.ivf.scan import best, exact_scores
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


@settings(max_examples=60)
@given(nlist=st.integers(1, 40), distinct=st.sampled_from([None, 3]), nprobe=st.integers(1, 50), seed=st.integers(0, 9))
def test_the_nearest_lists_are_probed_best_first(nlist: int, distinct: int | None, nprobe: int, seed: int) -> None:
    centroids, queries = gridded(nlist, 8, seed, distinct=distinct), gridded(4, 8, seed + 50)
    found = probe(queries, centroids, nprobe)
    for query, lists in zip(queries, found.tolist(), strict=True):
        order = sorted(range(nlist), key=lambda i: (-float(centroids[i] @ query), i))
        assert lists == order[:nprobe]


def test_what_a_query_probes_does_not_depend_on_its_batch() -> None:
    random = np.random.default_rng(0)
    centroids = random.standard_normal((500, 48)).astype(np.float32)
    queries = random.standard_normal((33, 48)).astype(np.float32)
    together = probe(queries, centroids, 20)
    for i, query in enumerate(queries):
        assert probe(query[None], centroids, 20)[0].tolist() == together[i].tolist()


def test_a_rows_exact_score_does_not_depend_on_the_other_rows() -> None:
    random = np.random.default_rng(0)
    rows = random.standard_normal((100, 384)).astype(np.float32)
    query = random.standard_normal(384).astype(np.float32)
    together = exact_scores(rows, query)
    for start, end in itertools.combinations([0, 1, 3, 7, 50, 99, 100], 2):
        assert exact_scores(rows[start:end].copy(), query).tolist() == together[start:end].tolist()


@given(st.lists(st.integers(0, 4), max_size=30), st.integers(1, 10))
def test_the_best_are_sorted_by_score_and_then_by_id(scores: list[int], k: int) -> None:
    ids = np.random.default_rng(0).permutation(len(scores)).astype(np.int64)
    found_scores, found = best(np.array(scores, np.float32), ids, k)
    expected = sorted(zip(scores, ids.tolist(), strict=True), key=lambda pair: (-pair[0], pair[1]))[:k]
    assert list(zip(found_scores.tolist(), found.tolist(), strict=True)) == expected


@given(count=st.integers(0, 30), size=st.integers(1, 9), distinct=st.sampled_from([None, 2]))
def test_groups_hold_the_nearest_to_the_first_that_is_left(count: int, size: int, distinct: int | None) -> None:
    queries = gridded(count, 4, distinct=distinct) if count else np.zeros((0, 4), np.float32)
    groups = [numbers.tolist() for numbers in group(queries, size)]
    assert sorted(itertools.chain(*groups)) == list(range(count))
    left = list(range(count))
    for numbers in groups:
        assert len(numbers) == min(size, len(left))
        seed = left[0]
        assert numbers[0] == seed
        distance = {i: float(((queries[i] - queries[seed]) ** 2).sum()) for i in left}
        farthest = max(distance[i] for i in numbers)
        left = [i for i in left if i not in numbers]
        assert all(distance[i] >= farthest for i in left)


def offered(width: int, rows: list[tuple[float, int]]) -> Candidates:
    found = Candidates.empty(1, width)
    for score, label in rows:
        found.offer(0, np.array([score], np.float32), np.array([label]))
    return found


@given(st.lists(st.integers(0, 5), max_size=20), st.integers(1, 6))
def test_candidates_keep_the_best(scores: list[int], width: int) -> None:
    found = offered(width, [(score, label) for label, score in enumerate(scores)])
    kept = sorted(scores, reverse=True)[:width]
    taken = found.labels[0] >= 0
    assert sorted(found.scores[0][taken].tolist(), reverse=True) == kept
    assert len(set(found.labels[0][taken].tolist())) == len(kept)
    assert [scores[label] for label in found.labels[0][taken].tolist()] == found.scores[0][taken].tolist()
    assert found.floor(0) == (min(kept) if len(kept) == width else -np.inf)
    heap = found.scores[0].tolist()
    assert all(heap[(i - 1) // 2] <= heap[i] for i in range(1, width)), "a min-heap, as scanners go on with it"


def test_a_part_that_arrives_at_any_moment_is_handed_out_once(
    rigs: list[Rig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rigs.append(rig := Rig(tmp_path, gridded(300, 8), nlist=6))
    parts = [part for parts in rig.lists.snapshot.lists for part in parts]
    asked: set[int] = set()

    def ready(handle: Handle) -> bool:
        """On its way when first asked, there when asked again."""
        first = id(handle) not in asked
        asked.add(id(handle))
        return not first

    monkeypatch.setattr(Handle, "ready", property(ready))
    reader = Reader(rig.searcher.host, parts, range(len(parts)))
    handed = []
    for batch in reader:
        for readable in batch:
            handed.append(readable.number)
            readable.release()
    reader.close()
    assert sorted(handed) == list(range(len(parts)))


@pytest.mark.parametrize(
    ("shared", "seconds", "scans", "used"),
    [(True, 2.0, 16, False), (True, 2.0, 15, True), (True, 1.0, 16, True), (False, 2.0, 16, True)],
)
def test_a_device_in_the_hosts_memory_is_used_if_it_is_as_fast(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: bool, seconds: float, scans: int, used: bool
) -> None:
    """The best of its scans counts; the first one, which compiles kernels, takes longer."""
    lists = write_lists(tmp_path, clustered(600, 16), codec=NaiveCodec("flat", 16), nlist=6)
    budget = MemoryBudget(1 << 30, baseline=0)
    host, device = CpuDevice(budget), LimitedDevice(budget, cap=1 << 20)
    device.shared = shared  # type: ignore[attr-defined]
    searcher = IndexSearcher(host, places=[device])
    (tier,) = searcher.places
    for number in range(scans):
        searcher.host.learn(1000, 1.0)
        tier.learn(1000, seconds if number else 100.0)
    assert tier.lost is not used
    for each in (searcher.host, tier):  # what this machine takes changes nothing
        monkeypatch.setattr(each, "learn", lambda *scan: None)
    alone, query = IndexSearcher(CpuDevice(budget)), clustered(1, 16, seed=3)
    expected = alone.search(lists.snapshot, query, 5, nprobe=6)
    for _ in range(2):
        found = searcher.search(lists.snapshot, query, 5, nprobe=6)
        assert (found.ids.tolist(), found.scores.tobytes()) == (expected.ids.tolist(), expected.scores.tobytes())
    assert (tier.residency.nbytes > 0) is used
    for each in (searcher, alone, device, host):
        each.close()
    lists.close()
