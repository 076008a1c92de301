"""Copying rows of segments into a new one while others write, and putting it in their place.

A copy is made from what counted at a moment. What is deleted while it is made is deleted in it, too, in the transaction
that names it: nothing that was committed is lost, and nothing that was deleted comes back.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from edge.budget import Lease, MemoryBudget
from edge.errors import BudgetExceeded
from edge.ivf.base import Ids
from edge.ivf.manifest import Manifest
from edge.ivf.segments import RowBlock, Segment, SegmentEntry


@dataclass(frozen=True, slots=True)
class Source:
    """A segment to be copied, and those of its rows that did not count when that began (ascending)."""

    segment: Segment
    deleted: Ids

    @property
    def live(self) -> int:
        """Rows to be copied."""
        return self.segment.rows - len(self.deleted)

    def stream(self, parts: range | list[int] | None = None) -> Iterator[RowBlock]:
        """The rows to be copied; see `Segment.stream`."""
        return self.segment.stream(self.deleted, parts)


@dataclass(frozen=True, slots=True)
class Copy:
    """A new segment on disk, and the sources whose rows it took."""

    sources: tuple[Source, ...]
    entry: SegmentEntry
    segment: Segment


def put_in_place(manifest: Manifest, copy: Copy, stamp: int) -> None:
    """Names a copy and retires its sources, inside a write transaction."""
    manifest.add_segment(copy.entry)
    for source in copy.sources:
        carry_deletions(manifest, source, copy.segment, stamp)
    retire(manifest, copy.sources)


def retire(manifest: Manifest, sources: Iterable[Source]) -> None:
    """Takes segments out of the state, inside a write transaction."""
    manifest.retire_segments([source.segment.name for source in sources], time.time())


def carry_deletions(manifest: Manifest, source: Source, copy: Segment, stamp: int, moved: Ids | None = None) -> None:
    """Deletes in a copy what has been deleted in its source since the copying began.

    Args:
        moved: the rows (ascending) that were copied, if not all.
    """
    late = np.setdiff1d(manifest.all_deleted_rows(source.segment.name), source.deleted, assume_unique=True)
    if moved is not None:
        late = np.intersect1d(late, moved, assume_unique=True)
    if len(late):
        rows = copy.lookup(np.sort(source.segment.ids(late)))
        manifest.delete_rows(copy.name, np.sort(rows), stamp)


def workspace(budget: MemoryBudget, owner: str, least: int, most: int) -> Lease:
    """Memory for a step of maintenance: three quarters of what is free, or an eighth of the limit where caches hold
    almost all of it; less, down to `least`, where nobody gives way; never more than `most`.

    Raises:
        BudgetExceeded: not even `least` bytes can be had.
    """
    wanted = max(least, min(most, max(3 * budget.free // 4, budget.limit // 8)))
    while wanted > least:
        with suppress(BudgetExceeded):
            return budget.reserve(owner, wanted)
        wanted = max(least, wanted // 2)
    return budget.reserve(owner, least)


def live_rows(sources: Iterable[Source]) -> int:
    """Rows of all sources to be copied."""
    return sum(source.live for source in sources)
