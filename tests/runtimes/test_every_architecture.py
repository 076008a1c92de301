"""Every architecture in every arrangement: transformers' numbers in fp32, streamed equals resident, int8 stays near."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from making.tiny_families import TINY, TOKENIZERS, built, ours, saved, theirs

from edge.config import Config
from edge.models.pack import pack
from edge.models.spec import HeadSpec
from edge.runtimes.embedder import Embedder
from edge.runtimes.engine import Tuning

pytest.importorskip("torch")
pytest.importorskip("transformers")
HEAD = HeadSpec("mean", normalize=True)
TEXTS = [" ".join("energy of cells and the city"[: 3 + 5 * i].split() * (i + 1)) for i in range(6)]
STREAMED = Tuning(chunk_tokens=1, buffers=2, offload=True, row_share=0.0)


@pytest.fixture(params=sorted(TINY))
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, Path]:
    kind = request.param
    model = built(kind, TINY[kind], "AutoModel")
    return model, saved(model, tmp_path / "checkpoint", {}, TOKENIZERS.get(kind, "xlm-roberta-reranker"))


def test_onnx_gives_transformers_numbers(checkpoint: tuple[Any, Path], tmp_path: Path) -> None:
    model, folder = checkpoint
    found, reason = ours(folder, tmp_path, HeadSpec("mean"), "onnx")
    assert found is not None, reason
    assert np.abs(found - theirs(model, HeadSpec("mean"))).max() < 1e-5


def test_streamed_equals_resident_and_int8_stays_near(checkpoint: tuple[Any, Path], tmp_path: Path) -> None:
    vectors: dict[tuple[str, bool], np.ndarray] = {}
    for precision in ("fp32", "int8"):
        pack(checkpoint[1], tmp_path / precision, precision, head=HEAD).close()
        for streamed in (False, True):
            config = Config(memory=10**11, scratch_dir=str(tmp_path / "scratch") if streamed else None)
            with Embedder(tmp_path / precision, config=config, tuning=STREAMED if streamed else None) as embedder:
                vectors[precision, streamed] = embedder.embed(TEXTS)
        assert np.array_equal(vectors[precision, False], vectors[precision, True])
    assert (vectors["fp32", False] * vectors["int8", False]).sum(1).min() > 0.98
