"""`MlxRuntime` against the contract of a layer kernel and the numpy reference. Its weights are read where the disk has
put them: nothing is copied, and models run as in the reference."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from making.device_ranking import OFFLOADED, RESIDENT, config, ranks_as_the_reference
from making.synth import synth
from naive.kernels import TwinContract

from edge.budget import MemoryBudget
from edge.errors import CapabilityError, ConfigError
from edge.link import Lane
from edge.models.spec import LayerSpec
from edge.runtimes.base import chosen_runtime, runtime_for
from edge.runtimes.engine import Tuning
from edge.runtimes.mlx import MetalRuntime, MlxRuntime, UnifiedPlace
from edge.runtimes.reranker import Reranker
from edge.trace import Trace


@pytest.fixture
def kernels(contract: Any) -> Any:
    pytest.importorskip("mlx.core")
    return contract(MlxRuntime())


class TestContract(TwinContract):
    pass


def test_weights_are_copied_once_per_layer(
    contract: Any, model_layer: LayerSpec, layers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    mx = pytest.importorskip("mlx.core")
    kernel = MlxRuntime().layer_kernel(model_layer, threads=1)
    weights = layers.random_weights(model_layer)
    states = np.ones((6, model_layer.hidden), np.float32)
    lengths = np.array([2, 4], np.int32)
    expected = kernel.run(states, lengths, weights)
    copied: list[Any] = []
    array = mx.array

    def watched(values: Any) -> Any:
        copied.append(values)
        return array(values)

    monkeypatch.setattr(mx, "array", watched)
    bound = kernel.bind(weights)
    assert len(copied) == len(weights)
    for values in weights.values():
        values[...] = 0  # the window's buffer may be overwritten from now on
    del copied[:]
    for _ in range(3):
        assert (kernel.run(states, lengths, bound) == expected).all()
    assert not [values for values in copied if any(values is weight for weight in weights.values())]
    assert len(copied) <= 3 * 3, "states and positions of each chunk, no weights"


def test_missing_library(monkeypatch: pytest.MonkeyPatch, model_layer: LayerSpec) -> None:
    monkeypatch.setitem(sys.modules, "mlx.core", None)
    with pytest.raises(CapabilityError, match=r'pip install "edge-rag\[mlx\]"'):
        MlxRuntime().layer_kernel(model_layer, threads=1)


def test_a_layer_is_bound_without_a_copy(tmp_path: Path) -> None:
    mx = pytest.importorskip("mlx.core")
    with synth("tiny-bert", tmp_path / "pack", "fp32") as model, Lane() as lane:
        runtime = MetalRuntime()
        place = runtime.workplace(MemoryBudget(1 << 36, baseline=0), lane, Trace())
        assert isinstance(place, UnifiedPlace)
        way, block = place.way(model), model.layer_blocks[1]
        buffer = way.allocate(model.file.nbytes(block))
        way.fetch(model.file, block, buffer).wait()
        kernel = runtime.layer_kernel(model.spec.layer, threads=1)
        before = mx.get_active_memory()
        bound = kernel.bind(place.tensors(model, 1, buffer[: model.file.nbytes(block)]))
        assert mx.get_active_memory() == before, "views of the window's buffer"
        expected = model.load(block)
        assert {name: np.array(values).tobytes() for name, values in bound.items()} == {
            name: values.tobytes() for name, values in expected.items()
        }


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
@pytest.mark.parametrize("tuning", [RESIDENT, OFFLOADED], ids=["resident", "offloaded"])
def test_the_device_ranks_as_the_reference_does(pack: Any, precision: str, tuning: Tuning) -> None:
    pytest.importorskip("mlx.core")

    def on_device(path: Path, tuning: Tuning) -> Reranker:
        return Reranker(str(path), config=config(device="metal"), tuning=tuning, max_tokens=250)

    ranks_as_the_reference(on_device, pack("tiny-bert", precision), tuning, precision, 1e-5)


def test_it_has_no_memory_of_its_own_to_limit(tmp_path: Path) -> None:
    pytest.importorskip("mlx.core")
    given = config(device="metal", device_memory="2GB")
    with synth("tiny-bert", tmp_path / "pack") as model, pytest.raises(ConfigError, match="metal cannot be used"):
        runtime_for(chosen_runtime(given), model.spec.layer)
