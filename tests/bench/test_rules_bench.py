"""`pruning-rules`: the cluster rule is replayed as it runs, and both rules are compared with full depth."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from naive.program import output_of, settings_of

from bench.command import bench
from bench.rerank_peers import JudgedPool
from bench.rules import THRESHOLDS, chosen, precision, replayed
from edge.runtimes.reranker import Reranker

WORDS = ("river", "mill", "spring", "harbour", "lantern", "orchard", "ice", "bread")
DOCS = [f"The {WORDS[i % 8]} number {i} is near the {WORDS[i * i % 8]}." for i in range(20)]


@pytest.mark.parametrize("mode", ["ranked", "top-k"])
@pytest.mark.parametrize("k", [1, 5, 10])
def test_a_replay_finds_what_the_rule_finds(tiny_models: Path, monkeypatch: Any, mode: Any, k: int) -> None:
    monkeypatch.setenv("EDGE_MODELS_DIR", str(tiny_models))
    with Reranker("tiny", memory="40GB") as reranker:
        full = reranker.explain("where is the mill?", DOCS, len(DOCS), threshold=math.inf, every_layer=True)
        for threshold in THRESHOLDS:
            found = reranker.explain("where is the mill?", DOCS, k, mode=mode, threshold=threshold)
            assert {*replayed(full, k, mode, threshold)} == {result.index for result in found.results}
        assert chosen([full], (20, k, mode), 0.0) == 0.0, "any threshold will do"
        assert chosen([full], (20, k, mode), 2.0) == math.inf, "none will do"


def test_precision_is_divided_by_the_relevant_candidates_if_they_are_fewer() -> None:
    pool = JudgedPool("", ["a", "b", "c", "d"], [0.0, 1.0, 0.0, 2.0], [1.0, 2.0])
    assert precision(pool, [1, 0], 4) == 0.5
    assert precision(pool, [1, 3, 0], 4) == 1.0
    assert precision(pool, [1, 0], 2) == 1.0, "the other relevant one is not in the pool"


def test_both_rules_run_on_pools(tiny_models: Path, monkeypatch: Any, tmp_path: Path) -> None:
    for name, value in settings_of(tmp_path, EDGE_MODELS_DIR=str(tiny_models), EDGE_RERANKER="tiny").items():
        monkeypatch.setenv(name, value)
    grades = [1.0, *[0.0] * 19]
    lines = [json.dumps({"query": f"where is the {word}?", "docs": DOCS, "grades": grades}) for word in WORDS[:2]]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    pools = str(tmp_path / "a.jsonl")
    shown = output_of(
        bench, "pruning-rules", pools, "--results", "5", "--candidates", "20", "--memory", "40GB", "--json"
    )
    rows = json.loads(shown)["rows"]
    assert [name.split(", ")[1:] for name in rows] == [
        [mode, rule] for mode in ("ranked", "top-k") for rule in ("full depth", "bounded", "cluster")
    ]
    assert all(row["queries"] == 1 and 0 < row["work"] <= 1 for row in rows.values())
