"""Verification: reads every stored byte of an index, and reports damage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from edge.budget import MemoryBudget
from edge.errors import CorruptBlock, StorageError
from edge.ivf.base import CodecSpec, Ids
from edge.ivf.storage.manifest import IndexManifest
from edge.ivf.storage.segments import HEADER, IndexSegment, OpenSegments

_GAP_NBYTES = 1 << 20
"""Bytes of the gaps between blocks that are read at a time."""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of a verification.

    Attributes:
        ids: ids [n] of the vectors that can be read, ascending; None if not all bytes were read.
        problems: each a sentence that names the file.
        segments: names of the files that are damaged.
        nbytes: number of bytes read.
    """

    ids: Ids | None
    problems: tuple[str, ...]
    segments: tuple[str, ...]
    nbytes: int


def verify(
    manifest: IndexManifest, spec: CodecSpec, opened: OpenSegments, budget: MemoryBudget, *, read_data: bool
) -> Verification:
    """Checks that the files of the state that `manifest` sees are complete; with `read_data`, every byte of them."""
    problems: list[str] = []
    damaged: list[str] = []
    found: list[Ids] = []
    nbytes = 0
    with budget.reserve("index check", 3 * 8 * manifest.state().rows + (_GAP_NBYTES if read_data else 0)):
        for name in manifest.segment_names():
            said = len(problems)
            segment = _tried(problems, lambda name=name: opened.open(manifest.segment(name), spec))
            if segment is not None:
                problems += _outside(segment, read_data=read_data)
            if segment is not None and read_data:
                nbytes += segment.size
                deleted = _tried(problems, manifest.all_deleted_rows, name)
                for number in range(len(segment.parts) if deleted is not None else 0):
                    ids = _tried(problems, _ids, segment, number, deleted)
                    found += [] if ids is None else [ids]
            if len(problems) > said:
                damaged.append(name)
        if not read_data:
            return Verification(None, tuple(problems), tuple(damaged), nbytes)
        pending, _ = manifest.pending_stamps()
        for number in pending:
            one = np.array([number])
            vector = _tried(problems, manifest.pending_vectors, one, spec.dim)
            found += [] if vector is None else [one]
        ids = np.unique(np.concatenate(found)) if found else np.empty(0, np.int64)
    return Verification(ids, tuple(problems), tuple(damaged), nbytes)


def _tried(problems: list[str], read: Callable[..., Result], *arguments: object) -> Result | None:
    """Returns the result of `read`; None, and a sentence among the problems, if the data is damaged."""
    try:
        return read(*arguments)
    except (CorruptBlock, StorageError) as error:
        problems.append(str(error))
        return None


def _ids(segment: IndexSegment, number: int, deleted: Ids) -> Ids:
    """Ids of a part's live rows, after all bytes of the part were read and verified."""
    nothing = np.empty(0, np.int64)
    for _ in segment.stream(nothing, [number]):
        pass
    rows = np.arange(segment.starts[number], segment.starts[number + 1])
    return segment.ids(np.setdiff1d(rows, deleted, assume_unique=True))


def _outside(segment: IndexSegment, *, read_data: bool) -> Iterator[str]:
    """Finds damage in a file outside its lists: wrong size, header, pages of ids, or gaps."""
    size = segment.path.stat().st_size
    if size != segment.size:
        yield f"{segment.path} has {size:,} bytes instead of {segment.size:,}"
    if not read_data:
        return
    said: list[str] = []
    for number in range(len(segment.pages)):
        _tried(said, segment.read_page, number)
    yield from said
    with segment.path.open("rb") as file:
        if file.read(len(HEADER)) != HEADER:
            yield f"{segment.path} does not begin as a segment does"
        for start, end in _gaps(segment):
            file.seek(start)
            while start < end:
                piece = file.read(min(_GAP_NBYTES, end - start))
                if piece.strip(b"\0"):
                    yield f"{segment.path} has bytes between its blocks, at {start:,}, that were not written there"
                    break
                if not piece:
                    break
                start += len(piece)


def _gaps(segment: IndexSegment) -> Iterator[tuple[int, int]]:
    """The ranges of a file that hold no data, from the header to the end."""
    spans = [(extent.offset, extent.offset + extent.nbytes) for extent in segment.extents.values()]
    for number in range(len(segment.parts)):
        table = segment.list_part(number).vectors
        if table is not None:
            spans.append((table.offset, table.offset + table.rows * table.row_nbytes))
    last = len(HEADER)
    for start, end in sorted(spans):
        if start > last:
            yield last, start
        last = max(last, end)
    if last < segment.size:
        yield last, segment.size
