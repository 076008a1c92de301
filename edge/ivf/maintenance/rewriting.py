"""Copying rows of segments into a new segment while others write, and replacing the old segments by it.

A copy holds the rows that were live at one moment. Rows that are deleted while the copy is made are deleted in the copy
by the transaction that names it. So no committed row is lost, and no deleted row comes back.
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
from edge.ivf.storage.manifest import Manifest
from edge.ivf.storage.segments import RowBlock, Segment, SegmentEntry


@dataclass(frozen=True, slots=True)
class Source:
    """A segment to be copied, and its rows that were deleted when the copying began (ascending)."""

    segment: Segment
    deleted: Ids

    @property
    def live(self) -> int:
        """Number of rows to copy."""
        return self.segment.rows - len(self.deleted)

    def stream(self, parts: range | list[int] | None = None) -> Iterator[RowBlock]:
        """The rows to copy; see `Segment.stream`."""
        return self.segment.stream(self.deleted, parts)


@dataclass(frozen=True, slots=True)
class Copy:
    """A new segment on disk, and the sources whose rows it contains."""

    sources: tuple[Source, ...]
    entry: SegmentEntry
    segment: Segment


def put_in_place(manifest: Manifest, copy: Copy, stamp: int) -> None:
    """Adds a copy to the state and retires its sources, inside a write transaction."""
    manifest.add_segment(copy.entry)
    for source in copy.sources:
        carry_deletions(manifest, source, copy.segment, stamp)
    retire(manifest, copy.sources)


def retire(manifest: Manifest, sources: Iterable[Source]) -> None:
    """Takes segments out of the state, inside a write transaction."""
    manifest.retire_segments([source.segment.name for source in sources], time.time())


def carry_deletions(manifest: Manifest, source: Source, copy: Segment, stamp: int, moved: Ids | None = None) -> None:
    """Deletes in a copy the rows that were deleted in its source since the copying began.

    Args:
        moved: the rows (ascending) that were copied, if not all were.
    """
    late = np.setdiff1d(manifest.all_deleted_rows(source.segment.name), source.deleted, assume_unique=True)
    if moved is not None:
        late = np.intersect1d(late, moved, assume_unique=True)
    if len(late):
        rows = copy.lookup(np.sort(source.segment.ids(late)))
        manifest.delete_rows(copy.name, np.sort(rows), stamp)


def workspace(budget: MemoryBudget, owner: str, least: int, most: int) -> Lease:
    """Reserves memory for a step of maintenance, between `least` and `most` bytes.

    The aim is three quarters of the free memory, or an eighth of the limit if caches hold almost everything. If other
    owners give up too little, the lease is smaller.

    Raises:
        BudgetExceeded: not even `least` bytes are available.
    """
    wanted = max(least, min(most, max(3 * budget.free // 4, budget.limit // 8)))
    while wanted > least:
        with suppress(BudgetExceeded):
            return budget.reserve(owner, wanted)
        wanted = max(least, wanted // 2)
    return budget.reserve(owner, least)


def live_rows(sources: Iterable[Source]) -> int:
    """Number of rows to copy in all sources."""
    return sum(source.live for source in sources)
