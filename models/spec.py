"""The description of a transformer as data: shapes, norms, positions, and the tensors of a packed layer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np

from edge.errors import ModelError

Precision = Literal["fp32", "fp16", "int8"]
Activation = Literal["gelu", "gelu_tanh", "relu", "silu"]
Norm = Literal["layer", "rms"]
Architecture = Literal[
    "bert",
    "deberta",
    "distilbert",
    "electra",
    "gemma3",
    "gte",
    "jina-bert",
    "modernbert",
    "mpnet",
    "nomic-bert",
    "xlm-roberta",
    "qwen2",
    "qwen3",
]
HeadKind = Literal["classifier", "yes-no", "mean", "first-token", "last-token"]

HeadActivation = Literal["tanh", "gelu", "gelu_tanh", "relu", "silu"]

MATRIX_DTYPE: dict[Precision, str] = {"fp32": "float32", "fp16": "float16", "int8": "int8"}

_OR_NONE = frozenset(("positions", "position_offset", "token_types", "window", "buckets", "spans", "projection"))
"""The whole numbers of a description that may be 0."""

_MOST_LAYERS = 1_000
_MOST = 1 << 24
"""Upper bounds on the numbers of a description. A pack may have come with another person's folder, and be anything."""


def _check(part: object) -> None:
    """Raises ValueError if a field of a description has another type, or a value that no model has."""
    for name, kind in get_type_hints(type(part)).items():
        value = getattr(part, name)
        if get_origin(kind) is Literal:
            right = isinstance(value, str) and value in get_args(kind)
        elif kind is int:
            least = int(name not in _OR_NONE)
            right = type(value) is int and least <= value <= (_MOST_LAYERS if name == "layers" else _MOST)
        elif kind in (float, float | None):
            right = (value is None and kind is not float) or (type(value) in (int, float) and 0 <= value < math.inf)
        elif kind == tuple[int, ...]:
            right = isinstance(value, tuple) and all(
                type(number) is int and 0 <= number < _MOST_LAYERS for number in value
            )
        else:
            right = isinstance(value, kind)
        if not right:
            raise ValueError(f"{name} is {str(value)[:40]!r}")
    if not isinstance(part, LayerSpec):
        return
    if part.buckets and (part.buckets % 4 or part.buckets >= 4 * part.farthest or part.causal or part.window):
        raise ValueError(f"{part.buckets} buckets of distances in such a layer")
    if part.alibi and (part.causal or part.window):
        raise ValueError("linear biases of distances in such a layer")
    odd = part.spans % 2 or part.spans >= 2 * part.farthest - 2
    if part.spans and (odd or part.causal or part.window or part.heads != part.kv_heads):
        raise ValueError(f"{part.spans} spans of distances in such a layer")
    if part.heads % part.kv_heads or part.head_size % 2 > (part.rope_theta is None) or not part.rope_factor:
        raise ValueError(f"{part.heads} heads of {part.head_size} with {part.kv_heads} key-value heads")


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor of a packed block: numpy dtype name and shape. Matrices are stored input-major, so that y = x @ w."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "nbytes", math.prod(self.shape) * np.dtype(self.dtype).itemsize)


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One transformer layer.

    Attributes:
        hidden: width of the residual stream.
        heads, kv_heads, head_size: query heads, key-value heads (grouped-query attention), width of a head.
        ffn: inner width of the feed-forward part.
        activation: activation function of the feed-forward part.
        gated: the feed-forward part has two input projections, `act(gate) * up` (SwiGLU), instead of one.
        norm: layer norm or RMS norm.
        norm_first: the norm comes before its sub-layer (decoders), not after it (BERT).
        norm_eps: constant added to the variance.
        rope_theta: base of the rotary position embedding (halves rotated, as in Hugging Face), or None.
        causal: a token attends only to itself and the tokens before it.
        qk_norm: RMS norm over each query and key head before rotation (Qwen3).
        bias: the four matrices have bias vectors.
        precision: stored precision of the matrices. Norms, biases and scales are always fp32.
        window: tokens on each side that a token of a local layer attends to; 0 if there are no local layers. With it
            the layers differ: tensor `kind` says whether a layer is local, and whether it norms its input (1 or 0).
        local_theta: base of the rotary position embedding of local layers.
        buckets: rows of tensor `distances`, [buckets, heads], whose values are added to the attention scores by the
            distance of the key from the query (see `edge.runtimes.base.distance_bias`); 0 if there is none.
        spans: half the rows of the tensors `distance_keys` and `distance_queries`, [2 * spans, heads * head_size]. The
            products of queries and keys with the rows of their distances are added to the attention scores, and these
            are divided by the root of three times the head's width (DeBERTa); 0 if there are none.
        farthest: the distance from which on all distances have one bucket or row.
        alibi: the distance of two tokens, times a slope of the head, is subtracted from their attention score (ALiBi).
        rope_factor: all rotary angles are divided by it.
        post_norms: what attention and the feed-forward part give is normed as well, before it is added (`norm3`,
            `norm4`; Gemma 3).
    """

    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    ffn: int
    activation: Activation
    gated: bool
    norm: Norm
    norm_first: bool
    norm_eps: float
    rope_theta: float | None
    causal: bool
    qk_norm: bool
    bias: bool
    precision: Precision
    window: int = 0
    local_theta: float | None = None
    buckets: int = 0
    spans: int = 0
    farthest: int = 128
    post_norms: bool = False
    alibi: bool = False
    rope_factor: float = 1.0

    @property
    def by_distance(self) -> bool:
        """Whether something is added to the attention scores for the distance of two tokens."""
        return bool(self.buckets or self.spans or self.alibi)

    @property
    def scale(self) -> float:
        """The factor of the products of queries and keys."""
        return 1 / math.sqrt(self.head_size * (3 if self.spans else 1))

    def kind(self, weights: Mapping[str, Any]) -> tuple[bool, bool]:
        """Whether a layer with these weights is local, and whether it norms its input."""
        if not self.window:
            return False, True
        local, normed = weights["kind"].tolist()
        return bool(local), bool(normed)

    def matrices(self) -> dict[str, tuple[int, int]]:
        """Names and [in, out] shapes of the four matrices. `qkv` and gated `up` (gate and up) lie side by side."""
        return {
            "qkv": (self.hidden, (self.heads + 2 * self.kv_heads) * self.head_size),
            "out": (self.heads * self.head_size, self.hidden),
            "up": (self.hidden, self.ffn * (2 if self.gated else 1)),
            "down": (self.ffn, self.hidden),
        }

    def tensors(self) -> tuple[TensorSpec, ...]:
        """The tensors of one packed layer in stored order: fp32 vectors first. An int8 matrix `m` has `m.weight`
        (symmetric, -127..127) and `m.scale` [out]."""
        vectors: list[TensorSpec] = [TensorSpec("kind", (2,), "float32")] if self.window else []
        for norm in ("norm1", "norm2", *(("norm3", "norm4") if self.post_norms else ())):
            vectors.append(TensorSpec(f"{norm}.weight", (self.hidden,), "float32"))
            if self.norm == "layer":
                vectors.append(TensorSpec(f"{norm}.bias", (self.hidden,), "float32"))
        if self.qk_norm:
            vectors.append(TensorSpec("q_norm.weight", (self.head_size,), "float32"))
            vectors.append(TensorSpec("k_norm.weight", (self.head_size,), "float32"))
        if self.buckets:
            vectors.append(TensorSpec("distances", (self.buckets, self.heads), "float32"))
        if self.spans:
            shape = (2 * self.spans, self.heads * self.head_size)
            dtype = "float32" if self.precision == "fp32" else "float16"
            vectors += [TensorSpec(f"distance_{name}", shape, dtype) for name in ("keys", "queries")]
        matrices: list[TensorSpec] = []
        for name, (rows, columns) in self.matrices().items():
            if self.bias:
                vectors.append(TensorSpec(f"{name}.bias", (columns,), "float32"))
            if self.precision == "int8":
                vectors.append(TensorSpec(f"{name}.scale", (columns,), "float32"))
            matrices.append(TensorSpec(f"{name}.weight", (rows, columns), MATRIX_DTYPE[self.precision]))
        return (*vectors, *matrices)

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors())


@dataclass(frozen=True, slots=True)
class HeadSpec:
    """The head of a model, which turns a sequence's hidden states into a score or a vector.

    Attributes:
        kind: `classifier` (dense + activation + linear), `yes-no` (the two rows of the output
            matrix at the last token), or an embedding: `mean`, `first-token`, `last-token`.
        normalize: embeddings are scaled to unit length.
        prefix: text before the query, such as the opening of a chat template with an instruction (decoders).
        infix: text between query and document.
        suffix: text after the document.
        query_prefix: text before a query that is embedded (instruction-tuned embedders).
        document_prefix: text before a document that is embedded (most embedders have none).
        no_token, yes_token: the two tokens of the output matrix rows that `yes-no` reads.
        activation: the activation between a classifier's two projections.
        pooled: a classifier reads the first token, or the mean over all tokens.
        normed: a classifier has a layer norm without bias after the activation.
        projection: width of an embedding after its own projection (Dense modules); 0 if there is none.
        projected: the activation after that projection.
    """

    kind: HeadKind
    normalize: bool = False
    prefix: str = ""
    infix: str = ""
    suffix: str = ""
    query_prefix: str = ""
    document_prefix: str = ""
    no_token: str = ""
    yes_token: str = ""
    activation: HeadActivation = "tanh"
    pooled: Literal["first", "all"] = "first"
    normed: bool = False
    projection: int = 0
    projected: Literal["identity", "tanh"] = "identity"

    @property
    def scores(self) -> bool:
        """True for a reranker's head, False for an embedder's."""
        return self.kind in ("classifier", "yes-no")

    @property
    def token(self) -> Literal["first", "last", "all"]:
        """The token from which the head reads the hidden state."""
        if self.kind == "classifier":
            return self.pooled
        if self.kind == "first-token":
            return "first"
        return "all" if self.kind == "mean" else "last"


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A whole model. `positions` are rows of the learned table (0 with rotary ones), the first token's at
    `position_offset`; `max_tokens` include special ones; `local_layers` attend within `layer.window`."""

    architecture: Architecture
    layers: int
    layer: LayerSpec
    vocab: int
    positions: int
    position_offset: int
    token_types: int
    max_tokens: int
    head: HeadSpec
    local_layers: tuple[int, ...] = ()

    @property
    def dim(self) -> int:
        return self.head.projection or self.layer.hidden

    def embedding_tensors(self) -> tuple[TensorSpec, ...]:
        """The tensors of block `embed`, which are added to the token rows or normalize them; empty for Qwen3."""
        hidden = self.layer.hidden
        tensors: list[TensorSpec] = []
        if self.token_types:
            tensors.append(TensorSpec("types", (self.token_types, hidden), "float32"))
        if self.layer.norm == "layer":
            tensors += [TensorSpec("norm.weight", (hidden,), "float32"), TensorSpec("norm.bias", (hidden,), "float32")]
        return tuple(tensors)

    def head_tensors(self) -> tuple[TensorSpec, ...]:
        """The tensors of block `head`, fp32: `dense.*` and `out.*`, `rows` [2, hidden] = no, yes, and `norm.weight`."""
        hidden = self.layer.hidden
        tensors: list[TensorSpec] = []
        if self.layer.norm_first:
            tensors.append(TensorSpec("norm.weight", (hidden,), "float32"))
        if self.head.kind == "classifier":
            tensors += [
                TensorSpec("dense.weight", (hidden, hidden), "float32"),
                TensorSpec("dense.bias", (hidden,), "float32"),
                TensorSpec("out.weight", (hidden, 1), "float32"),
                TensorSpec("out.bias", (1,), "float32"),
            ]
            if self.head.normed:
                tensors.append(TensorSpec("dense_norm.weight", (hidden,), "float32"))
        elif self.head.kind == "yes-no":
            tensors.append(TensorSpec("rows", (2, hidden), "float32"))
        elif self.head.projection:
            tensors.append(TensorSpec("projection.weight", (hidden, self.head.projection), "float32"))
            tensors.append(TensorSpec("projection.bias", (self.head.projection,), "float32"))
        return tuple(tensors)

    def parameters(self) -> int:
        """Number of weights, as in model cards (without scales)."""
        layer = sum(math.prod(t.shape) for t in self.layer.tensors() if not t.name.endswith(".scale"))
        rest = sum(math.prod(t.shape) for t in (*self.embedding_tensors(), *self.head_tensors()))
        return self.layers * layer + (self.vocab + self.positions) * self.layer.hidden + rest

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> ModelSpec:
        """The model that `to_json` wrote. ModelError for a missing or unknown field, or impossible value."""
        try:
            values = dict(data)
            layer = LayerSpec(**values.pop("layer"))
            head = HeadSpec(**values.pop("head"))
            local = values.pop("local_layers", [])
            values["local_layers"] = tuple(local) if isinstance(local, list) else local
            spec = cls(**values, layer=layer, head=head)
            for part in (spec, layer, head):
                _check(part)
        except (TypeError, ValueError, KeyError) as error:
            known = ", ".join(f.name for f in fields(cls))
            raise ModelError(
                f"the model description is not one this version reads ({error}); it knows {known}"
            ) from None
        return spec
