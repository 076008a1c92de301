"""What retrieval needs of memory in all, for collections and memories: embedder, index and reranker in their order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from edge.apps.store.pool import CONNECTION_BYTES, PAGE_CACHE
from edge.budget import MemoryBudget
from edge.config import Config
from edge.errors import EdgeError
from edge.models.packed import Kind
from edge.models.registry import DEFAULT_EMBEDDER, DEFAULT_RERANKER, resolve
from edge.plan import Plan, Stage
from edge.resident import anonymous_resident
from edge.runtimes.base import runtime_for
from edge.runtimes.engine import MOST_TOKENS
from edge.runtimes.needs import EngineNeeds, engine_needs, request_nbytes

CONNECTION = PAGE_CACHE + CONNECTION_BYTES

_INDEX = 6 << 20
"""Bytes of the index's tables, of the lists a search has in memory at a time, and of its heap of results."""

_PER_CANDIDATE = 32 << 10
"""Bytes of a candidate: its row of the database, what is made of it, and its tokens, vectors and scores when judged."""

_CODECS = ("faiss",)


def model_needs(chosen: object, kind: Kind, config: Config, default: str) -> EngineNeeds | None:
    """The needs of a model that will be opened.

    Args:
        chosen: its name or path; one that is open needs nothing more.
        default: the name if none was chosen.

    Returns:
        None where it is open already, or cannot be opened, which its opening reports.
    """
    if chosen is not None and not isinstance(chosen, str | Path):
        return None
    try:
        with resolve(chosen or default, kind=kind, directory=config.models_dir or None) as model:
            tokens = min(MOST_TOKENS, model.spec.max_tokens)
            runtime = runtime_for(config.runtime, model.spec.layer)
            return engine_needs(model, runtime, threads=config.threads, max_tokens=tokens)
    except EdgeError:
        return None


def retrieval(embedder: EngineNeeds | None, reranker: EngineNeeds | None, candidates: int) -> list[Stage]:
    """The stages of a search whose database is open. Embedder and reranker take turns where both do not fit.

    Args:
        candidates: passages that are read from the database, and judged if there is a reranker.
    """
    hits = candidates * _PER_CANDIDATE
    stages = [Stage("a second connection to the database", kept=CONNECTION)]
    if embedder is not None:
        stages.append(Stage("embedding the query", own=embedder.own, libraries=embedder.libraries))
    held = 0 if embedder is None else embedder.held
    stages.append(Stage("searching the index", own=held + _INDEX + hits, libraries=_CODECS))
    if reranker is not None:
        stages.append(Stage("reranking", own=reranker.own + hits, libraries=reranker.libraries))
    return stages


def retrieval_plan(
    operation: str,
    config: Config,
    *,
    embedder: object,
    reranker: object,
    rerank: bool,
    candidates: int,
    extra: Sequence[Stage] = (),
    databases: int = 0,
) -> Plan:
    """The plan of an operation that retrieves.

    Args:
        embedder, reranker: names or paths, or open models, or None or an empty name for the configuration's.
        extra: what is done besides, beside the open embedder.
        databases: that have yet to be opened.
    """
    first = model_needs(embedder, "embedder", config, config.embedder or DEFAULT_EMBEDDER)
    second = model_needs(reranker, "reranker", config, config.reranker or DEFAULT_RERANKER) if rerank else None
    held = 0 if first is None else first.own
    more = [replace(stage, own=stage.own + held) for stage in extra]
    begin = Stage("opening the database", kept=databases * CONNECTION)
    return Plan(operation, (begin, *retrieval(first, second, candidates), *more))


def opened_budget(
    operation: str,
    limit: int,
    config: Config,
    *,
    embedder: object = None,
    reranker: object = None,
    candidates: int,
    extra: Sequence[Stage] = (),
    databases: int = 1,
) -> MemoryBudget:
    """The ledger of an operation that opens databases first. A limit that does not even hold those is refused with one
    that is enough for a search as well.

    Raises:
        BudgetExceeded: the limit is too small; the error names the smallest that works.
    """
    held = anonymous_resident()
    if held + databases * CONNECTION <= limit:
        return MemoryBudget(limit)
    plan = retrieval_plan(
        operation, config, embedder=embedder, reranker=reranker, rerank=True, candidates=candidates, extra=extra,
        databases=databases,
    )  # fmt: skip
    raise plan.refusal(limit, held)


def check_texts(
    operation: str, kind: Kind, config: Config, texts: Sequence[str], max_tokens: int | None, query: str = ""
) -> None:
    """Refuses a request over texts that are in memory already before the model is opened.

    Raises:
        BudgetExceeded: the limit is too small; the error names the smallest that works.
        ModelError: the model is missing or broken.
    """
    plan = texts_plan(operation, kind, config, texts, max_tokens, query)
    held = anonymous_resident()
    if held + plan.nbytes > config.memory:
        raise plan.refusal(config.memory, held)


def texts_plan(
    operation: str, kind: Kind, config: Config, texts: Sequence[str], max_tokens: int | None, query: str = ""
) -> Plan:
    """The plan of a request over texts that are in memory already.

    Raises:
        ModelError: the model is missing or broken.
    """
    chosen = config.reranker or DEFAULT_RERANKER if kind == "reranker" else config.embedder or DEFAULT_EMBEDDER
    with resolve(chosen, kind=kind, directory=config.models_dir or None) as model:
        spec = model.spec
        tokens = min(max_tokens or MOST_TOKENS, spec.max_tokens)
        needs = engine_needs(model, runtime_for(config.runtime, spec.layer), threads=config.threads, max_tokens=tokens)
        request = request_nbytes(texts, tokens, spec.layer.hidden, spec.layers, query)
    return Plan(operation, (Stage(chosen, own=needs.own + request, libraries=needs.libraries),))
