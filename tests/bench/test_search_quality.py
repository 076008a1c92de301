"""nDCG of the stages of a search, and the pools that are written."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.search import score, stages_of
from edge.apps.collection.hits import Hit, Stages
from edge.models.training.corpora import Corpus

CORPUS = Corpus("set", ["s/a", "s/b", "s/c"], [""] * 3, ["a", "b", "c"], {"s/q": "what"})


def hit(path: str, lexical: int | None, vector: int | None, fused: int) -> Hit:
    stages = Stages(lexical, None, vector, None, fused, 1 / fused)
    return Hit(
        id=fused, path=path, line_start=1, line_end=1, page=None, score=1 / fused, snippet="", text=path, title="",
        kind="text", context="", file=1, ordinals=(0, 0), stages=stages,
    )  # fmt: skip


class Asked:
    """Stands for a collection: two passages of one document, and the reranker turns the order round."""

    def __init__(self) -> None:
        self.where: Any = None

    def embed_queries(self, queries: Sequence[str]) -> np.ndarray:
        return np.zeros((len(queries), 2), np.float32)

    def candidates(self, query: str, vector: np.ndarray, k: int, *, where: Any) -> list[Hit]:
        self.where = where
        return [hit("s/a", 2, 1, 1), hit("s/b", 1, None, 2), hit("s/a", None, 2, 3), hit("s/c", None, 3, 4)]

    def rerank(self, query: str, hits: list[Hit]) -> list[Hit]:
        return [replace(h, score=1.0) for h in reversed(hits)]


def test_each_stage_is_judged_by_its_own_order(tmp_path: Path) -> None:
    collection = Asked()
    judged = {"s/q": {"s/b": 1, "s/z": 1}}
    row = stages_of(collection, CORPUS, judged, ["s/q"], 30, tmp_path / "pools" / "set.jsonl")  # type: ignore[arg-type]
    ideal = 1 + 1 / math.log2(3)
    assert collection.where == ["path:s/*"]
    assert row == {
        "queries": 1,
        "bm25": pytest.approx(1 / ideal),
        "vectors": 0.0,
        "fused": pytest.approx(1 / math.log2(3) / ideal),
        "reranked": pytest.approx(1 / math.log2(4) / ideal),  # c, a, b: the document that comes twice counts once
    }
    assert json.loads((tmp_path / "pools" / "set.jsonl").read_text()) == {
        "query": "what", "docs": ["s/a", "s/b", "s/a", "s/c"], "grades": [0, 1, 0, 0], "ideal": [1, 1],
        "scores": [1.0, 1 / 2, 1 / 3, 1 / 4], "documents": ["s/a", "s/b", "s/a", "s/c"],
        "domain": CORPUS.name,
    }  # fmt: skip


def test_a_document_counts_once() -> None:
    assert score(["a", "a", "b"], {"b": 1}) == pytest.approx(1 / math.log2(3))
    assert score([], {"b": 1}) == 0.0
