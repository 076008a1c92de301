"""`IndexWriter`: adds, replaces and deletes vectors in the caller's transaction. Others see it after the commit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
import numpy.typing as npt

from edge.budget import MemoryBudget
from edge.errors import BudgetExceeded, InputError
from edge.ivf.base import Ids, IndexOptions, Vectors
from edge.ivf.plan import member
from edge.ivf.storage.connection import Connection
from edge.ivf.storage.manifest import IndexManifest
from edge.ivf.storage.segment_writer import SegmentWriter, append_by_list, assign, assign_nbytes, misfit
from edge.ivf.storage.segments import IndexSegment, OpenSegments
from edge.ivf.storage.snapshots import Snapshots


class IndexWriter:
    """Changes one index: the writing half of `VectorIndex`. Thread-safe, since SQLite lets one write transaction run at
    a time."""

    def __init__(
        self, snapshots: Snapshots, segments: OpenSegments, options: IndexOptions, budget: MemoryBudget
    ) -> None:
        self._snapshots = snapshots
        self._segments = segments
        self.options = options
        self._budget = budget

    def add(self, db: Connection, ids: npt.ArrayLike, vectors: npt.ArrayLike) -> None:
        """Adds `vectors` [n, dim] under `ids` [n]; an id that exists is replaced.

        A few rows go into a table of `db` and touch no file; many become a segment at once.

        Raises:
            InputError: ids are negative, twice the same, or not as many as vectors; a vector has the wrong width or is
                not finite; `db` is not inside a transaction.
            ConfigError: the index holds vectors of another width.
            BudgetExceeded, StorageError: a segment cannot be written; the caller rolls back.
        """
        numbers = _checked_ids(ids)
        rows = self._checked_vectors(vectors, len(numbers))
        if len(numbers) == 0:
            return
        manifest = self._manifest(db)
        stamp = manifest.touch(dim=self._snapshots.dim)
        order = np.argsort(numbers, kind="stable")
        # The memory is reserved before anything changes: a caller without it may make room, and call again.
        with ExitStack() as stack:
            writer = self._segment_writer(manifest, len(numbers), stack)
            replaced = self._remove(manifest, numbers[order], stamp)
            manifest.count_rows(len(numbers) - replaced)
            if writer is None:
                manifest.add_pending(numbers, rows, stamp)
                return
            waiting, _ = manifest.pending_stamps()
            if len(waiting):
                numbers = np.concatenate((waiting, numbers))
                rows = np.concatenate((manifest.pending_vectors(waiting, self._snapshots.dim), rows))
            manifest.delete_pending(waiting)
            self._write_segment(writer, manifest, numbers, rows)

    def delete(self, db: Connection, ids: npt.ArrayLike) -> int:
        """Removes vectors; returns how many of `ids` [n] were in the index.

        Raises:
            InputError: ids are negative or twice the same; no transaction is open.
        """
        numbers = np.sort(_checked_ids(ids))
        manifest = self._manifest(db)
        stamp = manifest.touch()
        count = self._remove(manifest, numbers, stamp)
        manifest.count_rows(-count)
        return count

    def vectors(self, db: Connection, ids: npt.ArrayLike, *, absent_as_zero: bool = False) -> Vectors:
        """The stored vectors [n, dim] of `ids` [n], in that order.

        Args:
            absent_as_zero: the row of an id that is not in the index is zero.

        Raises:
            InputError: an id is not in the index, unless `absent_as_zero`.
            CorruptBlock, StorageError: a segment cannot be read.
        """
        wanted, inverse = np.unique(np.asarray(ids, np.int64), return_inverse=True)
        out = np.zeros((len(wanted), self._snapshots.dim), np.float32)
        found = np.zeros(len(wanted), np.bool_)
        manifest = self._manifest(db)
        pending = manifest.which_pending(wanted)
        at = np.searchsorted(wanted, pending)
        out[at] = manifest.pending_vectors(pending, self._snapshots.dim)
        found[at] = True
        left = np.flatnonzero(~found)
        for segment, own, rows in self._locate(manifest, wanted[left]):
            order = np.argsort(rows)
            out[left[own][order]] = segment.vectors(rows[order])
            found[left[own]] = True
        if not (absent_as_zero or found.all()):
            raise InputError(f"there is no vector with id {int(wanted[~found][0])} in the index")
        return out[inverse]

    def _manifest(self, db: Connection) -> IndexManifest:
        """The index's tables.

        Raises:
            ConfigError: they hold vectors of another width.
        """
        manifest = IndexManifest(db)
        self._snapshots.state(manifest)
        return manifest

    def _remove(self, manifest: IndexManifest, ids: Ids, stamp: int) -> int:
        """Removes those of `ids` (ascending, unique) that exist; returns their number."""
        count = manifest.delete_pending(ids)
        for segment, _, rows in self._locate(manifest, ids):
            count += len(manifest.delete_rows(segment.name, np.sort(rows), stamp))
        return count

    def _locate(self, manifest: IndexManifest, ids: Ids) -> Iterator[tuple[IndexSegment, Ids, Ids]]:
        """Finds those of `ids` (ascending, unique) that are in segments: (segment, positions in `ids`, rows)."""
        for segment in self._snapshots.segments(manifest).values():
            rows = segment.lookup(ids)
            at = np.flatnonzero(rows >= 0)
            if len(at):
                at = at[~member(manifest.all_deleted_rows(segment.name), rows[at])]
            if len(at):
                yield segment, at, rows[at]

    def _segment_writer(self, manifest: IndexManifest, count: int, stack: ExitStack) -> SegmentWriter | None:
        """Opens the writer of a segment for `count` new rows and the pending ones. None if all of them stay pending:
        they are few, or the memory does not suffice and they are not very many."""
        pending, limit = manifest.pending_count(), self.options.pending_limit
        if pending + count <= 2 * limit:
            return None
        training = self._snapshots.training(manifest)
        joined = pending + count if pending else 0
        nbytes = joined * 4 * self._snapshots.dim + assign_nbytes(len(training.centroids))
        try:
            stack.enter_context(self._budget.reserve("index writer", nbytes))
            return stack.enter_context(SegmentWriter(self._segments.folder, training.codec.spec, self._budget))
        except BudgetExceeded:
            if pending + count > 3 * limit:
                raise
            return None

    def _write_segment(self, writer: SegmentWriter, manifest: IndexManifest, ids: Ids, vectors: Vectors) -> None:
        training = self._snapshots.training(manifest)
        lists, scores = assign(vectors, training.centroids)
        append_by_list(writer, training.codec, lists, ids, vectors)
        manifest.add_segment(writer.finish())
        if len(training.centroids) > 1:
            manifest.count_misfit(len(ids), misfit(vectors, scores))

    def _checked_vectors(self, vectors: npt.ArrayLike, count: int) -> Vectors:
        rows = np.ascontiguousarray(vectors, np.float32)
        if rows.shape != (count, self._snapshots.dim):
            raise InputError(
                f"{count} ids need vectors of shape ({count}, {self._snapshots.dim}), not {tuple(rows.shape)}"
            )
        if not np.isfinite(rows).all():
            raise InputError("a vector has a component that is not a finite number")
        return rows


def _checked_ids(ids: npt.ArrayLike) -> Ids:
    numbers = np.asarray(ids)
    if numbers.ndim != 1 or (numbers.size and numbers.dtype.kind not in "iu"):
        raise InputError("ids are a one-dimensional array of integers")
    numbers = numbers.astype(np.int64)
    if numbers.size and numbers.min() < 0:
        raise InputError(f"id {int(numbers.min())} is negative")
    if len(np.unique(numbers)) != len(numbers):
        raise InputError("an id is given twice in one call")
    return numbers
