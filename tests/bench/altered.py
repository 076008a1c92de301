"""`edge` without some of its parts, or with a slow place of lists. `load` compares such servers with the whole one.

The first argument names the changes, with commas between them: `tree` (no states of documents are kept), `queue`
(requests wait in the order of their arrival), `batches` (searches do not share what they read), `slow=25MB` (lists
cross a modelled link of so many bytes a second).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from edge.config import parse_size
from edge.errors import InputError


def alter(changes: str) -> None:
    """Changes this process."""
    for change in changes.split(","):
        name, _, value = change.partition("=")
        if name not in _CHANGES:
            raise InputError(f"{name!r} is none of {', '.join(_CHANGES)}")
        _CHANGES[name](value)


def _without_tree(_: str) -> None:
    from edge.apps.assistant import generator

    generator._knowledge = lambda *_: None  # type: ignore[assignment]


def _without_queue(_: str) -> None:
    from edge.runtimes.generation import engine

    engine.WINDOW = 0


def _without_batches(_: str) -> None:
    from edge.ivf.search import IndexSearcher

    IndexSearcher._must_read = lambda *_: False  # type: ignore[method-assign]


def _slow(rate: str) -> None:
    from edge.devices import cpu
    from edge.link import Lane

    first = cpu.CpuDevice.__init__

    def opened(self: cpu.CpuDevice, memory: Any, *, link: Lane | None = None, trace: Any = None) -> None:
        own = link or Lane("lists", trace=trace, bandwidth_limit=parse_size(rate))
        first(self, memory, link=own, trace=trace)

    cpu.CpuDevice.__init__ = opened  # type: ignore[method-assign]


_CHANGES: dict[str, Callable[[str], None]] = {
    "tree": _without_tree, "queue": _without_queue, "batches": _without_batches, "slow": _slow,
}  # fmt: skip

if __name__ == "__main__":
    alter(sys.argv.pop(1))
    from edge.apps.cli import main

    main()
