"""`NumpyRuntime` against live layers of Hugging Face transformers, and against the contract of a layer kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from naive.kernels import KernelContract
from naive.numpy_runtime import NumpyLayerKernel, NumpyRuntime

from edge.errors import CapabilityError
from edge.runtimes.base import LayerKernel, distance_bias, load_runtime, rotation
from edge.runtimes.cuda.runtime import CudaRuntime
from edge.runtimes.native.library import processor_level
from edge.runtimes.native.runtime import NativeLayerKernel
from edge.runtimes.onnx import OnnxLayerKernel, product_saturates
from tests.conftest import webgpu

LENGTHS = np.array([19, 7, 1], np.int32)


@pytest.fixture
def kernels(contract: Any) -> Any:
    return contract(NumpyRuntime())


class TestContract(KernelContract):
    pass


def test_int8_is_close_to_fp32(layers: Any) -> None:
    """Dequantized weights in fp32 give nearly the results of int8 arithmetic: scales are applied where they belong."""
    for base in (layers.BERT, layers.QWEN3):
        spec = replace(base, precision="int8")
        weights = layers.random_weights(spec)
        plain = {name: value for name, value in weights.items() if not name.endswith(".scale")}
        for name in spec.matrices():
            plain[f"{name}.weight"] = weights[f"{name}.weight"] * weights[f"{name}.scale"]
        hidden = layers.random_hidden(3, 19)
        result = layers.run(NumpyRuntime().layer_kernel(spec, threads=1), hidden, LENGTHS, weights)
        expected = layers.run(NumpyRuntime().layer_kernel(base, threads=1), hidden, LENGTHS, plain)
        apart = layers.differences(result, expected, LENGTHS)
        assert 1e-4 < apart.mean() < 0.02


def test_rotation_of_far_positions_equals_hugging_face() -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

    config = transformers.Qwen3Config(hidden_size=48, num_attention_heads=4, head_dim=64, rope_theta=1e6)
    theirs = Qwen3RotaryEmbedding(config)(torch.zeros(1), torch.arange(4096)[None])
    for ours, other in zip(rotation(1e6, 64, 4096), theirs, strict=True):
        assert np.abs(ours - other[0, :, :32].numpy()).max() < 1e-3


@pytest.mark.parametrize("block", [(0, 300), (37, 41), (299, 300)])
def test_biases_of_distances_are_those_of_mpnet(layers: Any, block: tuple[int, int]) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

    apart = torch.arange(300)[None] - torch.arange(*block)[:, None]
    rows = MPNetEncoder.relative_position_bucket(apart, num_buckets=32).numpy()
    table = np.random.default_rng(0).standard_normal((32, 4)).astype(np.float32)
    q, k = np.zeros((block[1] - block[0], 4, 12), np.float32), np.zeros((300, 4, 12), np.float32)
    found = distance_bias(replace(layers.LAYERS["mpnet"], buckets=32), {"distances": table}, q, k, block[0])
    assert np.array_equal(found, table[rows].transpose(2, 0, 1))


@pytest.mark.parametrize("block", [(0, 300), (37, 41), (299, 300)])
def test_rows_of_distances_are_those_of_deberta(layers: Any, block: tuple[int, int]) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from transformers.models.deberta_v2.modeling_deberta_v2 import build_relative_position

    spec = replace(layers.LAYERS["deberta"], spans=32, farthest=256, heads=1, kv_heads=1, head_size=1)
    sequence = torch.zeros(1, 300, 1)
    rows = build_relative_position(sequence, sequence, 32, 256)[0].clamp(-32, 31).numpy() + 32
    keys, queries = np.random.default_rng(0).standard_normal((2, 64, 1)).astype(np.float32)
    q, k = np.random.default_rng(1).standard_normal((2, 300, 1, 1)).astype(np.float32)
    expected = (q[:, 0] * keys[rows, 0] + k[:, 0, 0] * queries[rows, 0]) / np.sqrt(np.float32(3))
    found = distance_bias(spec, {"distance_keys": keys, "distance_queries": queries}, q[slice(*block)], k, block[0])
    assert np.abs(found[0] - expected[slice(*block)]).max() < 1e-6


KERNELS: dict[str, Callable[[Any], LayerKernel]] = {
    "cuda on torch's CPU device": lambda spec: CudaRuntime(on="cpu").layer_kernel(spec, threads=1),
    **{name: lambda spec, name=name: load_runtime(name).layer_kernel(spec, threads=1)
       for name in ("mlx", "onnx", *(["webgpu"] if webgpu() else []))},
    **{f"native-{level}": lambda spec, level=level: NativeLayerKernel(spec, "float32", 1, level=level)
       for level in range(1, processor_level() + 1)},
    **{f"onnx-{saturates}": lambda spec, saturates=saturates: OnnxLayerKernel(spec, "float32", 1, saturates=saturates)
       for saturates in {True, product_saturates()}},
}  # fmt: skip
"""Each makes the kernel of a layer."""


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("values", ["largest", "random"])
def test_sums_of_the_whole_range_are_exact(layers: Any, name: str, values: str) -> None:
    """Factors of one sign at their largest, which exceed sums of 16 bits, and factors of the whole range."""
    sizes = {"hidden": 384, "heads": 4, "kv_heads": 4, "head_size": 96, "ffn": 512}
    spec, random = replace(layers.BERT, precision="int8", **sizes), np.random.default_rng(0)
    try:
        kernel = KERNELS[name](spec)
    except (CapabilityError, ImportError, OSError) as error:
        pytest.skip(str(error))
    weights = layers.random_weights(spec)
    for tensor, (rows, columns) in spec.matrices().items():
        matrix = random.integers(-127, 128, (rows, columns))
        if values == "largest":
            matrix = np.sign(matrix + 0.5) * 127
            matrix[:, : columns // 2] = [127] * (columns // 4) + [-127] * (columns // 2 - columns // 4)
        weights[f"{tensor}.weight"] = matrix.astype(np.int8)
        weights[f"{tensor}.scale"] /= 4
    hidden = layers.random_hidden(2, 40, 384)
    if values == "largest":
        signs = np.where(random.random(hidden.shape) < 0.9, np.float32(1), np.float32(-1))
        hidden = signs * (1 + hidden[:, :, :1] ** 2)
    lengths = np.array([40, 17], np.int32)
    expected = layers.run(NumpyLayerKernel(spec, "float32"), hidden, lengths, weights)
    # An inexact sum is wrong by far more than a value that is rounded to its other neighbour.
    apart = layers.differences(layers.run(kernel, hidden, lengths, weights), expected, lengths)
    assert np.quantile(apart, 0.5) < 2e-5
    assert apart.max() < 0.05
