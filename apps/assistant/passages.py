"""Merges the passages of several retrievals into one list for the generator, and counts those that fit its context."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from edge.apps.collection.hits import Hit
from edge.apps.store.fusion import reciprocal_rank_fusion
from edge.errors import InputError
from edge.runtimes.generation.base import (
    Document,
    Generator,
    Message,
    ReusesStates,
    Sampling,
    answer_room,
    numbered,
)
from edge.runtimes.generation.llama_cpp import LlamaGenerator


def fused(pools: Sequence[Sequence[Hit]]) -> list[Hit]:
    """The candidates of several queries in one order, by reciprocal rank fusion."""
    if len(pools) == 1:
        return list(pools[0])
    hits = {hit.id: hit for pool in pools for hit in pool}
    return [hits[identifier] for identifier, _ in reciprocal_rank_fusion([[hit.id for hit in pool] for pool in pools])]


def merge_passages(most: int, *sets: Sequence[Hit]) -> list[Hit]:
    """The `most` most relevant passages of several sets. Passages of earlier sets keep their places and new ones
    follow, so that a prompt begins like the one before it and KV states are reused."""
    seen: dict[int, Hit] = {}
    for hit in (hit for hits in sets for hit in hits):
        if hit.id not in seen or relevance(hit) > relevance(seen[hit.id]):
            seen[hit.id] = hit
    kept = sorted(seen.values(), key=relevance, reverse=True)[:most]
    return [hit for hit in seen.values() if hit in kept]


def dealt(most: int, sets: Sequence[Sequence[Hit]]) -> list[Hit]:
    """The best passage of each set, then the second best of each, and so on, `most` in all. Every part of a question
    thus gets its share of the passages."""
    turns = (hit for turn in zip_longest(*sets) for hit in turn if hit is not None)
    return list({hit.id: hit for hit in turns}.values())[:most]


def relevance(hit: Hit) -> float:
    """The reranker's probability of a passage; without reranking its retrieval score."""
    return hit.score if hit.stages.relevance is None else hit.stages.relevance


def documents_read(
    generator: Generator, messages: Sequence[Message], documents: Sequence[Document], sampling: Sampling
) -> int:
    """The number of documents, from the first, that fit the context of an answer to these messages.

    The number is exact for llama.cpp generators, whose prompt is laid out by this program, and for servers, whose
    adapter estimates in the same way. For other generators it is as good as their `count`. After the generation their
    `stats` hold the number of documents that were really left out.

    Raises:
        InputError: there are documents, and none of them fits; or the conversation alone does not fit.
    """
    if not documents:
        return 0
    used = sum(generator.count(message.content) for message in messages)
    least = generator.count(numbered(documents[0], 1))
    answer = answer_room(generator.context, sampling.max_tokens)
    if isinstance(generator, LlamaGenerator):
        names = {document.id for document in documents}
        read = sum(segment.id in names for segment in generator.path(messages, documents, sampling))
    else:
        room = generator.context - used - answer
        read = 0
        for number, document in enumerate(documents, 1):
            room -= generator.count(numbered(document, number))
            if room < 0:
                break
            read = number
    if read == 0:
        raise InputError(
            f"none of the {len(documents)} passages fits the context of {generator.name}, so that nothing could be "
            f"answered from them: it holds {generator.context:,} tokens, the question and what is asked with it take "
            f"about {used:,}, the answer {answer:,} and the first passage {least:,}; take a larger "
            f"context (--context, EDGE_CONTEXT), or a model that has one"
        )
    return read


def cached_first(
    generator: Generator,
    messages: Sequence[Message],
    passages: Sequence[Hit],
    documents: Sequence[Document],
    sampling: Sampling,
    tolerance: float,
) -> list[int]:
    """The order, as indices, in which to give passages to a generator. Passages of about equal relevance change places
    so that KV states are reused. Passages that are not sorted by relevance keep their order.

    Args:
        documents: the passages in the form in which the generator reads them.
        tolerance: see `AskOptions.order_tolerance`.
    """
    scores = [relevance(hit) for hit in passages]
    if not tolerance or not isinstance(generator, ReusesStates) or scores != sorted(scores, reverse=True):
        return list(range(len(passages)))
    return generator.cached_order(messages, documents, sampling, scores=scores, tolerance=tolerance)
