"""`edge plan`: plans of pipelines, of indexes and of hardware."""

from __future__ import annotations

import click

from edge.apps.options import LazyGroup

_VERBS = {
    "index": "edge.apps.plan.index:index",
    "rag": "edge.apps.plan.rag:rag",
}


@click.group(cls=LazyGroup, verbs=_VERBS)
def plan() -> None:
    """Plan how a retrieval pipeline should be arranged, before anything is bought or run."""
