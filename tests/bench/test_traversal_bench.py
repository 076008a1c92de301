"""`traversal` on few vectors: its counts are right, and each setting reaches the recall asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from bench.traversal import best_of, figures, traversal, work
from bench.vectors import VectorSet
from edge.errors import EdgeError, InputError


@pytest.fixture
def task(tmp_path: Path) -> dict[str, Any]:
    vectors = VectorSet.made(tmp_path / "vectors", rows=600, queries=8, base=None)
    made = {
        "set": str(vectors.folder), "graph": str(tmp_path / "some.graph"), "degree": 12, "length": 20, "latency": 0.0,
        "bandwidth": 1e12, "depth": 4, "rounds": 2,
    }  # fmt: skip
    built = work(made | {"action": "build"})
    assert 1 < built["degree"] <= 12
    assert built["nbytes"] == 600 * 4 * (384 + 1 + 12)
    return made


def test_hops_grow_and_recall_does_not_fall_with_the_group(task: dict[str, Any]) -> None:
    settings = [(1, 1), (2, 1), (4, 2), (7, 4)]
    rows = work(task | {"action": "counted", "settings": settings})["rows"]
    assert [(row["groups"], row["candidates"]) for row in rows] == settings
    hops = [row["hops"] for row in rows]
    assert hops == sorted(hops)
    assert rows[-1]["recall"] >= rows[0]["recall"] > 0.3
    assert all(row["visited"] > row["hops"] and row["length"] == 20 for row in rows)


def test_a_queue_is_the_shortest_that_reaches_the_recall(task: dict[str, Any]) -> None:
    wanted = work(task | {"action": "counted", "settings": [(2, 2)], "length": 25})["rows"][0]["recall"]
    (row,) = work(task | {"action": "lengths", "settings": [(2, 2)], "recall": wanted})["rows"]
    assert row["recall"] >= wanted
    assert 10 <= row["length"] <= 25
    if row["length"] > 10:
        shorter = work(task | {"action": "counted", "settings": [(2, 2)], "length": row["length"] - 1})["rows"][0]
        assert shorter["recall"] < wanted
    assert work(task | {"action": "lengths", "settings": [(1, 1)], "recall": 1.01})["rows"] == [None]


def test_each_setting_is_timed(task: dict[str, Any]) -> None:
    found = work(task | {"action": "timed", "settings": [(1, 1, 10), (3, 2, 15)]})
    assert len(found["seconds"]) == 2
    assert all(0 < seconds < 60 for seconds in found["seconds"])


def test_the_fastest_of_each_kind_is_chosen() -> None:
    rows = [
        {"groups": groups, "candidates": candidates, "seconds": seconds}
        for groups, candidates, seconds in ((1, 1, 9.0), (1, 4, 3.0), (1, 8, 4.0), (3, 1, 2.0), (4, 2, 1.0))
    ]
    chosen = best_of(rows)
    assert {name: (row["groups"], row["candidates"]) for name, row in chosen.items()} == {
        "best-first": (1, 1), "synchronous": (1, 4), "delayed": (4, 2),
    }  # fmt: skip


def test_a_judged_set_is_searched(judged: Path, tmp_path: Path, tiny_settings: None) -> None:
    with (judged / "corpus.jsonl").open("a", encoding="utf-8") as file:
        for number in range(40):
            text = f"The mill of house number {number} grinds {number * 7} bags of flour in a year."
            file.write(json.dumps({"_id": f"more{number}", "title": "", "text": text}) + "\n")
    arguments = [
        "--data", str(judged), "--queries", "5", "--degree", "4", "--length", "12", "--recall", "0.3", "--latency", "0",
        "--rounds", "1", "--work-dir", str(tmp_path / "work"),
    ]  # fmt: skip
    done = CliRunner().invoke(traversal, [*arguments, "--json", "--lists"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report["conditions"]["rows"] == 45
    assert len(report["figure"]["rows"]) == 28
    assert all(row["recall"] >= 0.3 for row in report["at_equal_recall"])
    assert set(report["chosen"]) == {"best-first", "synchronous", "delayed"}
    assert all(row["peak_resident"] > 1 << 20 for row in report["chosen"].values())
    assert report["lists"]["recall"] == 1.0, "few vectors are in one list, which is scanned whole"
    assert "building the graph" in done.stderr
    stored = list(figures(report))
    assert len({figure.key for figure in stored}) == len(stored) == 28 * 5 + 3 * 7 + 4
    published = [figure.median for figure in stored if figure.column == "the source's"]
    assert published.count(1.0) == 1, "the source's figure stands beside ours"
    printed = CliRunner().invoke(traversal, arguments, catch_exceptions=False).stdout
    assert "delayed synchronisation is " in printed
    assert "THROTTLED TEST DEVICE" in printed
    with pytest.raises(InputError, match="10 questions, not 11"):
        CliRunner().invoke(traversal, [*arguments, "--queries", "11"], catch_exceptions=False)
    with pytest.raises(EdgeError, match="does not reach a recall"):
        CliRunner().invoke(traversal, [*arguments, "--recall", "1.1"], catch_exceptions=False)
