"""Opening the generator of an assistant, beside a collection and under its budget."""

from __future__ import annotations

import os
from contextlib import ExitStack

from edge.apps.assistant.evidence import UnitJudge
from edge.apps.assistant.quotations import PickedSentences
from edge.apps.collection.collection import Collection
from edge.knowledge.store import KnowledgeStore
from edge.knowledge.tree import KnowledgeTree
from edge.runtimes.generation.base import Generator
from edge.runtimes.generation.extractive import ExtractiveGenerator
from edge.runtimes.generation.llama_cpp import LlamaGenerator
from edge.runtimes.generation.opening import open_generator

_STATES = "kv-states"
_STATES_DISK = 2 << 30
"""Bytes of documents' KV states kept on disk, for all collections and models together."""

_STATES_SHARE = 0.25
"""Of the memory limit that documents' KV states may take, as long as nothing else wants it."""


def open_llm(
    llm: str | os.PathLike[str] | None,
    collection: Collection,
    judge: UnitJudge,
    opened: ExitStack,
    *,
    kv_cache: bool,
) -> tuple[Generator, int]:
    """Opens a generator, and closes it with `opened`; returns it with the bytes that retrieval needs beside it.

    Args:
        llm: see `Assistant`.
        judge: judges sentences, where they are picked.

    Raises:
        ModelError, BudgetExceeded, CapabilityError, ConfigError: see `open_generator`.
    """
    llm = llm or collection.config.llm
    if not llm or llm == ExtractiveGenerator.name:
        return PickedSentences(judge), 0
    # What embedder and reranker need is kept free while the generator takes what it can: its memory is taken once and
    # for good, theirs gives way to it down to their least.
    working = _working_memory(collection)
    with collection.budget.reserve("retrieval", working):
        generator = open_generator(os.fspath(llm), collection.budget, collection.config, trace=collection.trace)
    opened.callback(generator.close)
    if kv_cache:
        _reuse_states(generator, collection, opened)
    return generator, working


def _working_memory(collection: Collection) -> int:
    """Bytes that must be free, or held by what gives way, for embedder and reranker to work one after the other. Both
    are open afterwards."""
    engines = [] if collection.vectors is None else [collection.embedder.engine]
    return max(engine.working for engine in [*engines, collection.reranker.engine])


def _reuse_states(generator: Generator, collection: Collection, opened: ExitStack) -> None:
    """Gives a generator that can cut out KV states a knowledge tree over them, in memory and on disk."""
    if not isinstance(generator, LlamaGenerator) or generator.states is None:
        return
    budget, trace = collection.budget, collection.trace
    directory = collection.config.scratch_path / _STATES
    store = KnowledgeStore(directory, generator.states.fingerprint, _STATES_DISK, trace=trace)
    tree = KnowledgeTree(
        generator.states, budget, host_limit=int(budget.limit * _STATES_SHARE), store=store, trace=trace
    )
    opened.callback(tree.close)
    generator.tree = tree
