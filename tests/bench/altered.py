"""`edge` without some of its parts. `load` compares such servers with the whole one.

The first argument names the parts, with commas between them: `tree` (no states of documents are kept), `queue`
(requests wait in the order of their arrival), `disk` (lists come at 10 MB a second, and 4 MB of them may stay in
memory), `cut` (no list is left out for a deadline). Of an index's lists `none` stays in memory after a search, or `all`
that have room are held for a deadline.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partialmethod

import numpy as np

from edge.budget import MemoryBudget
from edge.errors import InputError
from edge.ivf.placement import Lists, Share
from edge.trace import Trace


def alter(changes: str) -> None:
    """Changes this process."""
    for change in changes.split(","):
        if change not in _CHANGES:
            raise InputError(f"{change!r} is none of {', '.join(_CHANGES)}")
        _CHANGES[change]()


def _without_tree() -> None:
    from edge.apps.assistant import generator

    generator._knowledge = lambda *_: None  # type: ignore[assignment]


def _without_queue() -> None:
    from edge.runtimes.generation import engine

    engine.WINDOW = 0


_BANDWIDTH = 10e6
_ROOM = 4 << 20
_PASSING = 2 << 20
"""Bytes of lists in memory for the searches that run, where no list stays."""


def _without_disk() -> None:
    from edge.devices.cpu import CpuDevice
    from edge.link import Lane

    usual = CpuDevice.__init__

    def slow(self: CpuDevice, memory: MemoryBudget, *, link: Lane | None = None, trace: Trace | None = None) -> None:
        usual(self, memory, link=link or Lane("lists", trace=trace, bandwidth_limit=_BANDWIDTH), trace=trace)

    CpuDevice.__init__ = slow  # type: ignore[method-assign]
    _bound(_ROOM)


def _bound(capacity: int) -> None:
    from edge.ivf.search import IndexSearcher

    IndexSearcher.__init__ = partialmethod(IndexSearcher.__init__, capacity=capacity)  # type: ignore[assignment]


def _with_all() -> None:
    from edge.ivf import placement

    def all_of(log: object, nbytes: Lists, seconds: object, *, within: float, most: int, room: int) -> Share:
        count = int(np.searchsorted(np.cumsum(nbytes), room, side="right"))
        return Share(np.arange(count), int(nbytes[:count].sum()), 1.0, 1.0)

    placement.smallest_share = all_of  # type: ignore[assignment]


def _without_cut() -> None:
    from edge.ivf import plan

    plan.LOSS = -1.0


_CHANGES: dict[str, Callable[[], None]] = {
    "tree": _without_tree, "queue": _without_queue, "disk": _without_disk, "cut": _without_cut,
    "none": lambda: _bound(_PASSING), "all": _with_all,
}  # fmt: skip

if __name__ == "__main__":
    alter(sys.argv.pop(1))
    from edge.apps.cli import main

    main()
