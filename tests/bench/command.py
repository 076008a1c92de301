"""`python -m tests.bench`: side-by-side measurements in one run, each in a process of its own."""

from __future__ import annotations

import click

from edge.apps.options import LazyGroup

_BENCHES = {
    "answers": "bench.answers:answers",
    "assistant": "bench.assistant:assistant",
    "compare": "bench.compare:compare",
    "devices": "bench.devices:devices",
    "dispatch": "bench.dispatch:dispatch",
    "evidence": "bench.evidence:evidence",
    "gpu": "bench.gpu:gpu",
    "index": "bench.index:index",
    "knowledge": "bench.knowledge:knowledge",
    "layer-speed": "bench.layer_speed:layer_speed",
    "load": "bench.load:load",
    "memory": "bench.memory:memory",
    "memory-relevance": "bench.memory_relevance:memory_relevance",
    "pipelining": "bench.pipelining:pipelining",
    "overhead": "bench.overhead:overhead",
    "plan": "bench.plan:plan",
    "pruning": "bench.pruning:pruning",
    "report": "bench.report:report",
    "rerank-memory": "bench.rerank_memory:rerank_memory",
    "rerank-peers": "bench.rerank_peers:rerank_peers",
    "rerank-quality": "bench.rerank_quality:rerank_quality",
    "search-peers": "bench.search_peers:search_peers",
    "search-quality": "bench.search_quality:search_quality",
    "searchers": "bench.searchers:searchers",
    "serve": "bench.serve:serve",
    "traversal": "bench.traversal:traversal",
    "tune": "bench.tune:tune",
    "warm": "bench.warm:warm",
}


@click.group(cls=LazyGroup, verbs=_BENCHES)
def bench() -> None:
    """Measure this runtime beside its peers, on this machine."""
