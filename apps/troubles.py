"""Reports unfinished work and damage of a collection or memory to the user."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, TypeVar

import click

from edge.apps.store.health import Health
from edge.text.control_characters import escaped


class Store(Protocol):
    """A collection, several of them, or a memory."""

    def health(self) -> Health: ...


Opened = TypeVar("Opened", bound=Store)


def tell(health: Health) -> None:
    """Prints a line for each trouble to stderr."""
    for trouble in health:
        click.echo(escaped(f"edge: {trouble}"), err=True)


@contextmanager
def told(store: AbstractContextManager[Opened]) -> Iterator[Opened]:
    """Opens a store. If the block ends without an error, the troubles of the store are printed to stderr."""
    with store as opened:
        yield opened
        health = opened.health()
    tell(health)
