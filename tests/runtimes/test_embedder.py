"""Embeddings equal Hugging Face's and do not depend on how memory is arranged."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from making.synth import synth

from edge.config import Config
from edge.errors import InputError, ModelError
from edge.models.pack import pack
from edge.runtimes import embedder as module
from edge.runtimes.embedder import Embedder
from edge.runtimes.engine import Tuning

GOLDEN = Path(__file__).parents[1] / "golden"
TEXTS = [" ".join(f"word{(i * j) % 29}" for j in range(1, 4 + 3 * i)) for i in range(8)]


@pytest.mark.parametrize("name", ["bert-embedder", "qwen3-embedder"])
def test_vectors_equal_hugging_face(tmp_path: Path, name: str) -> None:
    expected = json.loads((GOLDEN / name / "expected.json").read_text(encoding="utf-8"))
    pack(GOLDEN / name, tmp_path / name, "fp32").close()
    with Embedder(tmp_path / name, max_tokens=expected["max_tokens"], config=Config(memory=10**11)) as embedder:
        vectors = embedder.embed(expected["texts"])
        queries = embedder.embed(expected["queries"], query=True)
    assert vectors.dtype == np.float32
    assert np.abs(vectors - np.array(expected["text_embeddings"])).max() < 1e-4
    assert np.abs(queries - np.array(expected["query_embeddings"])).max() < 1e-4


@pytest.mark.parametrize("name", ["tiny-bert-embedder", "tiny-qwen3-embedder"])
def test_vectors_do_not_depend_on_the_arrangement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    synth(name, tmp_path / name, "fp32").close()
    config = Config(memory=10**11, scratch_dir=str(tmp_path / "scratch"))
    with Embedder(tmp_path / name, config=config) as embedder:
        expected = embedder.embed(TEXTS)
        assert np.abs(np.linalg.norm(expected, axis=1) - 1).max() < 1e-5
        for i, text in enumerate(TEXTS):
            assert np.abs(embedder.embed([text])[0] - expected[i]).max() < 1e-5
    monkeypatch.setattr(module, "_PASS_TEXTS", 3)
    monkeypatch.setattr(module, "_STREAMED_PASS_TEXTS", 3)
    tuning = Tuning(chunk_tokens=1, buffers=2, offload=True, row_share=0.0)
    with Embedder(tmp_path / name, config=config, tuning=tuning) as embedder:
        assert np.abs(embedder.embed(TEXTS) - expected).max() < 1e-5


def test_bad_input(tmp_path: Path) -> None:
    synth("tiny-bert-embedder", tmp_path / "e").close()
    synth("tiny-bert", tmp_path / "r").close()
    with pytest.raises(ModelError, match="reranker"):
        Embedder(tmp_path / "r", config=Config(memory=10**11))
    with Embedder(tmp_path / "e", config=Config(memory=10**11)) as embedder:
        assert embedder.embed([]).shape == (0, 64)
        with pytest.raises(InputError):
            embedder.embed("one text")
        with pytest.raises(InputError):
            embedder.embed(["half a pair \ud800"])
