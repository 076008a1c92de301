"""`edge plan`: plans of pipelines, of indexes and of hardware."""

from __future__ import annotations

import click

from edge.apps.options import LazyGroup

_VERBS = {
    "banks": "edge.apps.plan.hardware:banks",
    "here": "edge.apps.plan.profile:here",
    "index": "edge.apps.plan.index:index",
    "rag": "edge.apps.plan.rag:rag",
    "serve": "edge.apps.plan.serving:serve",
    "share": "edge.apps.plan.hardware:share",
    "traversal": "edge.apps.plan.traversal:traversal",
}


@click.group(cls=LazyGroup, verbs=_VERBS)
def plan() -> None:
    """Plan how a retrieval pipeline should be arranged, before anything is bought or run."""
