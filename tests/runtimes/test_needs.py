"""The memory that an engine will need is known before anything is loaded, and is never less than it takes."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from making.synth import synth

from edge.budget import MemoryBudget
from edge.config import Config
from edge.errors import BudgetExceeded
from edge.models.blending import standard
from edge.models.spec import LayerSpec
from edge.resident import anonymous_resident
from edge.runtimes import engine as module
from edge.runtimes.base import load_runtime
from edge.runtimes.calibration import RecordedScores, forecast
from edge.runtimes.input import InputEmbedding
from edge.runtimes.needs import LEAST_ROWS, engine_needs
from edge.runtimes.onnx import OnnxLayerKernel
from edge.runtimes.reranker import Reranker
from edge.streaming.forwarding import SLACK

ENCODER = LayerSpec(
    hidden=384, heads=12, kv_heads=12, head_size=32, ffn=1536, activation="gelu", gated=False, norm="layer",
    norm_first=False, norm_eps=1e-12, rope_theta=None, causal=False, qk_norm=False, bias=True, precision="int8",
)  # fmt: skip
DECODER = LayerSpec(
    hidden=1024, heads=16, kv_heads=8, head_size=128, ffn=3072, activation="silu", gated=True, norm="rms",
    norm_first=True, norm_eps=1e-6, rope_theta=1e6, causal=True, qk_norm=True, bias=False, precision="int8",
)  # fmt: skip
SHAPES = {
    "minilm": ENCODER,
    "base": replace(ENCODER, hidden=768, head_size=64, ffn=3072),
    "large": replace(ENCODER, hidden=1024, heads=16, kv_heads=16, head_size=64, ffn=4096),
    "narrow": replace(ENCODER, hidden=128, heads=2, kv_heads=2, head_size=64, ffn=2048),
    "tiny": replace(ENCODER, hidden=32, heads=2, kv_heads=2, head_size=16, ffn=64),
    "qwen": DECODER,
}


@pytest.mark.parametrize("precision", ["int8", "fp16", "fp32"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_kernels_workspace_is_known_before_it_is_compiled(shape: str, precision: Any) -> None:
    spec = replace(SHAPES[shape], precision=precision)
    dtype: Any = "float32" if spec.norm_first or precision == "fp32" else "float16"
    runtime = load_runtime("onnx")
    planned = runtime.planned(spec, threads=2, hidden_dtype=dtype)
    kernel = OnnxLayerKernel(spec, dtype, 2, saturates=precision == "int8")  # which takes the most memory
    for tokens, longest, prefix in ((512, 512, 0), (16, 16, 0), (3000, 200, 0), (512, 512, 512 * spec.causal)):
        known = kernel.workspace(tokens, longest, prefix)
        assert known <= planned(tokens, longest, prefix) <= 1.2 * known + 1_500_000


def test_an_engine_takes_no_more_than_its_needs(tmp_path: Path) -> None:
    with synth("tiny-bert", tmp_path / "model") as model:
        needs = engine_needs(model, load_runtime("onnx"), threads=1, max_tokens=64)
    budget = MemoryBudget(10**12)
    before = budget.used
    config = Config(scratch_dir=str(tmp_path), threads=1)
    with Reranker(tmp_path / "model", budget=budget, config=config, max_tokens=64) as reranker:
        reranker.engine.window.close()  # it takes the free memory
        rows = reranker.engine.embedding.row_capacity * reranker.model.embedding.row_nbytes
        libraries = budget.holders().get("libraries", 0)
        assert budget.used - before - libraries - rows <= needs.held + needs.tokenizer


@pytest.mark.parametrize(("spare", "share"), [(51, 1), (49, 10)])
def test_all_token_rows_stay_in_memory_where_they_are_little_of_it(tmp_path: Path, spare: int, share: int) -> None:
    with Reranker(memory="4GB", config=Config(scratch_dir=str(tmp_path))) as reranker:
        engine, rows = reranker.engine, reranker.model.embedding
        assert engine.embedding.row_capacity == rows.rows
        floor = InputEmbedding.memory_needed(reranker.model, LEAST_ROWS, engine.max_tokens)
        beside = floor + SLACK + engine.working - engine.vocabulary.nbytes
        free = beside + spare * rows.rows * rows.row_nbytes
        with engine.budget.reserve("others", engine.budget.free - free):
            assert engine._row_capacity() == rows.rows // share


def test_the_limit_that_a_refusal_names_works_and_a_lower_one_loads_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synth("tiny-bert", tmp_path / "model").close()
    config = Config(scratch_dir=str(tmp_path))
    loaded: list[object] = []
    engine = module.Engine
    monkeypatch.setattr(module, "Engine", lambda *given, **named: loaded.append(given) or engine(*given, **named))
    with pytest.raises(BudgetExceeded) as caught:
        Reranker(tmp_path / "model", memory=anonymous_resident() + 1_000_000, config=config)
    assert not loaded
    with Reranker(tmp_path / "model", memory=caught.value.needed, config=config) as reranker:
        texts = ["short", "河水" * 500, "x" * 5000, '{"a":1,' * 900, "river " * 3000, ""]
        assert len(reranker.rank("when does the river flood", texts)) == len(texts)
        assert reranker.budget.used <= caught.value.needed


def test_a_forecast_is_the_best_line_within_a_pool() -> None:
    random = np.random.default_rng(1)
    finals = [random.normal(size=50) + shift for shift in (-3.0, 0.0, 4.0)]
    first = [final / 2 + 0.1 * random.normal(size=50) - 1 for final in finals]
    blind = [random.normal(size=50) for _ in finals]
    records = [RecordedScores(np.stack(rows), None, True) for rows in zip(blind, first, finals, strict=True)]
    found = forecast(records, retrieved=False)
    assert found.slopes[2] == pytest.approx(2.0, rel=0.1)
    assert found.offsets[2] == pytest.approx(np.mean(finals) - found.slopes[2] * np.mean(first))
    assert found.errors[2] == pytest.approx(0.2, rel=0.15)
    assert found.errors[0] == found.errors[1] == math.inf
    assert found.pulls == (0.0,) * 4
    assert (found.slopes[3], found.offsets[3], found.errors[3]) == (1.0, 0.0, 0.0)


def test_what_retrieval_said_is_part_of_a_forecast() -> None:
    """It explains half of the final logits' variance before any layer, and adds to the evidence of a noisy layer."""
    random = np.random.default_rng(3)
    retrieved = [np.sort(random.normal(size=80))[::-1] for _ in range(4)]
    finals = [2.0 * standard(scores) + 2.0 * random.normal(size=80) for scores in retrieved]
    first = [final + 2.0 * random.normal(size=80) for final in finals]
    records = [
        RecordedScores(np.stack(rows), None, scores.tolist())
        for *rows, scores in zip(first, finals, retrieved, strict=True)
    ]
    alone, blended = forecast(records, retrieved=False), forecast(records, retrieved=True)
    assert blended.pulls[0] == pytest.approx(2.0, rel=0.15)
    assert blended.errors[0] == pytest.approx(2.0, rel=0.15)
    assert blended.errors[1] == pytest.approx(np.sqrt(2), rel=0.15)
    assert blended.errors[1] < 0.95 * alone.errors[1]
    assert blended(0, np.zeros(1), np.ones(1)) == pytest.approx(2.0, rel=0.2)


def test_errors_are_those_of_the_domain_where_they_are_largest() -> None:
    random = np.random.default_rng(5)
    finals = [random.normal(size=400) for _ in range(4)]
    records = [
        RecordedScores(np.stack((final + deviation * random.normal(size=400), final)), None, True, domain)
        for final, deviation, domain in zip(finals, (0.1, 0.1, 0.1, 0.4), "aaab", strict=True)
    ]
    found = forecast(records, retrieved=False)
    alone = forecast(records[3:], retrieved=False)
    assert found.errors[1] == pytest.approx(0.4, rel=0.15)
    assert found.errors[1] > 0.9 * alone.errors[1] > 2 * forecast(records[:3], retrieved=False).errors[1]
