"""`CudaLayerKernel` against the contract of a layer kernel and the numpy reference, on torch's CPU device."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from making.interpreted_triton import interpreted
from naive.kernels import TwinContract
from naive.numpy_runtime import NumpyLayerKernel

from edge.errors import CapabilityError, ConfigError
from edge.models.spec import LayerSpec
from edge.runtimes.base import load_runtime
from edge.runtimes.cuda.runtime import CudaRuntime


@pytest.fixture
def kernels(contract: Any) -> Any:
    pytest.importorskip("torch")
    return contract(CudaRuntime(on="cpu"))


class TestContract(TwinContract):
    @pytest.mark.parametrize("hidden_dtype", ["float32", "float16"])
    def test_equals_reference(self, kernels: Any, layer: LayerSpec, hidden_dtype: str) -> None:
        if layer.window or layer.by_distance or layer.post_norms:
            with pytest.raises(CapabilityError, match="does not run layers with"):
                kernels.equals_reference(layer, hidden_dtype)
        else:
            kernels.equals_reference(layer, hidden_dtype)


@pytest.mark.parametrize(("compute", "tolerance"), [("float16", 0.01), ("bfloat16", 0.08)])
@pytest.mark.parametrize("kind", ["bert", "qwen3", "grouped-encoder", "biased-decoder"])
def test_half_precision_is_near(layers: Any, kind: str, precision: Any, compute: str, tolerance: float) -> None:
    """Attention with and without rotation; a norm of heads is computed in single precision."""
    pytest.importorskip("torch")
    spec = replace(layers.LAYERS[kind], precision=precision)
    weights, lengths = layers.random_weights(spec), np.array([7, 1, 12], np.int32)
    states = np.random.default_rng(0).standard_normal((20, spec.hidden)).astype(np.float32)
    expected = NumpyLayerKernel(spec, "float32").run(states, lengths, weights)
    kernel = CudaRuntime(on="cpu", compute=compute).layer_kernel(spec, threads=1)
    found = kernel.run(states, lengths, weights)
    apart = np.abs(found - expected) / np.maximum(1, np.abs(expected))
    assert 0 < apart.mean() < tolerance


@pytest.mark.parametrize("kind", ["bert", "qwen3", "biased-decoder"])
@pytest.mark.parametrize("compute", ["float16", "float32"])
@pytest.mark.parametrize("fused", [False, True])
def test_int8_layers_are_widened(layers: Any, kind: str, compute: str, fused: bool) -> None:
    """Activations are not rounded to 8 bits then, so that the result is as exact as the arithmetic."""
    pytest.importorskip("torch")
    if fused:
        pytest.importorskip("triton")
    spec, lengths = replace(layers.LAYERS[kind], precision="int8"), np.array([7, 1, 12], np.int32)
    weights = layers.random_weights(spec)
    exact = {name: value.astype(np.float32) for name, value in weights.items() if not name.endswith(".scale")}
    for name in spec.matrices():
        exact[f"{name}.weight"] *= weights[f"{name}.scale"]
    states = np.random.default_rng(0).standard_normal((20, spec.hidden)).astype(np.float32)
    expected = NumpyLayerKernel(layers.LAYERS[kind], "float32").run(states, lengths, exact)
    with interpreted(fused):
        kernel = CudaRuntime(on="cpu", compute=compute, int8="wide").layer_kernel(spec, threads=1)
        bound = kernel.bind(weights)
        assert {str(bound[f"{name}.weight"].dtype) for name in spec.matrices()} == {f"torch.{compute}"}
        apart = np.abs(kernel.run(states, lengths, bound) - expected) / np.maximum(1, np.abs(expected))
    assert apart.max() < (1e-5 if compute == "float32" else 0.01)


def test_found_by_name_with_its_options(layers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(load_runtime("cuda:cap=2GB"), CudaRuntime)
    first = load_runtime("cuda:on=cuda:1+cuda:0,count=2")
    assert isinstance(first, CudaRuntime)
    assert first._options == {"on": "cuda:1"}, "of several cards the first one runs layers"
    with pytest.raises(ConfigError, match="float16, bfloat16 or float32"):
        load_runtime("cuda:compute=float8")
    with pytest.raises(ConfigError, match="integer or wide, not 'narrow'"):
        load_runtime("cuda:int8=narrow")
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr("edge.devices.cuda.card._open", {})  # where another test may have left a card
    with pytest.raises(CapabilityError, match=r'pip install "edge-rag\[cuda\]"'):
        CudaRuntime(on="cpu").layer_kernel(layers.BERT, threads=1)
