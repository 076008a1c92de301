"""`edge bench`: measurements side by side in one run, each in a process of its own."""

from __future__ import annotations

import click

from edge.apps.bench.rerank_memory import rerank_memory


@click.group()
def bench() -> None:
    """Measure this runtime beside its peers, on this machine."""


bench.add_command(rerank_memory)
