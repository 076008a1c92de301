"""Computes a reranker's score or an embedder's vector from hidden states, in numpy since the matrices are small."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.errors import ModelError
from edge.models.spec import ModelSpec
from edge.runtimes.base import StatesElsewhere
from edge.runtimes.native.sequences import compiled, mean_rows

Vectors = npt.NDArray[np.float32]


def pool(spec: ModelSpec, states: npt.NDArray[Any] | StatesElsewhere, lengths: npt.NDArray[np.int32]) -> Any:
    """The vector that the head reads from each sequence of a chunk.

    Args:
        states: [tokens, hidden], the sequences packed one after the other.
        lengths: number of tokens of each sequence [batch].

    Returns:
        [batch, hidden] fp32: the first token's state, the last token's state, or the mean over all tokens. For states
        on a device, an object that `np.asarray` turns into this array.
    """
    token = spec.head.token
    if isinstance(states, StatesElsewhere):
        return states.read(token, lengths)
    ends = np.cumsum(lengths)
    if token == "first":
        return np.asarray(states[ends - lengths], np.float32)
    if token == "last":
        return np.asarray(states[ends - 1], np.float32)
    return _means(states, lengths)


def lens_input(spec: ModelSpec, states: npt.NDArray[Any] | StatesElsewhere, lengths: npt.NDArray[np.int32]) -> Any:
    """The vector that a lens reads from each sequence of a chunk. Arguments and result are those of `pool`.

    It is the last token's state if the head reads the last token, otherwise the mean over all tokens. In the first
    layers of an encoder the first token has hardly attended to the others.
    """
    if spec.head.token == "last":
        return pool(spec, states, lengths)
    return states.read("all", lengths) if isinstance(states, StatesElsewhere) else _means(states, lengths)


def logits(spec: ModelSpec, tensors: Mapping[str, npt.NDArray[Any]], vectors: Vectors) -> npt.NDArray[np.float64]:
    """A reranker's raw scores [n] of pooled vectors [n, hidden]. Their `sigmoid` is the probability of relevance.

    The score of a `yes-no` head is the difference of the two tokens' logits. Its sigmoid is the two-way softmax.

    Raises:
        ModelError: a score is not finite, so the weights hold NaN or infinity.
    """
    if spec.head.kind == "classifier":
        # Row by row: the result of a product of matrices depends on the number of rows, in the last bit.
        dense = np.tanh(vectors[:, None] @ tensors["dense.weight"] + tensors["dense.bias"])
        scores = (dense @ tensors["out.weight"] + tensors["out.bias"])[:, 0, 0]
    elif spec.head.kind == "yes-no":
        rows = tensors["rows"]
        scores = (final_norm(spec, tensors, vectors)[:, None] @ (rows[1] - rows[0]))[:, 0]
    else:
        raise ModelError(f"a model with a {spec.head.kind!r} head embeds texts; it does not score pairs")
    if not np.isfinite(scores).all():
        raise ModelError("the model's scores are not finite: its weights hold NaN or infinite values")
    return np.asarray(scores, np.float64)


def embeddings(spec: ModelSpec, tensors: Mapping[str, npt.NDArray[Any]], vectors: Vectors) -> Vectors:
    """An embedder's output [n, hidden] from pooled vectors, with the final norm (decoders) and the scaling to unit
    length, if the model has them.

    Raises:
        ModelError: a value is not finite, so the weights hold NaN or infinity.
    """
    output = final_norm(spec, tensors, vectors)
    if spec.head.normalize:
        output = output / np.maximum(np.linalg.norm(output, axis=1, keepdims=True), 1e-12)
    if not np.isfinite(output).all():
        raise ModelError("the model's embeddings are not finite: its weights hold NaN or infinite values")
    return np.ascontiguousarray(output, dtype=np.float32)


def final_norm(spec: ModelSpec, tensors: Mapping[str, npt.NDArray[Any]], vectors: Vectors) -> Vectors:
    """The RMS norm that decoders have after the last layer. Vectors of other models are returned unchanged."""
    if not spec.layer.norm_first:
        return vectors
    mean_square = np.mean(np.square(vectors), axis=1, keepdims=True)
    normed: Vectors = vectors / np.sqrt(mean_square + np.float32(spec.layer.norm_eps)) * tensors["norm.weight"]
    return normed


def _means(states: npt.NDArray[Any], lengths: npt.NDArray[np.int32]) -> Vectors:
    if compiled() and states.flags.c_contiguous:
        return mean_rows(states, lengths)
    parts = np.split(states, np.cumsum(lengths)[:-1])
    stacked: Vectors = np.stack([part.mean(axis=0, dtype=np.float32) for part in parts])
    return stacked


def sigmoid(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Logistic function without overflow."""
    return np.where(x >= 0, 1 / (1 + np.exp(-np.abs(x))), np.exp(-np.abs(x)) / (1 + np.exp(-np.abs(x))))
