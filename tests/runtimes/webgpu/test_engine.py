"""Reranking and embedding on the device `webgpu`: as the reference does, wherever weights and states lie."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from making.device_ranking import (
    OFFLOADED,
    RESIDENT,
    STREAMED,
    config,
    documents,
    embeds_as_the_reference,
    prunes_as_the_reference,
    ranks_as_the_reference,
    scores_of,
)
from naive.kernels import TwinContract

from edge.errors import BudgetExceeded, CapabilityError, DeviceLost
from edge.models.spec import LayerSpec, Precision
from edge.runtimes.base import chosen_runtime
from edge.runtimes.engine import Tuning
from edge.runtimes.reranker import Reranker
from edge.runtimes.webgpu.runtime import SHADER, WebGpuRuntime

WAYS = pytest.mark.parametrize("tuning", [RESIDENT, STREAMED, OFFLOADED], ids=["resident", "streamed", "offloaded"])


def on_device(path: Path, tuning: Tuning, **flags: Any) -> Reranker:
    given = {"device": "webgpu", "device_memory": "32MB", **flags}
    return Reranker(str(path), config=config(**given), tuning=tuning, max_tokens=250)


@WAYS
@pytest.mark.parametrize(
    ("shape", "precision"),
    [("tiny-bert", "fp32"), ("tiny-bert", "fp16"), ("tiny-bert", "int8"), ("tiny-xlm-roberta", "fp16")],
)
def test_ranks_as_the_reference_does(pack: Any, shape: str, precision: str, tuning: Tuning) -> None:
    ranks_as_the_reference(
        on_device, pack(shape, precision), tuning, precision, 1e-4, lambda place: place.device.card.held
    )


@pytest.mark.parametrize("chunk_tokens", [13, 40, 1000])
def test_scores_do_not_depend_on_chunks(pack: Any, chunk_tokens: int) -> None:
    path, docs = pack("tiny-bert", "fp16"), documents()
    with on_device(path, RESIDENT) as first, on_device(path, Tuning(chunk_tokens=chunk_tokens)) as second:
        expected, found = (scores_of(each, docs, threshold="inf") for each in (first, second))
    assert found == expected


@WAYS
def test_embeds_as_the_reference_does(pack: Any, tuning: Tuning) -> None:
    embeds_as_the_reference(pack("tiny-bert-embedder"), tuning, 1e-4, device="webgpu", device_memory="32MB")


@WAYS
def test_prunes_as_the_reference_does(pack: Any, tuning: Tuning) -> None:
    prunes_as_the_reference(on_device, pack("tiny-bert"), tuning)


def test_everything_is_given_back(pack: Any) -> None:
    with on_device(pack("tiny-bert"), STREAMED) as reranker:
        scores_of(reranker, documents())
        assert reranker.engine.place.memory is not reranker.budget
        card, budget = reranker.engine.place.device.card, reranker.budget
    assert not {owner: n for owner, n in budget.holders().items() if "webgpu" in owner and n}
    assert card.held == 16, "only what the card waits with"


def test_a_lost_gpu_is_told(pack: Any) -> None:
    with on_device(pack("tiny-bert"), STREAMED) as reranker:
        reranker.engine.place.device.card.device.destroy()
        with pytest.raises(DeviceLost, match="webgpu does not answer"):
            scores_of(reranker, documents())


def test_layers_of_other_models_and_a_cap_that_is_too_small_are_refused(pack: Any) -> None:
    with pytest.raises(CapabilityError, match="layers of BERT and XLM-R only; choose the runtime onnx"):
        on_device(pack("tiny-qwen3"), RESIDENT)
    with pytest.raises(BudgetExceeded), on_device(pack("tiny-bert"), RESIDENT, device_memory="20kB") as reranker:
        scores_of(reranker, documents())
    assert chosen_runtime(config(device="webgpu:cap=9MB")) == "webgpu:cap=9MB"


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
def test_every_activation_and_wide_heads(kernels: Any, layers: Any, activation: Any) -> None:
    kernels.equals_reference(replace(layers.BERT, activation=activation), "float32")
    wide = replace(layers.BERT, heads=2, kv_heads=1, head_size=128)  # and several blocks of keys
    kernels.equals_reference(replace(wide, activation=activation), "float32")
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
