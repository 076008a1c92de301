"""`traversal` on few vectors: against best-first search as it is printed, and each setting reaches the recall."""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from naive.program import output_of

from bench.traversal import Graph, counted, figures, lists_chosen, opened, traversal, work
from bench.vectors import NEIGHBOURS, VectorSet
from edge.errors import EdgeError
from edge.ivf.scan import exact_scores


@pytest.fixture
def task(tmp_path: Path) -> dict[str, Any]:
    vectors = VectorSet.made(tmp_path / "vectors", rows=600, queries=8, base=None)
    return {
        "set": str(vectors.folder), "graph": str(tmp_path / "some.npz"), "degree": 12, "latency": 0.0,
        "bandwidth": 1e12, "depth": 4, "rounds": 2,
    }  # fmt: skip


def best_first(graph: Graph, query: Any, length: int) -> tuple[list[int], int]:
    """The labels and hops of algorithm 1."""

    def reached(vertex: int) -> tuple[float, int]:
        return float(-exact_scores(graph.vectors[vertex : vertex + 1], query)[0]), vertex

    waiting, visited, hops = [reached(graph.entry)], {graph.entry}, 0
    results = list(waiting)
    while waiting and waiting[0] <= max(results):
        _, vertex = heapq.heappop(waiting)
        hops += 1
        for other in graph.neighbours[vertex].tolist():
            if other >= 0 and other not in visited:
                visited.add(other)
                heapq.heappush(waiting, found := reached(other))
                results = sorted([*results, found])[:length]
    return [vertex for _, vertex in sorted(results)[:NEIGHBOURS]], hops


@pytest.mark.parametrize("length", [10, 25, 600])
def test_one_group_of_one_candidate_is_best_first_search(task: dict[str, Any], length: int) -> None:
    with opened(task) as (vectors, graph, link):
        for query in vectors.queries:
            labels, hops, rows = graph.search(query, (1, 1, length), link)
            assert (labels, hops) == best_first(graph, query, length)
            assert hops <= rows <= len(graph.vectors)


def test_a_queue_is_the_shortest_that_reaches_the_recall(task: dict[str, Any]) -> None:
    with opened(task) as (vectors, graph, link):
        wanted = counted(graph, link, vectors, (2, 2, 25))["recall"]
    (row,) = work(task | {"action": "lengths", "settings": [(2, 2)], "recall": wanted})["rows"]
    assert row["recall"] >= wanted
    assert 10 <= row["length"] <= 25
    assert work(task | {"action": "lengths", "settings": [(1, 1)], "recall": 1.01})["rows"] == [None]


def test_every_setting_reaches_the_recall(
    tmp_path: Path, measured_here: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    measured_here("traversal")
    monkeypatch.setattr("bench.traversal._GROUPS", (2, 3))
    arguments = [
        "--rows", "300", "--queries", "4", "--degree", "8", "--recall", "0.3", "--latency", "0",
        "--rounds", "1", "--work-dir", str(tmp_path / "work"),
    ]  # fmt: skip
    report = json.loads(output_of(traversal, *arguments, "--json"))
    assert all(row["recall"] >= 0.3 for row in report["at_equal_recall"])
    assert set(report["chosen"]) == {"best-first", "synchronous", "delayed"}
    stored = list(figures(report))
    assert len({figure.key for figure in stored}) == len(stored) == 3 * 6
    with pytest.raises(EdgeError, match="does not reach a recall"):
        output_of(traversal, *arguments, "--recall", "1.1")


def test_lists_are_chosen_by_a_graph_as_by_comparing_all(tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    row = lists_chosen(300, 5, 16, 0.95, 1, tmp_path)
    assert row["recall"] >= 0.95
    assert row["built"] > 0
