"""Times one encoder layer in turn with this program's runtimes, plain onnxruntime and transformers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.apps.bench.process import serve
from edge.errors import CapabilityError
from edge.models.spec import LayerSpec
from edge.models.synth import layer_spec
from edge.runtimes.base import load_runtime

_PAUSE = 0.02
"""Seconds between two systems, because threads of libraries keep spinning for a while after their work."""

_BATCH = 8

Array = npt.NDArray[Any]
Layer = Callable[[Array, npt.NDArray[np.int32]], Array]


def work(task: dict[str, Any]) -> dict[str, Any]:
    """Measures each system: wall and CPU seconds of every round, and its result's mean distance from the first's."""
    spec = layer_spec(task["shape"])
    random = np.random.default_rng(0)
    spread = task["tokens"] // 3
    lengths = random.integers(task["tokens"] - spread, task["tokens"] + spread + 1, task["sequences"])
    lengths = np.sort(lengths)[::-1].astype(np.int32)
    states = random.standard_normal((int(lengths.sum()), spec.hidden), np.float32).astype(np.float16)
    weights = _weights(spec, random)
    layers: dict[str, Layer] = {}
    left_out: dict[str, str] = {}
    for name in task["systems"]:
        layer = _layer(name, spec, weights, task["threads"])
        if isinstance(layer, str):
            left_out[name] = layer
        else:
            layers[name] = layer
    found: dict[str, Any] = {name: {"seconds": [], "cpu": []} for name in layers}
    results: dict[str, Array] = {}
    for turn in range(task["rounds"] + 1):
        for name, layer in layers.items():
            time.sleep(_PAUSE)
            started, cpu = time.perf_counter(), time.process_time()
            results[name] = layer(states, lengths)
            if turn:  # the first round warms up
                found[name]["seconds"].append(time.perf_counter() - started)
                found[name]["cpu"].append(time.process_time() - cpu)
    for name, result in results.items():
        first = results[next(iter(results))].astype(np.float32)
        found[name]["apart"] = float(np.abs(result.astype(np.float32) - first).mean())
    return {"tokens": len(states), "systems": found, "left_out": left_out}


def _layer(name: str, spec: LayerSpec, weights: dict[str, Array], threads: int) -> Layer | str:
    """A system's layer, or the reason why it cannot run here."""
    try:
        return _SYSTEMS[name](name, spec, weights, threads)
    except CapabilityError as error:
        return str(error)


def _weights(spec: LayerSpec, random: np.random.Generator) -> dict[str, Array]:
    """Random weights with the magnitude of trained ones: a product has about the deviation of its input."""
    weights: dict[str, Array] = {}
    for tensor in spec.tensors():
        value = np.zeros(tensor.shape, np.float32)
        if tensor.name.endswith("norm1.weight") or tensor.name.endswith("norm2.weight"):
            value += 1
        elif tensor.name.endswith(".scale"):
            value += 1 / (40 * spec.matrices()[tensor.name.removesuffix(".scale")][0] ** 0.5)
        elif tensor.dtype == "int8":
            value = np.clip(np.rint(40 * random.standard_normal(tensor.shape, np.float32)), -127, 127)
        weights[tensor.name] = value.astype(tensor.dtype)
    return weights


def _runtime(name: str, spec: LayerSpec, weights: dict[str, Array], threads: int) -> Layer:
    kernel = load_runtime(name).layer_kernel(spec, threads=threads, hidden_dtype="float16")
    return lambda states, lengths: kernel.run(states, lengths, weights)


def _plain(name: str, spec: LayerSpec, weights: dict[str, Array], threads: int) -> Layer:
    from edge.apps.bench.plain_onnx import graph, session

    plain = session(graph(spec, [weights]), threads)

    def run(batch: Array, lengths: npt.NDArray[np.int32]) -> Array:
        found: Array = plain.run(None, {"hidden": batch, "lengths": lengths})[0]
        return found

    return _padded(run)


def _transformers(name: str, spec: LayerSpec, weights: dict[str, Array], threads: int) -> Layer:
    try:
        import torch
        from transformers import BertConfig
        from transformers.models.bert.modeling_bert import BertLayer
    except ImportError as error:
        raise CapabilityError(f'transformers needs {error.name}: pip install "edge-rag[bench]"') from error
    torch.set_num_threads(threads)
    config = BertConfig(
        hidden_size=spec.hidden, num_attention_heads=spec.heads, intermediate_size=spec.ffn,
        layer_norm_eps=spec.norm_eps, attn_implementation="sdpa",
    )  # fmt: skip
    layer = BertLayer(config).eval()
    parts = {
        "out": layer.attention.output.dense, "up": layer.intermediate.dense, "down": layer.output.dense,
    }  # fmt: skip
    own = layer.attention.self
    full = {m: weights[f"{m}.weight"].astype(np.float32) * weights[f"{m}.scale"] for m in ("qkv", *parts)}
    matrices = [*zip((own.query, own.key, own.value), np.split(full["qkv"], 3, axis=1), strict=True)]
    matrices += [(part, full[matrix]) for matrix, part in parts.items()]
    with torch.no_grad():
        for linear, matrix in matrices:
            linear.weight.copy_(torch.from_numpy(np.ascontiguousarray(matrix.T)))
            linear.bias.zero_()

    def run(batch: Array, lengths: npt.NDArray[np.int32]) -> Array:
        real = torch.arange(batch.shape[1])[None] < torch.from_numpy(lengths)[:, None]
        with torch.inference_mode():
            output = layer(torch.from_numpy(batch), real[:, None, None, :])
        first = output[0] if isinstance(output, tuple) else output
        array: Array = first.numpy()
        return array

    return _padded(run)


def _padded(run: Callable[[Array, npt.NDArray[np.int32]], Array]) -> Layer:
    """Turns a layer for padded batches into one for packed sequences."""

    def layer(states: Array, lengths: npt.NDArray[np.int32]) -> Array:
        result, start = np.empty(states.shape, np.float32), 0
        for first in range(0, len(lengths), _BATCH):
            part = lengths[first : first + _BATCH]
            stop = start + int(part.sum())
            batch = np.zeros((len(part), int(part.max()), states.shape[1]), np.float32)
            real = np.arange(batch.shape[1]) < part[:, None]
            batch[real] = states[start:stop]
            result[start:stop] = run(batch, part)[real]
            start = stop
        return result

    return layer


_SYSTEMS: dict[str, Callable[[str, LayerSpec, dict[str, Array], int], Layer]] = {
    "native": _runtime, "onnx": _runtime, "onnxruntime": _plain, "transformers": _transformers,
}  # fmt: skip

if __name__ == "__main__":
    serve(work)
