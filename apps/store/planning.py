"""Plans the memory that retrieval needs: embedder, index and reranker in their order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from edge.apps.documents.base import WORKER_NBYTES
from edge.apps.store.connections import CONNECTION_BYTES, PAGE_CACHE
from edge.budget import MemoryBudget, OperationPlan, OperationStage
from edge.config import Config
from edge.errors import EdgeError
from edge.ivf.base import MAINTENANCE_NBYTES
from edge.models.packed import Kind
from edge.models.registry import DEFAULT_EMBEDDER, DEFAULT_RERANKER, resolve
from edge.resident import anonymous_resident
from edge.runtimes.base import chosen_runtime, runtime_for
from edge.runtimes.engine import MOST_TOKENS
from edge.runtimes.needs import EngineNeeds, engine_needs, request_nbytes

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
