"""What is unfinished or damaged in a collection or memory, told to whoever uses it."""

from __future__ import annotations

import click

from edge.apps.files.shown import shown
from edge.apps.store.health import Health


def tell(health: Health) -> None:
    """Prints a line for each trouble on stderr."""
    for trouble in health:
        click.echo(shown(f"edge: {trouble}"), err=True)
