"""`layer-speed`: measures the time per token in one encoder layer, with this program's runtimes, a plain
onnxruntime session, and transformers, on the same weights and tokens."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from making.synth import SHAPES, model_spec

from bench.figures import Column, Figure, tabulate
from bench.options import Names, Output, Rounds, Threads, benchmark, stated
from bench.process import measure, processor
from edge.errors import CapabilityError, EdgeError
from edge.models.spec import LayerSpec
from edge.runtimes.base import load_runtime

_SYSTEMS = ("native", "onnx", "onnxruntime", "transformers")

_PAUSE = 0.02
"""Seconds between two systems, because threads of libraries keep spinning for a while after their work."""

_BATCH = 8

Array = npt.NDArray[Any]
Layer = Callable[[Array, npt.NDArray[np.int32]], Array]


@benchmark
def layer_speed(
    *,
    shapes: Annotated[Sequence[str], Names(SHAPES), "Published shapes, random weights."] = (
        "ms-marco-minilm-l6",
        "bge-reranker-v2-m3",
    ),
    systems: Annotated[Sequence[str], Names(_SYSTEMS), "The first that runs is the measure."] = _SYSTEMS,
    sequences: int = 10,
    tokens: Annotated[int, "Of a sequence, on average; lengths differ by a third."] = 190,
    threads: Threads = 2,
    rounds: Rounds = 15,
    output: Output,
) -> None:
    """Microseconds for a token in a layer, int8 (transformers: fp32), random weights."""
    reports: dict[str, dict[str, Any]] = {}
    for shape in shapes:
        task = {
            "name": shape, "shape": shape, "systems": systems, "sequences": sequences, "tokens": tokens,
            "threads": threads, "rounds": rounds, "watch": 1.0,
        }  # fmt: skip
        reports[shape] = measure(work, task, threads=threads)
        if not reports[shape]["systems"]:
            raise EdgeError(f"none of {', '.join(systems)} runs {shape} here")
    result = {"processor": processor(), "threads": threads, "rounds": rounds, "shapes": reports}
    notes = {f"{name} was left out: {why}" for report in reports.values() for name, why in report["left_out"].items()}
    shown = "\n".join([stated(result | {"sequences": sequences}), *sorted(notes)])
    output.put(result, figures(reports), shown, sorted(notes))


def figures(reports: dict[str, dict[str, Any]]) -> Iterator[Figure]:
    for shape, report in reports.items():
        columns = {"seconds": Column("a token and layer", "s", 1 / report["tokens"])}
        yield from tabulate(report["systems"], columns, shape)


def work(task: dict[str, Any]) -> dict[str, Any]:
    spec = model_spec(task["shape"]).layer
    random = np.random.default_rng(0)
    spread = task["tokens"] // 3
    lengths = random.integers(task["tokens"] - spread, task["tokens"] + spread + 1, task["sequences"])
    lengths = np.sort(lengths)[::-1].astype(np.int32)
    states = random.standard_normal((int(lengths.sum()), spec.hidden), np.float32).astype(np.float16)
    weights = layer_weights(spec, random)
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
        return {"onnxruntime": _plain, "transformers": _transformers}.get(name, _runtime)(name, spec, weights, threads)
    except CapabilityError as error:
        return str(error)


def layer_weights(spec: LayerSpec, random: np.random.Generator) -> dict[str, Array]:
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
    from bench.plain_onnx import graph, session

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
