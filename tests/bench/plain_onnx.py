"""A fair baseline: a reranker built with onnxruntime alone. All layers form one graph with constant weights, held in
memory. Batches of padded pairs run to full depth one after another, with default session options.

The arithmetic is that of this program's kernels (int8 weights, activations quantized per token), so that only the
scheduling differs.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from making.token_rows import token_rows

from edge.errors import CapabilityError
from edge.models.packed import EMBED, HEAD, PackedModel
from edge.models.spec import LayerSpec, ModelSpec
from edge.models.tokenizer import PairTokenizer
from edge.runtimes.onnx_layer import CONTRIB, Graph, element_type, load_onnxruntime
from edge.runtimes.scoring import logits, sigmoid

_BATCH = 8


class PlainReranker:
    """Scores pairs with an encoder whose weights are all in memory."""

    def __init__(self, pack: Path, *, threads: int) -> None:
        with PackedModel.open(pack, "reranker") as model:
            self.spec: ModelSpec = model.spec
            if self.spec.layer.causal:
                raise CapabilityError("the plain onnxruntime loop is written for encoders")
            self.tokenizer = PairTokenizer(model.tokenizer_path, self.spec)
            self._head = model.load(HEAD)
            self._small = model.load(EMBED)
            self._positions = model.position_rows(min(512, self.spec.max_tokens))
            self._table = token_rows(model, np.arange(self.spec.vocab))
            layers = graph(self.spec.layer, (model.load(block) for block in model.layer_blocks))
        self._session = session(layers, threads)

    def score(self, query: str, docs: list[str], max_tokens: int) -> list[float]:
        """The relevance probabilities of all documents, in their order."""
        batch = self.tokenizer.encode_pairs(query, docs, max_tokens)
        order = np.argsort(-batch.lengths, kind="stable")
        starts = batch.starts
        scores = np.empty(len(docs))
        for low in range(0, len(order), _BATCH):
            part = order[low : low + _BATCH]
            hidden = np.zeros((len(part), int(batch.lengths[part].max()), self.spec.layer.hidden), np.float32)
            for row, i in enumerate(part.tolist()):
                tokens = slice(starts[i], starts[i + 1])
                types = None if batch.types is None else batch.types[tokens]
                hidden[row, : batch.lengths[i]] = self._embed(batch.tokens[tokens], types)
            feed = {"hidden": hidden, "lengths": batch.lengths[part].astype(np.int32)}
            final = self._session.run(None, feed)[0]
            scores[part] = sigmoid(logits(self.spec, self._head, final[:, 0]))
        return [float(score) for score in scores]

    def _embed(self, ids: npt.NDArray[np.int32], types: npt.NDArray[np.uint8] | None) -> npt.NDArray[np.float32]:
        x = self._table[ids] + self._positions[: len(ids)]
        if "types" in self._small:
            x = x + self._small["types"][0 if types is None else types]
        x = x - x.mean(axis=1, keepdims=True)
        x = x / np.sqrt(np.mean(np.square(x), axis=1, keepdims=True) + np.float32(self.spec.layer.norm_eps))
        normed: npt.NDArray[np.float32] = x * self._small["norm.weight"] + self._small["norm.bias"]
        return normed


def session(serialized: bytes, threads: int) -> Any:
    """A session of onnxruntime with default options, except for the number of threads."""
    onnxruntime = load_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(serialized, options, providers=["CPUExecutionProvider"])


def graph(spec: LayerSpec, layers: Iterable[dict[str, npt.NDArray[Any]]]) -> bytes:
    """A serialized ONNX graph of all layers of an encoder, with constant weights."""
    from onnx import numpy_helper

    g = Graph("encoder")

    def held(values: npt.NDArray[Any]) -> str:
        name = f"weights_{len(g._constants)}"
        g._constants[name] = numpy_helper.from_array(values, name)
        return name

    def linear(x: str, weights: dict[str, npt.NDArray[Any]], matrix: str) -> str:
        weight, bias = (held(weights[f"{matrix}.{part}"]) for part in ("weight", "bias"))
        if spec.precision != "int8":
            return g.op("Add", g.op("MatMul", x, weight), bias)
        peak = g.op("Max", g.op("ReduceMax", g.op("Abs", x), last, keepdims=1), tiny)
        quantized = g.op("QuantizeLinear", g.op("Div", x, peak), step, zero)
        product = g.op("MatMulInteger", quantized, weight, zero)
        scaled = g.op("Mul", g.op("Cast", product, to=element_type("float32")), step)
        return g.op("Add", g.op("Mul", g.op("Mul", scaled, peak), held(weights[f"{matrix}.scale"])), bias)

    def norm(x: str, weights: dict[str, npt.NDArray[Any]], key: str) -> str:
        weight, bias = (held(weights[f"{key}.{part}"]) for part in ("weight", "bias"))
        return g.op("LayerNormalization", x, weight, bias, axis=-1, epsilon=spec.norm_eps)

    last, tiny, step = g.constant([-1], "int64"), g.constant(1e-30, "float32"), g.constant(1 / 127, "float32")
    zero, thirds = g.constant(128, "uint8"), g.constant([spec.heads * spec.head_size] * 3, "int64")
    x = g.input("hidden", "float32", ("batch", "length", spec.hidden))
    lengths = g.input("lengths", "int32", ("batch",))
    for weights in layers:
        parts = g.op_many("Split", 3, linear(x, weights, "qkv"), thirds, axis=-1)
        context = g.op("MultiHeadAttention", *parts, "", lengths, domain=CONTRIB, num_heads=spec.heads)
        x = norm(g.op("Add", x, linear(context, weights, "out")), weights, "norm1")
        inner = g.op("Gelu", linear(x, weights, "up"))
        x = norm(g.op("Add", x, linear(inner, weights, "down")), weights, "norm2")
    g.output(x, "advanced", "float32", ("batch", "length", spec.hidden))
    return g.serialize()
