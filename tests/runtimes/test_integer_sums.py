"""The sums of 8-bit products, of every runtime and on every level of instructions: exact, as on every other machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from naive.numpy_runtime import NumpyLayerKernel

from edge.errors import CapabilityError
from edge.runtimes.base import LayerKernel, load_runtime
from edge.runtimes.cuda.runtime import CudaRuntime
from edge.runtimes.native.library import processor_level
from edge.runtimes.native.runtime import NativeLayerKernel
from edge.runtimes.onnx import OnnxLayerKernel, product_saturates
from tests.conftest import webgpu

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
