"""`StoreModels`: the embedder and the reranker of a collection or a memory; and the plans of the memory that they need
with an index."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from edge.apps.documents.base import WORKER_NBYTES
from edge.apps.pool import Closable, Held, ModelPool, Result
from edge.apps.store.connections import CONNECTION_BYTES, PAGE_CACHE
from edge.apps.store.database import Database
from edge.apps.store.rebuilding import EmbedderIdentity
from edge.budget import MemoryBudget, OperationPlan, OperationStage
from edge.config import Config
from edge.errors import EdgeError
from edge.ivf.base import MAINTENANCE_NBYTES
from edge.models.packed import Kind
from edge.models.registry import DEFAULT_EMBEDDER, DEFAULT_RERANKER, resolve
from edge.resident import anonymous_resident
from edge.runtimes.base import chosen_runtime, runtime_for
from edge.runtimes.embedder import Embedder
from edge.runtimes.engine import MOST_TOKENS
from edge.runtimes.needs import EngineNeeds, engine_needs, request_nbytes
from edge.runtimes.reranker import Reranker
from edge.trace import Trace

CONNECTION = PAGE_CACHE + CONNECTION_BYTES

BATCH_NBYTES = 6 << 20
"""Of passages that are indexed: text, tokens, vectors, and SQLite's pages."""

INDEXING = (OperationStage("reading files while others are embedded", own=WORKER_NBYTES + BATCH_NBYTES + CONNECTION),)

_INDEX = 6 << 20  # Bytes of tables, of the lists in memory at a time, and of a heap of results.
_PER_CANDIDATE = 32 << 10  # Bytes of its row, the objects made of it, and its tokens, vectors and scores.
_CODECS = ("faiss",)

_VECTORS = 3  # As made, mixed with those of earlier turns, and as stored.


def model_needs(chosen: object, kind: Kind, config: Config, default: str) -> EngineNeeds | None:
    """None for a model that is open already, or cannot be opened, which is reported when it is opened."""
    if chosen is not None and not isinstance(chosen, str | Path):
        return None
    try:
        with resolve(chosen or default, kind=kind, directory=config.models_dir or None) as model:
            tokens = min(MOST_TOKENS, model.spec.max_tokens)
            runtime = runtime_for(chosen_runtime(config), model.spec.layer)
            return engine_needs(model, runtime, threads=config.threads, max_tokens=tokens)
    except EdgeError:
        return None


def retrieval(
    embedder: EngineNeeds | None, reranker: EngineNeeds | None, candidates: int, *, writes: bool = False, query: int = 0
) -> list[OperationStage]:
    """The stages of a search whose database is open. Embedder and reranker take turns if both do not fit."""
    hits = candidates * _PER_CANDIDATE
    stages = [OperationStage("a second connection to the database", kept=CONNECTION)]
    if embedder is not None:
        stages.append(OperationStage("embedding the query", own=embedder.own + query, libraries=embedder.libraries))
    held = 0 if embedder is None else embedder.held
    stages.append(OperationStage("searching the index", own=held + _INDEX + hits, libraries=_CODECS))
    if reranker is not None:
        stages.append(OperationStage("reranking", own=reranker.own + hits + query, libraries=reranker.libraries))
    if writes:
        stages.append(OperationStage("keeping the index in order", own=_INDEX + MAINTENANCE_NBYTES, libraries=_CODECS))
    return stages


def retrieval_plan(
    operation: str,
    config: Config,
    *,
    embedder: object,
    reranker: object,
    rerank: bool,
    candidates: int,
    writes: bool = False,
    extra: Sequence[OperationStage] = (),
    databases: int = 0,
    query: int = 0,
) -> OperationPlan:
    first = model_needs(embedder, "embedder", config, config.embedder or DEFAULT_EMBEDDER)
    second = model_needs(reranker, "reranker", config, config.reranker or DEFAULT_RERANKER) if rerank else None
    held = (0 if first is None else first.own) + (0 if second is None else second.held)
    more = [replace(stage, own=stage.own + held) for stage in extra]
    begin = OperationStage("opening the database", kept=databases * CONNECTION)
    return OperationPlan(operation, (begin, *retrieval(first, second, candidates, writes=writes, query=query), *more))


def holding(plan: OperationPlan, nbytes: int) -> OperationPlan:
    return OperationPlan(plan.operation, (OperationStage("holding the texts", kept=nbytes), *plan.stages))


def embedded_nbytes(embedder: object, config: Config, texts: Sequence[str]) -> tuple[int, int]:
    """The memory of the vectors of some texts, and the most that embedding them may need; 0 for a missing embedder."""
    if isinstance(embedder, str | Path | None):
        try:
            with resolve(embedder or config.embedder or DEFAULT_EMBEDDER, kind="embedder",
                         directory=config.models_dir or None) as model:  # fmt: skip
                spec, tokens = model.spec, min(MOST_TOKENS, model.spec.max_tokens)
                least = _VECTORS * 4 * spec.layer.hidden * len(texts)
                return least, least + request_nbytes(texts, tokens, spec.layer.hidden, spec.layers)
        except EdgeError:
            return 0, 0
    least = _VECTORS * 4 * int(getattr(embedder, "dim", 0)) * len(texts)
    return least, least


def opened_budget(
    operation: str,
    limit: int,
    config: Config,
    *,
    embedder: object = None,
    reranker: object = None,
    candidates: int,
    writes: bool = False,
    extra: Sequence[OperationStage] = (),
    databases: int = 1,
) -> MemoryBudget:
    held = anonymous_resident()
    if held + databases * CONNECTION <= limit:
        return MemoryBudget(limit)
    plan = retrieval_plan(
        operation, config, embedder=embedder, reranker=reranker, rerank=True, candidates=candidates, writes=writes,
        extra=extra, databases=databases,
    )  # fmt: skip
    raise plan.refusal(limit, held)


def check_texts(
    operation: str, kind: Kind, config: Config, texts: Sequence[str], max_tokens: int | None, query: str = ""
) -> None:
    plan = texts_plan(operation, kind, config, texts, max_tokens, query)
    held = anonymous_resident()
    if held + plan.nbytes > config.memory:
        raise plan.refusal(config.memory, held)


def texts_plan(
    operation: str, kind: Kind, config: Config, texts: Sequence[str], max_tokens: int | None, query: str = ""
) -> OperationPlan:
    chosen = config.reranker or DEFAULT_RERANKER if kind == "reranker" else config.embedder or DEFAULT_EMBEDDER
    with resolve(chosen, kind=kind, directory=config.models_dir or None) as model:
        spec = model.spec
        tokens = min(max_tokens or MOST_TOKENS, spec.max_tokens)
        runtime = runtime_for(chosen_runtime(config), spec.layer)
        needs = engine_needs(model, runtime, threads=config.threads, max_tokens=tokens)
        request = request_nbytes(texts, tokens, spec.layer.hidden, spec.layers, query)
    return OperationPlan(operation, (OperationStage(chosen, own=needs.own + request, libraries=needs.libraries),))


AnyEmbedder = TypeVar("AnyEmbedder", bound=Closable)
AnyReranker = TypeVar("AnyReranker", bound=Closable)


class StoreModels(ABC, Generic[AnyEmbedder, AnyReranker]):
    """Opens models on first use, in one budget. If both do not fit at once, one is closed to make room for the other.
    Thread-safe; each model runs one request at a time."""

    def __init__(
        self,
        database: Database,
        config: Config,
        budget: MemoryBudget,
        trace: Trace,
        *,
        embedder: object,
        reranker: object,
    ) -> None:
        """Models that are passed open or lent are closed by their owner."""
        self._database = database
        self._budget = budget
        self._config = config
        self._trace = trace
        self._pool = ModelPool(budget)
        self._chosen = embedder
        self._chosen_reranker = reranker
        self._embedder: Held[AnyEmbedder] = self._pool.held(
            "embedder", "", lambda: self._open(Embedder, self.named_embedder()), chosen=embedder, shared=False
        )
        self._reranker: Held[AnyReranker] = self._pool.held(
            "reranker", "", lambda: self._open(Reranker, reranker or ""), chosen=reranker, shared=False
        )
        self._compared = ""  # the fingerprint of an embedder that can search the store

    def identity(self) -> EmbedderIdentity | None:
        """The model that makes the store's vectors; None if it is not decided yet."""
        with self._database.read() as db:
            return EmbedderIdentity.stored(db)

    def check_room(
        self,
        operation: str,
        *,
        rerank: bool,
        candidates: int,
        writes: bool = False,
        extra: Sequence[OperationStage] = (),
        query: int = 0,
    ) -> None:
        """Checks that all models of an operation fit, before the first one is opened."""
        self._pool.check(
            lambda: self.plan(operation, rerank=rerank, candidates=candidates, writes=writes, extra=extra, query=query)
        )

    def plan(
        self, operation: str, *, rerank: bool, candidates: int, writes: bool = False,
        extra: Sequence[OperationStage] = (), query: int = 0,
    ) -> OperationPlan:  # fmt: skip
        return retrieval_plan(
            operation, self._config, embedder=self.named_embedder(), reranker=self._chosen_reranker,
            rerank=rerank, candidates=candidates, writes=writes, extra=extra, query=query,
        )  # fmt: skip

    def make_way(self, work: Callable[[], Result]) -> Result:
        return self._pool.make_way(work)

    def embed(self, texts: Sequence[str], *, query: bool = False) -> npt.NDArray[np.float32]:
        """[n, dim] float32. `ModelError` if the embedder is missing, or another one made the stored vectors."""

        def embedded(embedder: Any) -> npt.NDArray[np.float32]:
            return embedder.embed(texts, query=query)  # type: ignore[no-any-return]

        return self._use_embedder(embedded)

    def named_embedder(self) -> Any:
        """The embedder that the caller passed, or the name of the one to open. Without a choice by the caller or the
        configuration, it is the store's own."""
        if self._chosen is not None and not isinstance(self._chosen, str | Path):
            return self._chosen
        identity = self.identity()
        return str(self._chosen or self._config.embedder or (self._source(identity) if identity else ""))

    def close(self) -> None:
        self._pool.close()

    def _source(self, identity: EmbedderIdentity) -> str:
        return identity.source

    @abstractmethod
    def _compare(self, embedder: AnyEmbedder) -> None:
        """Raises `ModelError` if another embedder made the stored vectors."""

    def _use_embedder(self, work: Callable[[AnyEmbedder], Result]) -> Result:
        """What `work` returns for the embedder, which must be the one that made the vectors."""

        def compared(embedder: AnyEmbedder) -> Result:
            own = fingerprint(embedder)
            if own != self._compared:
                self._compare(embedder)
                self._compared = own
            return work(embedder)

        return self._embedder.run(compared)

    def _open(self, kind: Callable[..., Any], chosen: object) -> Any:
        if not isinstance(chosen, str | Path | Held):
            return chosen
        return kind(str(chosen), budget=self._budget, config=self._config, trace=self._trace)


def fingerprint(model: object) -> str:
    """That of its packed weights, its own attribute, or its class name."""
    packed = getattr(model, "model", model)
    return str(getattr(packed, "fingerprint", type(model).__qualname__))
