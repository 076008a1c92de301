"""`edge bench`: measurements side by side in one run, each in a process of its own."""

from __future__ import annotations

import click

from edge.apps.lazy import LazyGroup

_BENCHES = {
    "answers": "edge.apps.bench.answers:answers",
    "assistant": "edge.apps.bench.assistant:assistant",
    "evidence": "edge.apps.bench.evidence:evidence",
    "floor": "edge.apps.bench.floor:floor",
    "index": "edge.apps.bench.index:index",
    "knowledge": "edge.apps.bench.knowledge:knowledge",
    "layer-speed": "edge.apps.bench.layer_speed:layer_speed",
    "memory": "edge.apps.bench.memory:memory",
    "memory-relevance": "edge.apps.bench.memory_relevance:memory_relevance",
    "pipelining": "edge.apps.bench.pipelining:pipelining",
    "pruning": "edge.apps.bench.pruning:pruning",
    "rerank-memory": "edge.apps.bench.rerank_memory:rerank_memory",
    "rerank-quality": "edge.apps.bench.rerank_quality:rerank_quality",
    "search-quality": "edge.apps.bench.search_quality:search_quality",
    "speculation": "edge.apps.bench.speculation:speculation",
}


@click.group(cls=LazyGroup, verbs=_BENCHES)
def bench() -> None:
    """Measure this runtime beside its peers, on this machine."""
