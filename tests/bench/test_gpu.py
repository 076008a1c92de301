"""`gpu`: its measurements run on torch's CPU device as a rehearsal, and its report names the missing parts."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from bench import gpu, gpu_lookahead, gpu_search, gpu_worker
from bench.gpu import Run, _software
from edge.errors import EdgeError
from tests.conftest import webgpu

COMMON = {"on": "cpu", "rehearsal": True, "threads": 1, "tokens": 20, "candidates": 6, "prefix": 10}


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch")


@pytest.mark.parametrize("shape", ["tiny-qwen3", "tiny-xlm-roberta"])
def test_reranking_is_measured_in_every_arrangement(torch: Any, tmp_path: Path, shape: str) -> None:
    pack = tmp_path / "pack"
    gpu_worker.work({"part": "pack", "shape": shape, "precision": "fp16", "path": str(pack), **COMMON})
    found = gpu_worker.work({"part": "rerank", "pack": str(pack), "scratch": str(tmp_path), "shape": shape, **COMMON})
    rows = found["rows"]
    assert [row["weights"] for row in rows.values()] == [3, 2, 2, 2]
    assert all(row["same_order"] and row["apart"] == 0 for row in rows.values()), "the arrangement changes no score"
    assert all(seconds > 0 for row in rows.values() for seconds in row["seconds"])
    assert [row["candidates"] for row in found["crossing"]] == [6]


def test_transformers_is_measured_beside(torch: Any) -> None:
    pytest.importorskip("transformers")
    found = gpu_worker.work({"part": "transformers", "shape": "tiny-qwen3", **COMMON})
    assert set(found["rows"]) == {"padded", "sorted by length"}
    assert found["tokens"] == int(gpu_worker.lengths_of(COMMON).sum()) + 6 * COMMON["prefix"]  # type: ignore[operator]


def test_layers_are_compared_with_the_reference(torch: Any) -> None:
    layers = gpu_worker.work({"part": "parity", **COMMON})["layers"]
    assert len(layers) == 6
    assert all(0 < row["mean"] < 1e-3 for row in layers.values())


def test_search_is_measured_and_equal(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_search, "_BATCHES", (1, 8))
    monkeypatch.setattr(gpu_search, "_ROUNDS", 1)
    found = gpu_worker.work({"part": "search", "vectors": 3000, **COMMON})
    assert found["equal_results"]
    assert found["rows"]["cuda"]["recall"] > 0.9
    assert found["rows"]["cuda"]["recall"] == found["rows"]["cpu, one thread"]["recall"]
    assert found["absent"] == {"faiss-gpu": "this faiss was not built for GPUs"} or "faiss-gpu" in found["rows"]


def test_lists_and_a_language_model_share_a_card(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("faiss")
    monkeypatch.setattr(gpu_search, "_BATCHES", (8,))
    found = gpu_worker.work({"part": "lookahead", "vectors": 3000, "seconds": 0.02, **COMMON})
    assert found["same"], "the arms find the same"
    rows = found["rows"]
    assert [name.partition(", ")[2] for name in rows] == 2 * list(gpu_lookahead.ARMS)
    assert all(row["questions"] == len(row["seconds"]) > 0 for row in rows.values())
    assert [rows[f"{name}, the host"]["hits"] for name in ("hyde", "iter-retgen")] == [0, 0]
    assert rows["hyde, lookahead"]["hits"] > rows["hyde, read as needed"]["hits"]
    report = {"shapes": [], "parts": {"lookahead": found}}
    assert "times as fast as the host's search" in {figure.column for figure in gpu.figures(report)}


if webgpu():  # else it is not collected

    def test_webgpu_is_measured_in_every_part(torch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(gpu_search, "_BATCHES", (1, 8))
        monkeypatch.setattr(gpu_search, "_ROUNDS", 1)
        common, pack, shape = {**COMMON, "on": "webgpu"}, tmp_path / "pack", "tiny-xlm-roberta"
        assert _software()
        machine = gpu_worker.work({"part": "machine", **common})
        assert "Vulkan" in machine["device"]
        assert machine["to_device"] > 0 < machine["from_device"]
        layers = gpu_worker.work({"part": "parity", **common})["layers"]
        assert set(layers) == {"tiny-bert fp32", "tiny-bert fp16", "tiny-bert int8"}
        assert all(row["mean"] < 1e-3 for row in layers.values())
        search = gpu_worker.work({"part": "search", "vectors": 3000, **common})
        assert search["equal_results"]
        gpu_worker.work({"part": "pack", "shape": shape, "precision": "fp16", "path": str(pack), **common})
        task = {"part": "rerank", "pack": str(pack), "scratch": str(tmp_path), "shape": shape, **common}
        assert all(row.get("apart", 0) == 0 for row in gpu_worker.work(task)["rows"].values())


def test_a_run_out_of_time_or_luck_keeps_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(worker: Any, task: dict[str, Any], *, threads: int, timeout: float) -> dict[str, Any]:
        if task["name"] == "broken":
            raise EdgeError("no luck")
        return {"rows": {}}

    monkeypatch.setattr(gpu, "measure", measured)
    run = Run(tmp_path, time.monotonic() + 100)
    run.take("quick", {"threads": 1}, seconds=10)
    run.take("broken", {"threads": 1}, seconds=10)
    run.take("long", {"threads": 1}, seconds=1000)
    report = json.loads((tmp_path / "gpu.json").read_text(encoding="utf-8"))
    assert set(report["parts"]) == {"quick", "broken", "long"}
    assert report["parts"]["broken"]["left_out"] == "no luck"
    assert report["parts"]["long"]["left_out"].startswith("1000 s are needed")
