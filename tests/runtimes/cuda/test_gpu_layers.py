"""Layers of a language model under the ledger of a card, with a llama.cpp that stands in for one built for GPUs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edge.budget import MemoryBudget
from edge.config import Config
from edge.devices.cuda.device import CudaDevice
from edge.errors import BudgetExceeded, CapabilityError, ConfigError
from edge.runtimes.generation.llama_memory import GpuLayers

torch = pytest.importorskip("torch")

LLAMA = SimpleNamespace(path=Path("llama.gguf"), weights_nbytes=8_000_000, value={"block_count": 9}.get)
"""A model of nine layers and an output: each a tenth of its ten megabytes with keys, values and buffers."""

CARD = "cuda:on=cpu,cap=4500000"


def api(gpu: bool) -> Any:
    return SimpleNamespace(llama_supports_gpu_offload=lambda: gpu)


@pytest.mark.parametrize(
    ("asked", "device", "gpu", "count"),
    [("auto", "", True, 0), ("auto", "remote", True, 0), ("auto", CARD, False, 0), ("0", CARD, True, 0),
     ("auto", CARD, True, 4), ("3", CARD, True, 3)],
)  # fmt: skip
def test_layers_lie_on_the_card_as_far_as_it_holds_them(asked: str, device: str, gpu: bool, count: int) -> None:
    budget = MemoryBudget(1 << 36, baseline=0)
    layers = GpuLayers(asked, device)
    layers.reserve(api(gpu), LLAMA, budget, beside=2_000_000)  # type: ignore[arg-type]
    assert layers.count == count
    if count:
        with_lists = CudaDevice(budget, on="cpu", cap="4500000")
        assert with_lists.memory.holders() == {f"{count} layers of llama.gguf": count * 1_000_000}
        with_lists.close()
        assert layers.placement == f"{count} layers on the GPU, {count}.00 MB"
    layers.close()
    assert not budget.used


@pytest.mark.parametrize(
    ("asked", "device", "gpu", "error", "message"),
    [("3", CARD, False, CapabilityError, "built without one; install llama-cpp-python for your GPU"),
     ("3", "", True, ConfigError, "need its memory limit: --device cuda"),
     ("11", CARD, True, ConfigError, "has 10 layers with its output, fewer than 11"),
     ("5", CARD, True, BudgetExceeded, "5 layers of llama.gguf needs 5.00 MB")],
)  # fmt: skip
def test_a_number_that_cannot_be_is_refused(asked: str, device: str, gpu: bool, error: Any, message: str) -> None:
    layers = GpuLayers(asked, device)
    with pytest.raises(error, match=message):
        layers.reserve(api(gpu), LLAMA, MemoryBudget(1 << 36, baseline=0), beside=2_000_000)  # type: ignore[arg-type]
    layers.close()


def test_the_setting_is_checked() -> None:
    assert Config.load(flags={"gpu_layers": "12"}).gpu_layers == "12"
    for wrong in ("all", "-1", "1.5"):
        with pytest.raises(ConfigError, match="gpu_layers is `auto` or a whole number"):
            Config.load(flags={"gpu_layers": wrong})
