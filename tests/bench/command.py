"""`python -m tests.bench`: side-by-side measurements in one run, each in a process of its own."""

from __future__ import annotations

import click

from edge.apps.options import LazyGroup

_MODULES = {
    "answers": "answers",
    "answers-check": "answers_check",
    "assignment": "assignment",
    "assistant": "assistant",
    "batches": "batches",
    "codecs": "codecs",
    "compare": "compare",
    "devices": "devices",
    "dispatch": "dispatch",
    "fleet": "fleet",
    "fpga": "fpga",
    "gpu": "gpu",
    "growth": "growth",
    "household": "household",
    "index": "index",
    "knowledge": "knowledge",
    "layer-speed": "layer_speed",
    "load": "load",
    "memory": "memory",
    "memory-relevance": "memory_relevance",
    "overhead": "overhead",
    "packing-loss": "packing_loss",
    "pipelining": "pipelining",
    "placement": "placement",
    "plan": "plan",
    "planned": "planned",
    "pruning": "pruning",
    "raw-rate": "raw_rate",
    "recommend": "recommend",
    "report": "run_record",
    "pruning-rules": "rules",
    "rerank-memory": "rerank_memory",
    "rerank-peers": "rerank_peers",
    "search-peers": "search",
    "search-quality": "search",
    "searchers": "searchers",
    "serve": "serve",
    "shards": "shards",
    "supersession": "supersession",
    "tail-hits": "tail_hits",
    "traversal": "traversal",
    "tune": "tune",
    "warm": "warm",
}
"""The module of each command, whose function has the command's name."""


@click.group(
    cls=LazyGroup,
    verbs={name: f"bench.{module}:{name.replace('-', '_')}" for name, module in _MODULES.items()},
)
def bench() -> None:
    """Measure this runtime beside its peers, on this machine."""
