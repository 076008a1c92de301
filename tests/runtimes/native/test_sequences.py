"""Layer 0's input and means in compiled code are numpy's, to the last bit."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from making.synth import synth

from edge.config import Config
from edge.runtimes import scoring
from edge.runtimes.input import Feed
from edge.runtimes.native import library
from edge.runtimes.native.library import EmbeddingTables, embedding_tables, mean_rows
from edge.runtimes.reranker import Reranker
from edge.streaming.hidden_states import plan_chunks

WIDTHS = (1, 7, 8, 15, 16, 33, 128, 129, 257, 384, 1025)
LENGTHS = np.array([1, 2, 300, 3, 57], np.int32)


@pytest.fixture
def types() -> Sequence[str]:
    """The types of states; none where the compiled code cannot be used, so that numpy does the work."""
    return ("float16", "float32") if library.compiled() else ()


def test_means(types: Sequence[str]) -> None:
    random = np.random.default_rng(0)
    for dtype, width in product(types, WIDTHS[1:]):  # numpy sums a single column in another order
        states = (random.standard_normal((int(LENGTHS.sum()), width)) * 30).astype(dtype)
        parts = np.split(states, np.cumsum(LENGTHS)[:-1])
        expected = np.stack([part.mean(axis=0, dtype=np.float32) for part in parts])
        assert (mean_rows(states, LENGTHS) == expected).all(), width
        assert (scoring._means(states[::-1], LENGTHS[::-1]) == scoring._means(states[::-1].copy(), LENGTHS[::-1])).all()


def test_embedding(types: Sequence[str], layer_0: Any) -> None:
    random, tokens = np.random.default_rng(0), int(LENGTHS.sum())
    for dtype, width in product(types, WIDTHS):
        shapes = ((50,), (300, width), (2, width), (width,), (width,))
        tables = EmbeddingTables(*(random.standard_normal(shape).astype(np.float32) for shape in shapes), eps=1e-12)
        rows = random.integers(-127, 128, (tokens, width), np.int8)
        ids, kinds = random.integers(0, 50, tokens, np.int32), random.integers(0, 2, tokens, np.uint8)
        into = np.empty((tokens, width), dtype)
        tables.embed(rows, ids, LENGTHS, kinds, into)
        assert (into == layer_0(tables, rows, ids, kinds, LENGTHS, dtype)).all(), width
        tables.embed(rows, ids, LENGTHS, None, into)
        assert (into == layer_0(tables, rows, ids, 0 * kinds, LENGTHS, dtype)).all()


def test_a_model_s_input_is_the_same_without_compiled_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, types: Sequence[str]
) -> None:
    synth("tiny-bert", tmp_path / "m", "int8").close()
    docs = [" ".join(f"word{(i * j) % 29}" for j in range(1, 4 + 3 * i)) for i in range(8)]
    with Reranker(tmp_path / "m", config=Config(memory=10**11)) as reranker:
        embedding, batch = reranker.engine.embedding, reranker.engine.vocabulary.pairs("word1 word2", docs)
        for dtype in types:
            results = []
            for compiled in (True, False):
                monkeypatch.setattr(library, "compiled", lambda answer=compiled: answer)
                embedding._positions = embedding._positions[:0]  # read again, so that the tables are chosen again
                embedding.prepare(batch)
                assert (embedding._compiled is not None) == compiled
                (chunk,) = plan_chunks(np.arange(len(docs)), batch.lengths, 10**6)
                into = np.empty((chunk.tokens, embedding.width), dtype)
                Feed(embedding, batch, dtype).chunk(chunk, into)
                results.append(into)
            assert (results[0] == results[1]).all()


def test_what_is_outside_a_table_is_refused(types: Sequence[str]) -> None:
    ones = np.ones((2, 8), np.float32)
    tables = EmbeddingTables(ones[0], ones, ones, ones[0], ones[0], 1e-6)
    rows, ids, kinds = np.ones((3, 8), np.int8), np.zeros(3, np.int32), np.array([0, 1, 2], np.uint8)
    for dtype in types:
        into = np.empty(rows.shape, dtype)
        with pytest.raises(IndexError, match="3 tokens"):
            tables.embed(rows, ids, np.array([3], np.int32), None, into)
        with pytest.raises(IndexError, match="type 2"):
            tables.embed(rows, ids, np.array([1, 2], np.int32), kinds, into)


def test_other_models_are_left_to_numpy(types: Sequence[str]) -> None:
    ones = np.ones((2, 8), np.float32)
    small = {"types": ones, "norm.weight": ones[0], "norm.bias": ones[0]}
    assert (embedding_tables(ones[0], ones, small, 1e-6) is not None) == bool(types)
    assert embedding_tables(None, ones, small, 1e-6) is None, "rows that are not int8"
    assert embedding_tables(ones[0], ones, {"types": ones}, 1e-6) is None, "no norm"
    assert embedding_tables(ones[0], np.ones((2, 5000), np.float32), small, 1e-6) is None, "wider than the buffers"
