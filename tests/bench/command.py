"""`python -m tests.bench`: side-by-side measurements in one run, each in a process of its own."""

from __future__ import annotations

import click

from edge.apps.options import LazyGroup

_MODULES = {
    "answer-odds": "answer_odds",
    "assistant": "assistant",
    "banks": "banks",
    "beam": "beam",
    "fleet": "fleet",
    "fpga": "fpga",
    "gpu": "gpu",
    "index": "index",
    "layer-speed": "layer_speed",
    "load": "load",
    "manuals": "manuals",
    "memory": "memory",
    "memory-relevance": "memory_relevance",
    "overhead": "overhead",
    "placement": "placement",
    "rehearsal": "rehearsal",
    "report": "run_record",
    "rerank-memory": "rerank_memory",
    "rerank-peers": "rerank_peers",
    "search-peers": "search",
    "search-quality": "search",
    "statements": "statements",
    "supersession": "supersession",
    "traversal": "traversal",
}
"""The module of each command, whose function has the command's name."""


@click.group(
    cls=LazyGroup, verbs={name: f"bench.{module}:{name.replace('-', '_')}" for name, module in _MODULES.items()}
)
def bench() -> None:
    """Measure this runtime beside its peers, on this machine."""
