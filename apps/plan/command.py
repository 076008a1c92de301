"""`edge plan`: plans of pipelines, and the published figures that the planner's models reproduce."""

from __future__ import annotations

import click

from edge.apps.options import LazyGroup

_VERBS = {
    "banks": "edge.apps.plan.hardware:banks",
    "here": "edge.apps.plan.profile:here",
    "index": "edge.apps.plan.index:index",
    "published": "edge.apps.plan.published:published",
    "rag": "edge.apps.plan.rag:rag",
    "share": "edge.apps.plan.hardware:share",
    "traversal": "edge.apps.plan.traversal:traversal",
}


@click.group(cls=LazyGroup, verbs=_VERBS)
def plan() -> None:
    """Plan how a retrieval pipeline should be arranged, before anything is bought or run."""
