"""`RagSchema`: describes a retrieval pipeline and its models as far as its cost is concerned, not its quality."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

from edge.errors import InputError


@dataclass(frozen=True, slots=True)
class Model:
    """The size of a transformer. Stages with the same model name share its weights on a shared device.

    Attributes:
        params: number of weights, of `weight_nbytes` bytes each.
        layers, hidden: number of layers, and width of the hidden states.
        kv_nbytes: bytes of one token's KV states; 0 for encoders.
    """

    name: str
    params: float
    layers: int
    hidden: int
    kv_nbytes: int = 0
    weight_nbytes: float = 2.0

    @property
    def nbytes(self) -> float:
        """Bytes of all weights."""
        return self.params * self.weight_nbytes


MODELS: Mapping[str, Model] = {
    "encoder-120m": Model("encoder-120m", 120e6, 12, 768),
    "llama-1b": Model("llama-1b", 1.24e9, 16, 2048, 32768),
    "llama-8b": Model("llama-8b", 8.0e9, 32, 4096, 131072),
    "llama-70b": Model("llama-70b", 70e9, 80, 8192, 327680),
    "llama-405b": Model("llama-405b", 405e9, 126, 16384, 516096),
}
"""Llama 3 with 16 bits per weight: layers, hidden size, and KV states of 8 heads."""

Kind = Literal["encode", "rerank", "prefill", "decode", "retrieve"]


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of a pipeline, with a unique name.

    Attributes:
        tokens: tokens of one call: those read by an encoder, a reranker or a prefill, or written by a decoder.
        context: for decoders: number of tokens whose KV states are held when the last token is written.
        queries, nbytes, database: for retrieval: query vectors of one call, bytes scanned for each, and bytes held.
        calls: mean number of calls of one request.
        before: whether the stage is finished before the answer's first token.
        looping: calls of one request that the decoder starts while it writes the answer.
    """

    name: str
    kind: Kind
    model: Model | None = None
    tokens: int = 0
    context: int = 0
    queries: int = 1
    nbytes: float = 0.0
    database: float = 0.0
    calls: float = 1.0
    before: bool = True
    looping: float = 0.0


@dataclass(frozen=True, slots=True)
class RagSchema:
    """A retrieval pipeline (RAGSchema: Jiang's thesis, table 3.1), with additions for our own pipelines.

    Attributes:
        llm: the model that writes the answer, with `prefix_tokens` of prompt and `decode_tokens` of answer (0: a draft
            is the answer).
        vectors: vectors in the database, of `vector_nbytes` each. A query scans the share `scanned` of them.
        queries_per_retrieval: query vectors of one retrieval.
        retrieval_frequency: retrievals of one request. `rounds` of them come before the answer, and the others while it
            is written. If `overlapped`, the decoder does not wait for them.
        encoder, encoder_tokens: the model that turns a request's documents, or its query, into vectors; None to leave
            its cost out.
        rewriter: the model that reads `rewrite_prefix` and writes `rewrite_decode` tokens before each of `rewrites`
            retrievals.
        reranker: the model that judges `candidates` passages of `passage_tokens` tokens after each retrieval.
        drafts: texts that the LLM writes before the answer. For each it reads `draft_prefix` and writes `draft_decode`
            tokens.
    """

    name: str
    llm: Model
    prefix_tokens: int = 512
    decode_tokens: int = 256
    vectors: float = 64e9
    vector_nbytes: float = 96.0
    scanned: float = 0.001
    queries_per_retrieval: int = 1
    retrieval_frequency: float = 1.0
    rounds: int = 1
    overlapped: bool = False
    encoder: Model | None = None
    encoder_tokens: int = 0
    rewriter: Model | None = None
    rewrite_prefix: int = 32
    rewrite_decode: int = 32
    rewrites: int = 1
    reranker: Model | None = None
    candidates: int = 16
    passage_tokens: int = 100
    drafts: int = 0
    draft_prefix: int = 512
    draft_decode: int = 96

    def __post_init__(self) -> None:
        for name in ("prefix_tokens", "vectors", "vector_nbytes", "queries_per_retrieval", "rounds"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} of a pipeline is above 0, not {getattr(self, name)!r}")
        for name in ("decode_tokens", "encoder_tokens", "rewrites", "drafts", "rewrite_decode", "draft_decode"):
            if getattr(self, name) < 0:
                raise InputError(f"{name} of a pipeline is at least 0, not {getattr(self, name)!r}")
        if not 0 < self.scanned <= 1:
            raise InputError(f"the scanned share lies above 0 and is at most 1, not {self.scanned!r}")
        if self.retrieval_frequency < self.rounds:
            raise InputError(f"{self.rounds} rounds before the answer need a retrieval frequency of at least that many")

    @property
    def database_nbytes(self) -> float:
        """Bytes of all vectors."""
        return self.vectors * self.vector_nbytes

    @property
    def looping(self) -> float:
        """Number of retrievals while the answer is written."""
        return self.retrieval_frequency - self.rounds

    def stages(self) -> list[Stage]:
        """The stages in order."""
        return list(self._stages())

    def _stages(self) -> Iterator[Stage]:
        if self.encoder is not None and self.encoder_tokens:
            yield Stage("encode", "encode", self.encoder, self.encoder_tokens)
        if self.rewriter is not None and self.rewrites:
            yield Stage("rewrite-prefill", "prefill", self.rewriter, self.rewrite_prefix, calls=self.rewrites)
            context = self.rewrite_prefix + self.rewrite_decode
            yield Stage("rewrite-decode", "decode", self.rewriter, self.rewrite_decode, context, calls=self.rewrites)
        yield Stage(
            "retrieve", "retrieve", queries=self.queries_per_retrieval, database=self.database_nbytes,
            nbytes=self.database_nbytes * self.scanned, calls=self.rounds, looping=self.looping,
        )  # fmt: skip
        if self.reranker is not None:
            tokens = self.candidates * self.passage_tokens
            yield Stage("rerank", "rerank", self.reranker, tokens, calls=self.rounds, looping=self.looping)
        if self.drafts:
            yield Stage("draft-prefill", "prefill", self.llm, self.draft_prefix, calls=self.drafts)
            context = self.draft_prefix + self.draft_decode
            yield Stage("draft-decode", "decode", self.llm, self.draft_decode, context, calls=self.drafts)
        if self.decode_tokens:
            yield Stage("prefill", "prefill", self.llm, self.prefix_tokens, looping=self.looping)
            context = self.prefix_tokens + self.decode_tokens
            yield Stage("decode", "decode", self.llm, self.decode_tokens, context, before=False)

    def to_json(self) -> dict[str, Any]:
        """The fields as `from_json` reads them."""
        return asdict(self)

    @classmethod
    def from_json(cls, text: str) -> RagSchema:
        """Reads a schema from one JSON object. A model is a name of `MODELS`, or an object with its fields."""
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InputError(f"the schema is not valid JSON: {error}") from None
        if not isinstance(values, dict):
            raise InputError("the schema is not a JSON object")
        known = {f.name: str(f.type) for f in fields(cls)}
        if unknown := sorted(set(values) - set(known)):
            raise InputError(f"a schema has no field {unknown[0]!r}; its fields are {', '.join(known)}")
        if missing := [name for name in ("name", "llm") if name not in values]:
            raise InputError(f"the schema lacks the field {missing[0]!r}")
        return cls(**{name: _value(name, known[name], value) for name, value in values.items()})


def _value(name: str, kind: str, value: Any) -> Any:
    if "Model" in kind:
        return _model(name, value) if value is not None or "None" not in kind else None
    fine = {
        "str": isinstance(value, str),
        "bool": isinstance(value, bool),
        "int": isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**53,
        "float": isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e30,
    }
    if not fine[kind]:
        raise InputError(f"{name} of the schema is {_WORDS[kind]}, not {value!r}")
    return value


_WORDS = {"str": "text", "bool": "true or false", "int": "a whole number", "float": "a number"}


def _model(name: str, value: Any) -> Model:
    if isinstance(value, str):
        if value not in MODELS:
            raise InputError(f"{name} of the schema: there is no model {value!r}; known are {', '.join(MODELS)}")
        return MODELS[value]
    if not isinstance(value, dict):
        raise InputError(f"{name} of the schema is the name of a model or an object with its sizes, not {value!r}")
    known = {f.name: str(f.type) for f in fields(Model)}
    if unknown := sorted(set(value) - set(known)):
        raise InputError(
            f"{name} of the schema: a model has no field {unknown[0]!r}; its fields are {', '.join(known)}"
        )
    given = {"name": name, "layers": 1, "hidden": 1} | value
    if not given.get("params"):
        raise InputError(f"{name} of the schema lacks the number of its weights (params)")
    model = Model(**{field: _value(f"{name}.{field}", known[field], given[field]) for field in given})
    if min(model.params, model.layers, model.hidden, model.weight_nbytes) <= 0 or model.kv_nbytes < 0:
        raise InputError(f"{name} of the schema: the sizes of a model are above 0")
    return model


def _published() -> dict[str, RagSchema]:
    small, large = MODELS["llama-8b"], MODELS["llama-70b"]
    encoder = MODELS["encoder-120m"]
    rewriter = replace(small, name="rewriter-8b")
    return {
        "case-1": RagSchema("case-1", small),
        "case-1-70b": RagSchema("case-1-70b", large),
        "case-2": RagSchema(
            "case-2", large, vectors=1e4, vector_nbytes=768 * 2, scanned=1.0, encoder=encoder, encoder_tokens=10**6
        ),
        "case-3": RagSchema("case-3", large, retrieval_frequency=4),
        "case-4": RagSchema("case-4", large, rewriter=rewriter, reranker=encoder),
    }


PUBLISHED: Mapping[str, RagSchema] = _published()
"""The workloads of Jiang's thesis (table 3.3): hyperscale retrieval, long context, iterative retrieval, and query
rewriting with reranking. The lengths are those of its section 3.4."""
