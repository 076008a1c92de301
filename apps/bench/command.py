"""`edge bench`: side-by-side measurements in one run, each in a process of its own."""

from __future__ import annotations

import click

from edge.apps.options import LazyGroup

_BENCHES = {
    "answers": "edge.apps.bench.answers:answers",
    "assistant": "edge.apps.bench.assistant:assistant",
    "compare": "edge.apps.bench.compare:compare",
    "devices": "edge.apps.bench.devices:devices",
    "dispatch": "edge.apps.bench.dispatch:dispatch",
    "evidence": "edge.apps.bench.evidence:evidence",
    "floor": "edge.apps.bench.floor:floor",
    "gpu": "edge.apps.bench.gpu:gpu",
    "index": "edge.apps.bench.index:index",
    "knowledge": "edge.apps.bench.knowledge:knowledge",
    "layer-speed": "edge.apps.bench.layer_speed:layer_speed",
    "memory": "edge.apps.bench.memory:memory",
    "memory-relevance": "edge.apps.bench.memory_relevance:memory_relevance",
    "pipelining": "edge.apps.bench.pipelining:pipelining",
    "overhead": "edge.apps.bench.overhead:overhead",
    "plan": "edge.apps.bench.plan:plan",
    "pruning": "edge.apps.bench.pruning:pruning",
    "report": "edge.apps.bench.report:report",
    "rerank-memory": "edge.apps.bench.rerank_memory:rerank_memory",
    "rerank-peers": "edge.apps.bench.rerank_peers:rerank_peers",
    "rerank-quality": "edge.apps.bench.rerank_quality:rerank_quality",
    "search-peers": "edge.apps.bench.search_peers:search_peers",
    "search-quality": "edge.apps.bench.search_quality:search_quality",
    "searchers": "edge.apps.bench.searchers:searchers",
    "serve": "edge.apps.bench.serve:serve",
    "traversal": "edge.apps.bench.traversal:traversal",
    "tune": "edge.apps.bench.tune:tune",
    "warm": "edge.apps.bench.warm:warm",
}


@click.group(cls=LazyGroup, verbs=_BENCHES)
def bench() -> None:
    """Measure this runtime beside its peers, on this machine."""
