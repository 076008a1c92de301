"""The whole process keeps to its limit: database, indexes and both models share one budget."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from making.synth import synth
from naive.program import printed

from edge.errors import BudgetExceeded
from tests.apps.memory.conftest import Make

LIMIT = 160_000_000 if sys.platform == "linux" else 400_000_000
"""Elsewhere mapped files count as held, too."""

SCRIPT = """
import json, sys
from edge.resident import ResidentWatch
from edge.apps.memory.memory import Memory
path, embedder, reranker, limit = *sys.argv[1:4], int(sys.argv[4])
models = {"embedder": embedder, "reranker": reranker}
with ResidentWatch(0.002) as watch, Memory(path, user_id="ann", memory=limit, **models) as m:
    for start in range(0, 1_500, 250):
        said = [f"memory number {n} is about topic {n % 97} and place {n % 89}" for n in range(start, start + 250)]
        m.add(said, supersede=start == 1_250)  # what the last ones end is looked for among all
    m.maintain()
    found = [len(m.search(f"topic {n} in place {n}", 10)["results"]) for n in range(10)]
    holders = m.budget.holders()
    watch.sample()
    print(json.dumps({"peak": watch.high_water, "found": found, "holders": list(holders)}))
"""


def test_the_process_stays_below_its_limit(tmp_path: Path) -> None:
    synth("tiny-bert-embedder", tmp_path / "embedder").close()
    synth("tiny-bert", tmp_path / "reranker").close()
    arguments = [str(tmp_path / "memory"), str(tmp_path / "embedder"), str(tmp_path / "reranker"), str(LIMIT)]
    report = json.loads(printed(SCRIPT, *arguments))
    assert report["found"] == [10] * 10
    assert report["peak"] < LIMIT
    assert {"SQLite", "process"} <= set(report["holders"])


def test_a_limit_that_cannot_work_is_refused_with_one_that_can(make: Make) -> None:
    with pytest.raises(BudgetExceeded, match="smallest memory limit that works is"):
        make(memory="10MB")
