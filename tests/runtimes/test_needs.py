"""What an operation needs, and models opened within it."""

from __future__ import annotations

import gc
import json
import math
import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from making.synth import synth
from naive.program import printed
from naive.waiting import PATIENCE_S

from edge.blocks import BlockId
from edge.budget import MemoryBudget
from edge.config import Config
from edge.errors import BudgetExceeded, CorruptBlock, EdgeError
from edge.models.blending import standard
from edge.models.packed import EMBED, HEAD, PackedModel
from edge.models.spec import LayerSpec
from edge.resident import anonymous_resident
from edge.runtimes import engine as module
from edge.runtimes.base import load_runtime
from edge.runtimes.calibration import RecordedScores, forecast
from edge.runtimes.embedder import Embedder
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
    finals = [random.normal(size=400) for _ in range(4)]
    records = [
        RecordedScores(np.stack((final + deviation * random.normal(size=400), final)), None, True, domain)
        for final, deviation, domain in zip(finals, (0.1, 0.1, 0.1, 0.4), "aaab", strict=True)
    ]
    found, alone = forecast(records, retrieved=False), forecast(records[3:], retrieved=False)
    assert found.errors[1] == pytest.approx(0.4, rel=0.15), "those of the domain where they are largest"
    assert found.errors[1] > 0.9 * alone.errors[1] > 2 * forecast(records[:3], retrieved=False).errors[1]


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


FOLDER = Path("/proc/self/fd")


@pytest.fixture(scope="module")
def packs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packs")
    synth("tiny-bert", folder / "reranker", "int8").close()
    synth("tiny-bert-embedder", folder / "embedder").close()
    return folder


def damaged(pack: Path, target: Path, find: Callable[[PackedModel], BlockId]) -> Path:
    """A copy of a pack in which a byte of one block is another."""
    shutil.copytree(pack, target)
    with PackedModel.open(target) as model:
        offset = model.file.extents[find(model)].offset
    data = bytearray((target / "model.safetensors").read_bytes())
    data[offset] ^= 255
    (target / "model.safetensors").write_bytes(data)
    return target


@pytest.mark.parametrize("block", [HEAD, EMBED], ids=str)
def test_a_damaged_model_leaves_a_shared_ledger_as_it_was(packs: Path, tmp_path: Path, block: BlockId) -> None:
    path = damaged(packs / "reranker", tmp_path / "damaged", lambda model: block)
    budget = MemoryBudget(4 * 10**9)
    Reranker(packs / "reranker", budget=budget).close()  # libraries stay
    held, caches = dict(budget.holders()), len(budget._caches)
    with pytest.raises(CorruptBlock):
        Reranker(path, budget=budget)
    assert budget.holders() == held
    assert len(budget._caches) == caches


@pytest.mark.skipif(not FOLDER.exists(), reason="counts the descriptors that Linux lists")
@pytest.mark.parametrize(
    "options",
    [
        {"mode": "bogus"}, {"threshold": "x"}, {"memory": "1MB"}, {"memory": "nonsense"}, {"max_tokens": 0},
        {"config": Config(runtime="none")}, {"budget": "small"},
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_opened_keeps_no_file_open(packs: Path, options: dict[str, Any]) -> None:
    def refused() -> None:
        budget = {"budget": MemoryBudget(1, part=True)} if "budget" in options else {}
        with pytest.raises(EdgeError):
            Reranker(packs / "reranker", **(options | budget))
        if not {"mode", "threshold"} & set(options):
            with pytest.raises(EdgeError):
                Embedder(packs / "embedder", **(options | budget))

    refused()
    before = len(os.listdir(FOLDER))
    refused()
    assert len(os.listdir(FOLDER)) == before


def test_an_engine_that_is_forgotten_leaves_no_thread(packs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a model that was handed over stays open if it cannot be used yet."""
    with PackedModel.open(packs / "reranker") as model:
        with pytest.raises(EdgeError):
            Reranker(model, mode="bogus")  # type: ignore[arg-type]
        Reranker(model, memory="40GB").close()
    monkeypatch.setattr("edge.link._shared", {})  # others may have the process's own link open
    before = set(threading.enumerate())
    reranker: Reranker | None = Reranker(packs / "reranker", memory="40GB")
    reranker.rank("river", ["a river"])
    (lane,) = set(threading.enumerate()) - before
    del reranker
    gc.collect()
    lane.join(PATIENCE_S)
    assert not lane.is_alive()


CYCLES = 10

_CODE = """
import json, sys
from pathlib import Path
from edge import Embedder, MemoryBudget, Reranker
from edge.errors import BudgetExceeded
from edge.resident import ResidentWatch, anonymous_resident, trim_heap

folder, limit, cycles = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
texts = ["The river floods in spring, when the snow melts. " * n for n in range(1, 30)]
left = []
try:
    budget = MemoryBudget(limit)
    with ResidentWatch(0.002) as watch:
        for _ in range(cycles):
            with Reranker(folder / "tiny-bert", budget=budget) as reranker:
                reranker.rank("when does the river flood", texts, top_k=3)
            with Embedder(folder / "tiny-bert-embedder", budget=budget) as embedder:
                embedder.embed(texts)
            trim_heap()
            left.append(anonymous_resident())
    print(json.dumps({"peak": watch.high_water, "left": left, "used": budget.used}))
except BudgetExceeded as error:
    print(json.dumps({"needed": error.needed}))
"""


def run(folder: Path, limit: int, cycles: int) -> dict[str, object]:
    return dict(json.loads(printed(_CODE, str(folder), str(limit), str(cycles))))


def test_engines_opened_again_and_again(tmp_path: Path) -> None:
    for shape in ("tiny-bert", "tiny-bert-embedder"):
        synth(shape, tmp_path / shape).close()
    limit = 32 << 20
    for _ in range(4):  # the first refusal does not know the needs of the second model
        found = run(tmp_path, limit, 1)
        if "needed" not in found:
            break
        limit = int(str(found["needed"]))
    found = run(tmp_path, limit, CYCLES)
    assert "needed" not in found, "what was accepted once is accepted again"
    assert int(str(found["peak"])) <= limit
    left = list(found["left"])  # type: ignore[call-overload]
    assert left[-1] - left[2] < 1 << 20, left
