"""The memory that an engine will need is known before anything is loaded, and is never less than it takes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from making.synth import synth

from edge.budget import MemoryBudget
from edge.config import Config
from edge.errors import BudgetExceeded
from edge.models.spec import LayerSpec
from edge.resident import anonymous_resident
from edge.runtimes import engine as module
from edge.runtimes.base import load_runtime
from edge.runtimes.needs import engine_needs
from edge.runtimes.onnx import OnnxLayerKernel
from edge.runtimes.reranker import Reranker

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
