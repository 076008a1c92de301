"""`WebGpuLayerKernel` against the contract of a layer kernel and the numpy reference."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from naive.kernels import TwinContract

from edge.errors import CapabilityError
from edge.models.spec import LayerSpec, Precision
from edge.runtimes.webgpu.layer import SHADER
from edge.runtimes.webgpu.runtime import WebGpuRuntime


@pytest.fixture
def kernels(contract: Any) -> Any:
    return contract(WebGpuRuntime())


@pytest.fixture
def model_layer(layers: Any, precision: Precision) -> LayerSpec:
    """The only layers that run here."""
    return replace(layers.BERT, precision=precision)


class TestContract(TwinContract):
    @pytest.mark.parametrize("hidden_dtype", ["float32", "float16"])
    def test_equals_reference(self, kernels: Any, layer: LayerSpec, hidden_dtype: str, layers: Any) -> None:
        if replace(layer, precision="fp32") == layers.BERT:
            kernels.equals_reference(layer, hidden_dtype)
        else:
            with pytest.raises(CapabilityError, match="runs the layers of BERT and XLM-R only"):
                kernels.kernel(layer, hidden_dtype)

    def test_prefix(self, kernels: Any, decoder: LayerSpec) -> None:
        with pytest.raises(CapabilityError, match="runs the layers of BERT and XLM-R only"):
            kernels.kernel(decoder)


@pytest.mark.parametrize("activation", ["gelu_tanh", "relu", "silu"])
def test_every_activation(kernels: Any, layers: Any, activation: Any) -> None:
    kernels.equals_reference(replace(layers.BERT, activation=activation), "float32")


def test_wide_heads_and_several_blocks_of_keys(kernels: Any, layers: Any) -> None:
    kernels.equals_reference(replace(layers.BERT, heads=2, kv_heads=1, head_size=128), "float32")
    with pytest.raises(CapabilityError, match="heads of at most 128 components"):
        kernels.kernel(replace(layers.BERT, heads=2, kv_heads=2, head_size=130))


def test_a_sequence_is_the_same_to_the_bit_in_every_chunk(layers: Any, model_layer: LayerSpec) -> None:
    kernel, weights = WebGpuRuntime().layer_kernel(model_layer, threads=1), layers.random_weights(model_layer)
    random = np.random.default_rng(0)
    lengths = [7, 40, 1, 33, 18]
    states = random.standard_normal((sum(lengths), model_layer.hidden)).astype(np.float32)
    together = kernel.run(states, np.array(lengths, np.int32), weights)
    at = 0
    for n in lengths:
        alone = kernel.run(states[at : at + n], np.array([n], np.int32), weights)
        assert alone.tobytes() == together[at : at + n].tobytes()
        at += n


def test_products_of_int8_are_exact(layers: Any) -> None:
    """Sums beyond 2**24, which float32 alone would round. Rows with a largest value of 127 have the scale 1."""
    spec = replace(layers.BERT, precision="int8", ffn=3000)
    kernel = WebGpuRuntime().layer_kernel(spec, threads=1)
    random = np.random.default_rng(0)
    weights = layers.random_weights(spec) | {
        "down.weight": random.integers(100, 128, (3000, 48)).astype(np.int8),
        "down.scale": np.ones(48, np.float32),
        "down.bias": np.zeros(48, np.float32),
    }
    x = random.integers(90, 127, (5, 3000)).astype(np.float32)
    x[:, 0] = 127
    bound = kernel.bind(weights)
    card = kernel._card
    source, into, scales, chunk = (card.buffer(n) for n in (x.nbytes, 5 * 48 * 4, 20, 16))
    card.write(source, 0, x)
    card.write(scales, 0, np.ones(5, np.float32))
    card.write(chunk, 0, np.array([5, 0, 0, 0], np.uint32))
    own = {"K": 3000, "N": 48, "PRECISION": 2}
    places = {name: bound[f"down.{name.lower()}"] for name in ("WEIGHT", "SCALE", "BIAS")}
    pipeline = card.pipeline(SHADER, "product", **own, **places)
    encoder = card.device.create_command_encoder()
    work = encoder.begin_compute_pass()
    work.set_pipeline(pipeline)
    work.set_bind_group(0, card.bind(pipeline, {0: chunk, 1: bound.buffer, 3: source, 4: into, 6: scales}))
    work.dispatch_workgroups(2, 1)
    work.end()
    card.device.queue.submit([encoder.finish()])
    found = kernel._device.download(into, 5 * 48 * 4).view(np.float32).reshape(5, 48)
    exact = x.astype(np.int64) @ weights["down.weight"].astype(np.int64)
    assert exact.min() > 1 << 24
    assert found.tolist() == exact.astype(np.float32).tolist()
    for buffer in (source, into, scales, chunk):
        card.destroy(buffer)
