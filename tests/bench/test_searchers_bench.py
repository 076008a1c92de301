"""`searchers`: its two tables, and the refusal of different results."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
from naive.program import output_of

from bench import searchers as bench
from bench.command import bench as command
from bench.run_record import RunRecord
from bench.searchers import simulated_loss
from edge.devices.searchers import queue_length, share_of_queue


def run(*arguments: str) -> str:
    return output_of(command, "searchers", *arguments)


def test_several_searchers_find_what_the_host_finds(
    tmp_path: Path, measured_here: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    measured_here("searchers")
    monkeypatch.setattr(bench, "_SIMULATED", 1000)
    report = json.loads(run("--of", "cpu", "--counts", "1,3", "--codecs", "pq", "--rows", "5000", "--queries", "4",
                            "--json", "--store", str(tmp_path / "run.json")).splitlines()[-1])  # fmt: skip
    stored = {figure.row for figure in RunRecord.load(tmp_path / "run.json").figures}
    assert {"pq, host", "pq, 1", "pq, 3"} <= stored
    rows = report["searches"]
    assert [(row["codec"], row["searchers"]) for row in rows] == [("pq", 0), ("pq", 1), ("pq", 3)]
    assert all(row["identical"] for row in rows)
    assert rows[0]["asked"] == 0
    assert rows[1]["asked"] >= 4, "a query whose lists are loaded bit by bit asks several times"
    assert rows[2]["asked"] >= 12, "every searcher holds rows of every list, and is asked by every query"
    assert rows[2]["queue"] < rows[1]["queue"] == rows[0]["queue"]


@pytest.mark.parametrize("results", [10, 100])
@pytest.mark.parametrize("queues", [2, 4, 8, 16, 32, 64])
def test_the_bound_holds_in_the_simulation_and_is_close(queues: int, results: int) -> None:
    length = queue_length(results, queues)
    searches = 40_000
    error = 3 * (0.01 * 0.99 / searches) ** 0.5
    assert simulated_loss(results, queues, length, searches=searches, seed=1) <= 0.01 + error
    assert simulated_loss(results, queues, length - 1, searches=searches, seed=1) > 0.01 - error
    exact = queues * math.fsum(
        share_of_queue(results, queues, count) for count in range(length, results + 1)
    )  # the bound also counts losses in several queues at once
    assert simulated_loss(results, queues, length - 1, searches=searches, seed=1) <= exact + 3 * error


def test_a_queue_for_all_results_loses_none() -> None:
    assert simulated_loss(20, 4, 20, searches=5000, seed=1) == 0
    assert simulated_loss(20, 4, 4, searches=25_000, seed=1) == 1, "20 results in 4 queues need 5 places in one"
