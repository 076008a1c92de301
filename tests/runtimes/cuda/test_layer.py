"""`CudaLayerKernel` against the contract of a layer kernel and the numpy reference, on torch's CPU device."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from naive.kernels import TwinContract
from naive.numpy_runtime import NumpyLayerKernel

from edge.errors import CapabilityError, ConfigError
from edge.models.spec import LayerSpec
from edge.runtimes.base import load_runtime
from edge.runtimes.cuda.runtime import CudaRuntime, attend, layout, one_kernel


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
def test_half_precision_is_near(model_layer: LayerSpec, layers: Any, compute: str, tolerance: float) -> None:
    pytest.importorskip("torch")
    weights, lengths = layers.random_weights(model_layer), np.array([7, 1, 12], np.int32)
    states = np.random.default_rng(0).standard_normal((20, model_layer.hidden)).astype(np.float32)
    expected = NumpyLayerKernel(model_layer, "float32").run(states, lengths, weights)
    kernel = CudaRuntime(on="cpu", compute=compute).layer_kernel(model_layer, threads=1)
    found = kernel.run(states, lengths, weights)
    apart = np.abs(found - expected) / np.maximum(1, np.abs(expected))
    assert 0 < apart.mean() < tolerance


@pytest.mark.parametrize("kind", ["grouped-encoder", "biased-decoder"])
def test_half_precision_reaches_attention_with_and_without_rotation(layers: Any, kind: str) -> None:
    """A norm of heads is computed in single precision."""
    pytest.importorskip("torch")
    spec, lengths = layers.LAYERS[kind], np.array([7, 1], np.int32)
    states = np.random.default_rng(0).standard_normal((8, spec.hidden)).astype(np.float32)
    weights = layers.random_weights(spec)
    found = CudaRuntime(on="cpu", compute="float16").layer_kernel(spec, threads=1).run(states, lengths, weights)
    assert np.abs(found - NumpyLayerKernel(spec, "float32").run(states, lengths, weights)).mean() < 0.01


def test_heads_of_an_odd_size_have_no_kernel_for_all_lengths(layers: Any) -> None:
    """FlashAttention takes multiples of 8, and the workspace has room for the scores of the others."""
    assert layers.BERT.head_size % 8
    assert not one_kernel(layers.BERT, on_gpu=True, itemsize=2)
    assert one_kernel(layers.QWEN3, on_gpu=True, itemsize=2)
    assert not one_kernel(layers.QWEN3, on_gpu=False, itemsize=2)
    assert not one_kernel(layers.QWEN3, on_gpu=True, itemsize=4)


def test_found_by_name_with_its_options() -> None:
    assert isinstance(load_runtime("cuda:cap=2GB"), CudaRuntime)
    with pytest.raises(ConfigError, match="float16, bfloat16 or float32"):
        load_runtime("cuda:compute=float8")


def test_missing_library(monkeypatch: pytest.MonkeyPatch, model_layer: LayerSpec) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr("edge.devices.cuda.card._open", {})  # where another test may have left a card
    with pytest.raises(CapabilityError, match=r'pip install "edge-rag\[cuda\]"'):
        CudaRuntime(on="cpu").layer_kernel(model_layer, threads=1)


@pytest.mark.parametrize("prefix", [0, 3])
def test_groups_of_sequences_hold_what_the_kernel_for_all_lengths_needs(layers: Any, prefix: int) -> None:
    """That kernel runs on GPUs only. Its input is checked here: where each sequence's queries and keys begin."""
    torch = pytest.importorskip("torch")
    lengths = [4, 4, 1, 6, 2]
    place = layout(torch, torch.device("cpu"), lengths, prefix)
    starts = np.concatenate(([0], np.cumsum(lengths)))
    assert place.positions.tolist() == [prefix + i for n in lengths for i in range(n)]
    assert [(g.first, g.last) for g in place.groups][-1][1] == 17
    number = 0
    for group in place.groups:
        first = number
        for own in range(len(group.lengths)):
            assert group.first + int(group.starts[own]) == starts[number]
            low, high = int(group.key_starts[own]), int(group.key_starts[own + 1])
            if prefix:
                keys = group.keys[low:high].tolist()
                assert keys == [0, 1, 2, *(prefix + i for i in range(starts[number], starts[number + 1]))]
            else:
                assert (high - low, group.keys) == (lengths[number], None)
            number += 1
        assert group.longest == max(lengths[first:number])
        assert group.longest_keys == group.longest + prefix
        if prefix:
            assert int(group.key_starts[-1]) <= 17 or len(group.lengths) == 1, "copied keys have a bound"
    assert number == len(lengths)


def test_attention_of_a_group_is_that_of_each_sequence(layers: Any) -> None:
    torch = pytest.importorskip("torch")
    spec = layers.QWEN3
    lengths, prefix = [5, 5, 2], 4
    group = layout(torch, torch.device("cpu"), lengths, 0).groups[0]
    q, k, v = (torch.randn(12, heads, spec.head_size) for heads in (spec.heads, spec.kv_heads, spec.kv_heads))
    together = attend(torch, spec, group, q, k, v)
    at = 0
    for length in lengths:
        one = layout(torch, torch.device("cpu"), [length], 0).groups[0]
        part = slice(at, at + length)
        assert torch.allclose(attend(torch, spec, one, q[part], k[part], v[part]), together[part], atol=1e-6)
        at += length
    assert prefix == 4
