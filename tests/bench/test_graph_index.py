"""A stored graph: its file, its search over a device's link, and every byte of it under a lease."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from naive.graph import best_first, nearest_lists, vectors_of

from bench.graph import GraphIndex, open_graph, write_graph
from edge.budget import MemoryBudget
from edge.devices.cpu import CpuDevice
from edge.devices.limited import LimitedDevice
from edge.errors import BudgetExceeded, CapabilityError, CorruptBlock, InputError, RangeError, StorageError
from edge.ivf.scan import exact_scores
from edge.link import Lane
from edge.trace import Trace

DEGREE, DIM = 10, 24
VECTORS = vectors_of(900, DIM)
NEIGHBOURS = nearest_lists(VECTORS, DEGREE)
QUERIES = vectors_of(12, DIM, seed=5)
ENTRY = 17


@pytest.fixture
def budget() -> MemoryBudget:
    return MemoryBudget(1 << 30, baseline=0)


@pytest.fixture
def path(tmp_path: Path, budget: MemoryBudget) -> Path:
    found = tmp_path / "some.graph"
    write_graph(found, VECTORS, NEIGHBOURS, ENTRY, budget)
    return found


@pytest.fixture
def device(budget: MemoryBudget) -> Iterator[CpuDevice]:
    with Lane() as link:
        device = CpuDevice(budget, link=link)
        yield device
        device.close()


def test_one_group_of_one_candidate_is_best_first_search(path: Path, device: CpuDevice, budget: MemoryBudget) -> None:
    """The oracle computes each distance alone, from the arrays that were written."""
    lists = [[v for v in row if v >= 0] for row in NEIGHBOURS.tolist()]
    trace = Trace()
    with GraphIndex(path, device=device, budget=budget, trace=trace) as graph:
        for query in QUERIES:

            def distance(vertex: int, query: np.ndarray = query) -> float:
                return -float(exact_scores(VECTORS[vertex : vertex + 1], query)[0])

            before = trace.counters["graph.hops"]
            found = graph.search(query[None], 7, length=15)
            labels, hops = best_first(lists, distance, ENTRY, 7, 15)
            assert found.ids[0].tolist() == labels
            assert found.scores[0].tolist() == [-distance(label) for label in labels]
            assert trace.counters["graph.hops"] - before == hops


def test_results_do_not_depend_on_the_device(path: Path, device: CpuDevice, budget: MemoryBudget) -> None:
    for groups, candidates in ((1, 1), (1, 4), (3, 2)):
        options = {"length": 20, "groups": groups, "candidates": candidates}
        with GraphIndex(path, device=device, budget=budget) as graph:
            expected = graph.search(QUERIES, 5, **options)
        for link in ({}, {"latency": 1e-4}, {"latency": 1e-4, "depth": 4}, {"bandwidth": 1e8, "depth": "64"}):
            limited = LimitedDevice(budget, cap=1 << 20, **link)  # type: ignore[arg-type]
            with GraphIndex(path, device=limited, budget=budget) as graph:
                found = graph.search(QUERIES, 5, **options)
            limited.close()
            assert found.ids.tolist() == expected.ids.tolist()
            assert found.scores.tobytes() == expected.scores.tobytes()
            assert found.bytes_read == expected.bytes_read > 0


def test_a_longer_queue_finds_no_less(path: Path, device: CpuDevice, budget: MemoryBudget) -> None:
    exact = np.argsort(-(QUERIES @ VECTORS.T), axis=1)[:, :10].tolist()
    with GraphIndex(path, device=device, budget=budget) as graph:
        found = []
        for length in (10, 20, 40, 80, 160):
            ids = graph.search(QUERIES, 10, length=length, groups=2, candidates=2).ids.tolist()
            found.append(sum(len(set(a) & set(b)) for a, b in zip(ids, exact, strict=True)))
    assert all(later >= earlier - 2 for earlier, later in pairwise(found))
    assert found[-1] > found[0]


def test_every_byte_is_under_a_lease(path: Path, budget: MemoryBudget) -> None:
    host = MemoryBudget(1 << 30, baseline=0)
    limited = LimitedDevice(host, cap=1 << 20)
    held = []
    trace = Trace()
    graph = GraphIndex(path, device=limited, budget=budget, trace=trace)
    with trace.listening("graph.hops", lambda amount: held.append(budget.used)):
        graph.search(QUERIES, 3, length=9, groups=3, candidates=2)
    assert limited.memory.used == graph.facts.nbytes == 900 * 4 * (DIM + 1 + DEGREE)
    assert set(held) == {graph.search_nbytes(9, 3, 2)}, "during a search"
    assert budget.used == 0
    graph.close()
    assert limited.memory.used == 0
    limited.close()
    assert host.used == 0


def test_a_graph_that_does_not_fit_is_refused(path: Path, budget: MemoryBudget) -> None:
    limited = LimitedDevice(budget, cap=20_000)
    with pytest.raises(BudgetExceeded):
        GraphIndex(path, device=limited, budget=budget)
    assert limited.memory.used == 0
    limited.close()
    small = MemoryBudget(200_000, baseline=0)
    with Lane() as link:
        graph = GraphIndex(path, device=CpuDevice(budget, link=link), budget=small)
        with pytest.raises(BudgetExceeded):
            graph.search(QUERIES, 3, length=9)
        assert small.used == 0
        assert (graph.search(QUERIES, 3, length=9, bits=1 << 12).ids >= 0).all()
        graph.close()
    assert budget.used == 0


def test_a_device_whose_memory_cannot_be_read_is_refused(path: Path, budget: MemoryBudget, device: CpuDevice) -> None:
    device.in_host_memory = False
    with pytest.raises(CapabilityError, match="memory the processor reads"):
        GraphIndex(path, device=device, budget=budget)


def flipped(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def cut(path: Path, nbytes: int) -> None:
    path.write_bytes(path.read_bytes()[:nbytes])


@pytest.mark.parametrize(
    ("damage", "place"),
    [*((flipped, offset) for offset in (*range(56), 4096, 50_000, -1)), *((cut, n) for n in (0, 10, 60, 4096, 70_000))],
)
def test_damage_is_found(
    damage: Callable[[Path, int], None], place: int, path: Path, device: CpuDevice, budget: MemoryBudget
) -> None:
    damage(path, place)
    with pytest.raises(CorruptBlock, match=r"some\.graph"):
        GraphIndex(path, device=device, budget=budget)
    assert budget.used == 0


def test_a_graph_of_several_blocks_is_whole(tmp_path: Path, device: CpuDevice, budget: MemoryBudget) -> None:
    count = 3000
    vectors = vectors_of(count, 400)
    ring = (np.arange(count)[:, None] + np.array([[1, -1]])) % count
    path = tmp_path / "ring.graph"
    facts = write_graph(path, vectors, ring.astype(np.int32), 5, budget)
    assert facts.blocks > 3
    with GraphIndex(path, device=device, budget=budget) as graph:
        assert (graph.search(vectors[:1], count, length=count).ids[0] >= 0).all()
    flipped(path, facts.first + (facts.blocks - 2) * facts.block_rows * facts.row_nbytes)
    with pytest.raises(CorruptBlock, match=rf"rows.{facts.blocks - 2}.*build the graph again"):
        GraphIndex(path, device=device, budget=budget)


def test_fewer_results_than_wanted_are_filled_up(tmp_path: Path, device: CpuDevice, budget: MemoryBudget) -> None:
    path = tmp_path / "small.graph"
    write_graph(path, VECTORS[:3], np.array([[1], [0], [0]], np.int32), 0, budget)
    with GraphIndex(path, device=device, budget=budget) as graph:
        found = graph.search(QUERIES, 4, length=4, groups=2)
        assert (found.ids[:, 2:] == -1).all()
        assert np.isneginf(found.scores[:, 2:]).all()
        assert {tuple(sorted(row[:2])) for row in found.ids.tolist()} == {(0, 1)}, "nothing leads to the third row"


@pytest.mark.parametrize(
    ("neighbours", "entry"),
    [(NEIGHBOURS[:-1], 0), (NEIGHBOURS, 900), (NEIGHBOURS, -1), (NEIGHBOURS + 1, 0), (NEIGHBOURS - 1, 0)],
)
def test_lists_that_do_not_fit_the_rows_are_refused(
    neighbours: Any, entry: int, tmp_path: Path, budget: MemoryBudget
) -> None:
    with pytest.raises(InputError, match="do not belong to 900 rows"):
        write_graph(tmp_path / "x.graph", VECTORS, neighbours, entry, budget)
    assert list(tmp_path.iterdir()) == []


def test_bad_input_is_refused(path: Path, device: CpuDevice, budget: MemoryBudget, tmp_path: Path) -> None:
    with GraphIndex(path, device=device, budget=budget) as graph:
        for queries in (QUERIES[:, :-1], QUERIES[0]):
            with pytest.raises(InputError, match="24 dimensions"):
                graph.search(queries, 3, length=9)
        for k, length, candidates in ((0, 3, 1), (-1, 3, 1), (4, 3, 1), (1, 3, 0)):
            with pytest.raises(RangeError):
                graph.search(QUERIES, k, length=length, candidates=candidates)
    with pytest.raises(StorageError):
        open_graph(tmp_path / "none.graph")
    with pytest.raises(StorageError):
        write_graph(tmp_path / "no" / "folder.graph", VECTORS, NEIGHBOURS, 0, budget)


def test_a_failed_request_ends_the_search_and_leaves_nothing(path: Path, budget: MemoryBudget) -> None:
    """The link is closed in the middle of a search with several groups under way."""
    with Lane() as link:
        trace = Trace()
        graph = GraphIndex(path, device=CpuDevice(budget, link=link), budget=budget, trace=trace)
        held = budget.used
        count = 0
        submit = link.submit

        def failing(label: str, work: Any, nbytes: int, **options: Any) -> Any:
            nonlocal count
            count += 1

            def broken() -> int:
                raise StorageError("the device is on fire")

            return submit(label, broken if count == 9 else work, nbytes, **options)

        link.submit = failing  # type: ignore[method-assign]
        with pytest.raises(StorageError, match="on fire"):
            graph.search(QUERIES, 3, length=20, groups=4)
        assert budget.used == held
        link.submit = submit  # type: ignore[method-assign]
        again = graph.search(QUERIES, 3, length=20, groups=4)
        graph.close()
    with Lane() as link, GraphIndex(path, device=CpuDevice(budget, link=link), budget=budget) as graph:
        assert again.ids.tolist() == graph.search(QUERIES, 3, length=20, groups=4).ids.tolist()
