"""`MlxRuntime` against the contract of a layer kernel and the numpy reference. Its weights are read where the disk has
put them: nothing is copied, and models run as in the reference."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from making.device_ranking import OFFLOADED, RESIDENT, config, ranks_as_the_reference
from making.synth import synth
from naive.kernels import TwinContract
from naive.numpy_runtime import NumpyLayerKernel

from edge.budget import MemoryBudget
from edge.errors import CapabilityError, ConfigError
from edge.link import Lane
from edge.models.spec import LayerSpec, Precision
from edge.runtimes.base import chosen_runtime, runtime_for
from edge.runtimes.engine import Tuning
from edge.runtimes.mlx import MetalRuntime, MlxLayerKernel, MlxRuntime, UnifiedPlace
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
    assert len(copied) <= 3 * 8, "states, angles, and places and masks of the chunk's two calls, no weights"


@pytest.mark.parametrize("kind", ["bert", "qwen3", "modernbert", "deberta"])
@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_a_gpu_computes_in_half_precision(layers: Any, kind: str, precision: Precision) -> None:
    mx = pytest.importorskip("mlx.core")
    spec, lengths = replace(layers.LAYERS[kind], precision=precision), np.array([7, 9, 1, 12], np.int32)
    weights = layers.random_weights(spec)
    exact = {name: value.astype(np.float32) for name, value in weights.items() if not name.endswith(".scale")}
    for name in spec.matrices() if precision == "int8" else ():
        exact[f"{name}.weight"] *= weights[f"{name}.scale"]
    states = np.random.default_rng(0).standard_normal((29, spec.hidden)).astype(np.float32)
    expected = NumpyLayerKernel(layers.LAYERS[kind], "float32").run(states, lengths, exact)
    kernel = MlxLayerKernel(spec, "float32", mx, half=True)
    bound = kernel.bind(weights)
    assert {bound[f"{name}.weight"].dtype for name in spec.matrices()} == {mx.float16}
    apart = np.abs(kernel.run(states, lengths, bound) - expected) / np.maximum(1, np.abs(expected))
    assert 1e-5 < apart.max() < 0.01


def test_sequences_of_similar_length_share_a_call(layers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    mx = pytest.importorskip("mlx.core")
    calls: list[tuple[int, ...]] = []
    attention = mx.fast.scaled_dot_product_attention

    def counted(q: Any, *others: Any, **given: Any) -> Any:
        calls.append(q.shape)
        return attention(q, *others, **given)

    monkeypatch.setattr(mx.fast, "scaled_dot_product_attention", counted)
    spec, lengths = layers.LAYERS["bert"], np.array([3, 4, 4, 5, 20, 21, 1], np.int32)
    states = np.random.default_rng(0).standard_normal((lengths.sum(), spec.hidden)).astype(np.float32)
    MlxLayerKernel(spec, "float32", mx).run(states, lengths, layers.random_weights(spec))
    assert [(shape[0], shape[2]) for shape in calls] == [(4, 5), (2, 21), (1, 1)]


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


def test_it_has_no_memory_of_its_own_to_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlx.core")
    given = config(device="metal", device_memory="2GB")
    with synth("tiny-bert", tmp_path / "pack") as model, pytest.raises(ConfigError, match="metal cannot be used"):
        runtime_for(chosen_runtime(given), model.spec.layer)
    monkeypatch.setitem(sys.modules, "mlx.core", None)
    with pytest.raises(CapabilityError, match=r'pip install "edge-rag\[mlx\]"'):
        MlxRuntime().layer_kernel(model.spec.layer, threads=1)
