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
from edge.runtimes.onnx_layer import load_onnxruntime
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
    from onnx import TensorProto, helper, numpy_helper

    nodes: list[Any] = []
    constants: list[Any] = []

    def constant(name: str, value: npt.NDArray[Any]) -> str:
        constants.append(numpy_helper.from_array(value, name))
        return name

    def op(kind: str, inputs: list[str], output: str, domain: str = "", **attributes: Any) -> str:
        nodes.append(helper.make_node(kind, inputs, [output], domain=domain, **attributes))
        return output

    def linear(x: str, name: str, weights: dict[str, npt.NDArray[Any]], matrix: str) -> str:
        out = f"{name}.{matrix}"
        weight = constant(f"{out}.weight", weights[f"{matrix}.weight"])
        bias = constant(f"{out}.bias", weights[f"{matrix}.bias"])
        if spec.precision != "int8":
            return op("Add", [op("MatMul", [x, weight], f"{out}.product"), bias], f"{out}.result")
        scale = constant(f"{out}.scale", weights[f"{matrix}.scale"])
        peak = op("ReduceMax", [op("Abs", [x], f"{out}.abs"), "last"], f"{out}.row", keepdims=1)
        peak = op("Max", [peak, "tiny"], f"{out}.peak")
        quantized = op("QuantizeLinear", [op("Div", [x, peak], f"{out}.unit"), "step", "zero"], f"{out}.quantized")
        product = op("MatMulInteger", [quantized, weight, "zero"], f"{out}.integer")
        scaled = op("Mul", [op("Cast", [product], f"{out}.float", to=TensorProto.FLOAT), "step"], f"{out}.stepped")
        rows = op("Mul", [op("Mul", [scaled, peak], f"{out}.rows"), scale], f"{out}.columns")
        return op("Add", [rows, bias], f"{out}.result")

    constant("last", np.array([-1], np.int64))
    constant("tiny", np.float32(1e-30) * np.ones((), np.float32))
    constant("step", np.array(1 / 127, np.float32))
    constant("zero", np.array(128, np.uint8))
    width = spec.heads * spec.head_size
    constant("thirds", np.array([width] * 3, np.int64))
    x = "hidden"
    for i, weights in enumerate(layers):
        name = f"l{i}"
        qkv = linear(x, name, weights, "qkv")
        parts = [f"{name}.{part}" for part in "qkv"]
        nodes.append(helper.make_node("Split", [qkv, "thirds"], parts, axis=-1))
        fused = [*parts, "", "lengths"]
        context = op("MultiHeadAttention", fused, f"{name}.context", "com.microsoft", num_heads=spec.heads)
        x = op("Add", [x, linear(context, name, weights, "out")], f"{name}.sum1")
        x = _norm(op, constant, x, f"{name}.norm1", weights, "norm1", spec.norm_eps)
        inner = op("Gelu", [linear(x, name, weights, "up")], f"{name}.gelu")
        x = op("Add", [x, linear(inner, name, weights, "down")], f"{name}.sum2")
        x = _norm(op, constant, x, f"{name}.norm2", weights, "norm2", spec.norm_eps)
    inputs = [
        helper.make_tensor_value_info("hidden", TensorProto.FLOAT, ["batch", "length", spec.hidden]),
        helper.make_tensor_value_info("lengths", TensorProto.INT32, ["batch"]),
    ]
    outputs = [helper.make_tensor_value_info(x, TensorProto.FLOAT, ["batch", "length", spec.hidden])]
    made = helper.make_graph(nodes, "encoder", inputs, outputs, constants)
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    data: bytes = helper.make_model(made, opset_imports=opsets, ir_version=9).SerializeToString()
    return data


def _norm(op: Any, constant: Any, x: str, name: str, weights: dict[str, npt.NDArray[Any]], key: str, eps: float) -> str:
    weight = constant(f"{name}.weight", weights[f"{key}.weight"])
    bias = constant(f"{name}.bias", weights[f"{key}.bias"])
    result: str = op("LayerNormalization", [x, weight, bias], name, axis=-1, epsilon=eps)
    return result
