"""What is unfinished or damaged in a collection or memory, told to whoever uses it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, TypeVar

import click

from edge.apps.files.shown import shown
from edge.apps.store.health import Health


class Store(Protocol):
    """A collection, several of them, or a memory."""

    def health(self) -> Health: ...


Opened = TypeVar("Opened", bound=Store)


def tell(health: Health) -> None:
    """Prints a line for each trouble on stderr."""
    for trouble in health:
        click.echo(shown(f"edge: {trouble}"), err=True)


@contextmanager
def told(store: AbstractContextManager[Opened]) -> Iterator[Opened]:
    """Opens a store. When the block has ended without an error, the troubles of the store are printed on stderr."""
    with store as opened:
        yield opened
        health = opened.health()
    tell(health)
