"""What is found: the definition's rows, faiss's rows, whatever is resident, however queries are batched."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from naive.lists import clustered, gridded, write_lists
from naive.residency import LeastRecent
from naive.searching import PLENTY, Rig

from edge.budget import MemoryBudget
from edge.cache.cached_block import DecayedHotness
from edge.devices.cpu import CpuDevice
from edge.devices.faiss_codec import FaissCodecs, restored
from edge.errors import BudgetExceeded, InputError
from edge.ivf.base import Vectors
from edge.ivf.search import IndexSearcher

pytestmark = pytest.mark.usefixtures("small_process")

DIM = 16


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    codec=st.sampled_from(["flat", "sq8"]),
    rows=st.integers(1, 300),
    distinct=st.sampled_from([None, 5, 40]),
    nlist=st.integers(1, 12),
    files=st.integers(1, 3),
    pending=st.integers(0, 20),
    deleted=st.sampled_from([0.0, 0.02, 0.3, 0.9]),
    batch=st.integers(1, 20),
    k=st.integers(1, 30),
    nprobe=st.integers(1, 14),
    capacity=st.sampled_from([None, 0, 5_000, 20_000]),
    policy=st.sampled_from([LeastRecent, DecayedHotness]),
    filtered=st.sampled_from([None, 0.0, 0.05, 0.5]),
    seed=st.integers(0, 5),
)
def test_a_search_finds_what_the_definition_names(
    codec: str, rows: int, distinct: int | None, nlist: int, files: int, pending: int, deleted: float, batch: int,
    k: int, nprobe: int, capacity: int | None, policy: type, filtered: float | None, seed: int,
) -> None:  # fmt: skip
    vectors = gridded(rows, DIM, seed, distinct=distinct)
    random = np.random.default_rng(seed)
    with TemporaryDirectory() as folder:
        rig = Rig(
            Path(folder), vectors, codec, capacity=capacity, policy=policy, seed=seed,
            nlist=min(nlist, rows), files=files, pending=min(pending, rows), deleted=deleted,
        )  # fmt: skip
        try:
            queries = gridded(batch, DIM, seed + 100)
            allowed = None
            if filtered is not None:
                allowed = np.sort(random.permutation(rows * 3)[: int(rows * 3 * filtered)]).astype(np.int64)
            for _ in range(3):  # cold, then with what is resident by now
                found = rig.search(queries, k, nprobe, allowed=allowed)
                rig.check(queries, found, k, nprobe, allowed)
            alone = [rig.search(query[None], k, nprobe, allowed=allowed) for query in queries[:3]]
            for i, single in enumerate(alone):
                assert single.ids[0].tolist() == found.ids[i].tolist()
        finally:
            rig.close()


@pytest.mark.parametrize("name", ["flat", "sq8", "pq"])
def test_only_candidates_that_may_still_win_are_read(tmp_path: Path, name: str) -> None:
    vectors, queries = clustered(4000, 32), clustered(10, 32, seed=3)
    codecs = FaissCodecs(threads=1)
    lists = write_lists(tmp_path, vectors, codec=codecs.open(codecs.train(name, vectors[:800], seed=0)), nlist=4)
    budget = MemoryBudget(PLENTY, baseline=0)
    searcher = IndexSearcher(CpuDevice(budget))
    found = searcher.search(lists.snapshot, queries, 10, nprobe=4)
    read = sum(file.rows_read for file in lists.files) / (10 * len(queries))
    if name == "sq8":
        exact = [lists.ids[np.argsort(-(vectors @ query), kind="stable")[:10]].tolist() for query in queries]
        assert found.ids.tolist() == exact
        assert 1 <= read < 3
    else:
        assert read == {"flat": 0, "pq": 8}[name]
    searcher.close()
    lists.close()


@pytest.mark.parametrize("name", ["flat", "sq8", "pq"])
def test_the_lists_are_scanned_as_faiss_scans_them(tmp_path: Path, name: str) -> None:
    import faiss

    vectors, queries = clustered(3000, 32), clustered(25, 32, seed=0)[:10] + np.float32(0.01)
    codecs = FaissCodecs(threads=1)
    codec = codecs.open(codecs.train(name, vectors[:600], seed=0))
    trained = None if name == "flat" else restored(faiss, codec.spec)
    lists = write_lists(tmp_path, vectors, codec=codec, nlist=16, files=3)
    quantizer = faiss.IndexFlatIP(32)
    quantizer.add(lists.snapshot.centroids)
    metric = faiss.METRIC_INNER_PRODUCT
    if name == "flat":
        index = faiss.IndexIVFFlat(quantizer, 32, 16, metric)
    elif name == "sq8":
        index = faiss.IndexIVFScalarQuantizer(quantizer, 32, 16, faiss.ScalarQuantizer.QT_8bit, metric, False)
        index.sq = trained.sq
    else:
        index = faiss.IndexIVFPQ(quantizer, 32, 16, 8, 8, metric)
        index.by_residual = False
        index.pq = trained.pq
    index.is_trained = True
    index.add_with_ids(vectors, lists.ids)
    index.nprobe = 4
    k = 10
    keep = k if name == "flat" else 8 * k
    scores, ids = index.search(queries, keep)
    budget = MemoryBudget(PLENTY, baseline=0)
    device = CpuDevice(budget)
    searcher = IndexSearcher(device)
    found = searcher.search(lists.snapshot, queries, k, nprobe=4)
    place = {int(number): row for row, number in enumerate(lists.ids)}
    for i, query in enumerate(queries):
        if name == "flat":
            assert found.ids[i].tolist() == ids[i].tolist()
            assert found.scores[i].tolist() == scores[i].tolist()
            continue
        rows = vectors[[place[int(number)] for number in ids[i]]]
        exact = np.einsum("ij,j->i", rows, query)
        best = np.lexsort((ids[i], -exact))[:k]
        assert found.ids[i].tolist() == ids[i][best].tolist()
        assert found.scores[i].tolist() == exact[best].tolist()
    searcher.close()
    device.close()
    lists.close()


@pytest.mark.parametrize("codec", ["flat", "sq8"])
def test_more_equals_than_a_heap_holds_are_told_apart_by_their_ids(rigs: list[Rig], tmp_path: Path, codec: str) -> None:
    rigs.append(rig := Rig(tmp_path, gridded(600, DIM, distinct=2), codec, nlist=2, files=3))
    queries = gridded(4, DIM, seed=9)
    found = rig.search(queries, 3, 2)
    rig.check(queries, found, 3, 2)


@pytest.mark.parametrize("codec", ["flat", "sq8"])
@pytest.mark.parametrize("fast", [0, 30_000])
def test_the_least_memory_gives_the_same_results(tmp_path: Path, codec: str, fast: int) -> None:
    vectors, queries = gridded(1000, DIM), gridded(20, DIM, seed=7)
    (tmp_path / "wide").mkdir()
    wide = Rig(tmp_path / "wide", vectors, codec, nlist=12, deleted=0.1)
    expected = wide.search(queries, 10, 6)
    wide.check(queries, expected, 10, 6)
    wide.close()
    refused: list[tuple[int, int]] = []
    worked = 0
    for memory in (30_000, 100_000, 500_000, 1_000_000, 2_000_000, 3_000_000, 6_000_000):
        folder = tmp_path / str(memory)
        folder.mkdir()
        rig = Rig(folder, vectors, codec, nlist=12, deleted=0.1, memory=memory + fast, fast=fast)
        try:
            found = rig.search(queries, 10, 6)
        except BudgetExceeded as error:
            refused.append((memory, error.needed))
        else:
            worked = worked or memory
            assert found.ids.tolist() == expected.ids.tolist()
            assert found.scores.tolist() == expected.scores.tolist()
        finally:
            rig.close()
    assert worked
    assert refused
    assert max(memory for memory, _ in refused) < worked, "more memory must not be too little"
    assert all(needed > memory for memory, needed in refused)


def test_a_probe_that_does_not_fit_streams_and_reads_every_part_once(rigs: list[Rig], tmp_path: Path) -> None:
    rigs.append(rig := Rig(tmp_path, gridded(2000, DIM), nlist=10, files=2, capacity=0))
    queries = gridded(6, DIM, seed=3)
    for _ in range(2):
        found = rig.search(queries, 5, 10)
        rig.check(queries, found, 5, 10)
        assert found.hits == 0
        assert sorted(read for file in rig.lists.files for read in file.reads) == sorted([*range(10)] * 2)
        for file in rig.lists.files:
            assert file.reads == sorted(file.reads), "one batch, in file order"
            file.reads.clear()


def test_what_is_resident_is_not_read_and_counted_as_a_hit(rigs: list[Rig], tmp_path: Path) -> None:
    rigs.append(rig := Rig(tmp_path, gridded(2000, DIM), nlist=10, files=1))
    queries = gridded(6, DIM, seed=3)
    cold = rig.search(queries, 5, 10)
    warm = rig.search(queries, 5, 10)
    assert (cold.lists_read, cold.hits) == (10, 0)
    assert (warm.lists_read, warm.hits, warm.bytes_read) == (0, 10, 0)
    assert cold.bytes_read == sum(part.nbytes for parts in rig.lists.snapshot.lists for part in parts)
    assert warm.ids.tolist() == cold.ids.tolist()


def test_a_search_through_the_whole_index_for_a_filter_does_not_empty_the_cache(
    rigs: list[Rig], tmp_path: Path
) -> None:
    rigs.append(rig := Rig(tmp_path, gridded(2000, DIM), nlist=20, files=1, capacity=40_000))
    hot = rig.lists.snapshot.centroids[:1].copy()
    rig.search(hot, 5, 3)
    rare = rig.lists.ids[:3]
    rig.search(hot, 5, 3, allowed=np.sort(rare))
    assert rig.search(hot, 5, 3).hits == 3


def test_released_lists_are_read_again(rigs: list[Rig], tmp_path: Path) -> None:
    rigs.append(rig := Rig(tmp_path, gridded(2000, DIM), nlist=20, files=1))
    queries = gridded(6, DIM, seed=3)
    before = rig.search(queries, 5, 20)
    rig.searcher.release_lists()
    assert not rig.searcher.host.residency.keys()
    after = rig.search(queries, 5, 20)
    assert (after.lists_read, after.hits) == (20, 0)
    assert after.ids.tolist() == before.ids.tolist()


@pytest.mark.parametrize(
    ("queries", "k", "nprobe"),
    [(np.zeros(DIM), 1, 1), (np.zeros((1, DIM + 1)), 1, 1), (np.zeros((1, DIM)), 0, 1), (np.zeros((1, DIM)), 1, 0)],
)
def test_what_makes_no_sense_is_refused(rigs: list[Rig], tmp_path: Path, queries: Vectors, k: int, nprobe: int) -> None:
    rigs.append(rig := Rig(tmp_path, gridded(20, DIM), nlist=2))
    with pytest.raises(InputError):
        rig.search(queries, k, nprobe)


def test_no_queries_and_an_empty_index_find_nothing(rigs: list[Rig], tmp_path: Path) -> None:
    rigs.append(rig := Rig(tmp_path, gridded(20, DIM), nlist=2, deleted=1.0))
    assert rig.search(np.zeros((0, DIM)), 3).ids.shape == (0, 3)
    assert rig.search(np.zeros((2, DIM)), 3).ids.tolist() == [[-1] * 3] * 2


def test_a_search_compares_the_ledger_with_reality(
    rigs: list[Rig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rigs.append(rig := Rig(tmp_path, gridded(200, DIM), nlist=4))
    relieved = []
    whole = rig.budget.relieve
    monkeypatch.setattr(rig.budget, "relieve", lambda: relieved.append(1) or whole())
    rig.search(gridded(1, DIM, seed=3), 5, 2)
    assert relieved == [1]
