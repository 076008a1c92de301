"""`VectorIndex`: a tiered IVF index inside the caller's SQLite database, and a folder of segments beside it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from edge.budget import MemoryBudget
from edge.errors import BudgetExceeded, CapabilityError, ConfigError, InputError
from edge.ivf.base import (
    Codecs,
    Connection,
    Found,
    Goal,
    Ids,
    IndexOptions,
    IndexStatus,
    IndexTuning,
    MaintenanceReport,
    Quantizer,
    Snapshot,
    Vectors,
)
from edge.ivf.device import Place, Search, SearchPlace, capabilities, open_device
from edge.ivf.plan import checked_queries, lists_to_probe, member, resident
from edge.ivf.search import IndexSearcher
from edge.ivf.storage.manifest import MIGRATIONS, IndexManifest
from edge.ivf.storage.segments import IndexSegment, OpenSegments
from edge.ivf.storage.snapshots import Snapshots
from edge.plugins import load
from edge.resident import Closing
from edge.trace import Trace

if TYPE_CHECKING:
    from edge.cache.lookahead import Lookahead
    from edge.ivf.maintenance.training import Curve
    from edge.ivf.maintenance.work import Progress, Work, Write
    from edge.ivf.storage.segment_writer import SegmentWriter
    from edge.ivf.storage.snapshots import Verification
    from edge.planner.tuner import TuningCandidates

__all__ = ["IndexOptions", "VectorIndex"]


class VectorIndex(Closing):
    """Inner-product search over float32 vectors with int64 ids. Thread-safe: many readers, one writer, one maintainer;
    several processes may open the same index.

    The caller owns the database and its transactions: a change becomes visible when the caller commits. Methods raise
    ConfigError if the index holds vectors of another width."""

    def __init__(
        self,
        directory: Path,
        dim: int,
        *,
        budget: MemoryBudget,
        trace: Trace | None = None,
        device: SearchPlace | None = None,
        place: SearchPlace | None = None,
        search_on: str = "",
        codecs: Codecs | None = None,
        options: IndexOptions | None = None,
        threads: int = 0,
        within: float = 0.0,
    ) -> None:
        """Opens no file yet. The caller closes `device` and `place`; the index opens and closes what `search_on`
        names. 0 `threads` of training takes all cores."""
        if dim < 1:
            raise InputError(f"vectors have at least one component, not {dim}")
        self.dim = dim
        self._trace = trace or Trace()
        self._own_devices: list[Place] = []
        if codecs is None:
            default = load("edge.codecs", "faiss")(threads=threads)
            budget.hold_libraries(default.libraries)
            codecs = default
        self._codecs = codecs
        self._budget = budget
        self._segments = OpenSegments(directory, budget)
        self._snapshots = Snapshots(self._segments, codecs, dim, budget)
        self.options = options or IndexOptions()
        try:
            host = device or self._opened("cpu")
            if place is None and search_on not in ("", "cpu"):
                place = self._opened(search_on)
            self._searcher = IndexSearcher(host, place=place, within=within, trace=self._trace)
        except BaseException:
            self._close_devices()
            raise

    @staticmethod
    def migrations() -> list[str]:
        """The steps that create the tables, as SQL, for the database's owner to append to its own."""
        return list(MIGRATIONS)

    def add(self, db: Connection, ids: npt.ArrayLike, vectors: npt.ArrayLike) -> None:
        """Adds `vectors` [n, dim] under `ids` [n], and replaces known ones. If it fails, the caller rolls back."""
        numbers = _checked_ids(ids)
        rows = self._checked_vectors(vectors, len(numbers))
        manifest = self._manifest(db)
        stamp = manifest.touch(dim=self.dim)
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
                rows = np.concatenate((manifest.pending_vectors(waiting, self.dim), rows))
            manifest.delete_pending(waiting)
            self._write_segment(writer, manifest, numbers, rows)

    def delete(self, db: Connection, ids: npt.ArrayLike) -> int:
        numbers = np.sort(_checked_ids(ids))
        manifest = self._manifest(db)
        stamp = manifest.touch()
        count = self._remove(manifest, numbers, stamp)
        manifest.count_rows(-count)
        return count

    def vectors(self, db: Connection, ids: npt.ArrayLike, *, absent_as_zero: bool = False) -> Vectors:
        """The vectors [n, dim] of `ids` [n]. A missing id is an InputError, or zeros if `absent_as_zero`."""
        wanted, inverse = np.unique(np.asarray(ids, np.int64), return_inverse=True)
        out = np.zeros((len(wanted), self.dim), np.float32)
        found = np.zeros(len(wanted), np.bool_)
        manifest = self._manifest(db)
        pending = manifest.which_pending(wanted)
        at = np.searchsorted(wanted, pending)
        out[at] = manifest.pending_vectors(pending, self.dim)
        found[at] = True
        left = np.flatnonzero(~found)
        for segment, own, rows in self._locate(manifest, wanted[left]):
            order = np.argsort(rows)
            out[left[own][order]] = segment.vectors(rows[order])
            found[left[own]] = True
        if not (absent_as_zero or found.all()):
            raise InputError(f"there is no vector with id {int(wanted[~found][0])} in the index")
        return out[inverse]

    def clear(self, db: Connection) -> None:
        """Forgets all vectors without reading any. Their files are removed once no reader can be using them."""
        IndexManifest(db).clear(time.time())

    def forget_segments(self, db: Connection, names: Iterable[str]) -> None:
        """Forgets the vectors of damaged segments without reading them, so that they can be added again."""
        IndexManifest(db).drop_segments(names, time.time())

    def maintain(
        self, write: Write, *, full: bool = False, stop: threading.Event | None = None, progress: Progress | None = None
    ) -> MaintenanceReport:
        """Flushes, trains, splits, merges, measures recall and removes files, in short transactions opened by `write`,
        beside readers and a writer. A kill or `stop` keeps finished steps. `full` goes down to one segment."""
        from edge.ivf.maintenance.maintainer import maintain

        return maintain(self._work(write, full=full, stop=stop, progress=progress))

    def tune(
        self,
        write: Write,
        goal: Goal,
        *,
        questions: Vectors | None = None,
        progress: Progress | None = None,
    ) -> IndexTuning:
        """Chooses parameters for a goal (FANNS: Jiang's thesis, chapter 6), trains the index with them, and records the
        choice. `questions` [q, dim] are of the kind that will be asked; by default they are made from rows.

        An index that was tuned for the same goal at about this size is left as it is, and after an error nothing has
        changed."""
        from edge.planner.tuner import tuned

        with write() as db:
            if IndexManifest(db).state().quantizer:
                raise InputError("this index shares its lists with others, which were trained together")
        given = None if questions is None else checked_queries(questions, self.dim)
        return tuned(self._work(write, progress=progress), goal, given)

    def examine(
        self,
        write: Write,
        use: Callable[[TuningCandidates], object],
        *,
        progress: Progress | None = None,
    ) -> None:
        """Calls `use` with the candidate parameters, their recall and stage costs. Nothing changes; see `tune`."""
        from edge.planner.tuner import examine

        examine(self._work(write, progress=progress), use)

    def install_quantizer(self, write: Write, quantizer: Quantizer) -> Curve:
        """Sorts all vectors into shared lists; returns the recall curve. StorageError during other maintenance."""
        from edge.ivf.maintenance.maintainer import installed

        if quantizer.spec.dim != self.dim:
            raise ConfigError(f"the quantizer is of width {quantizer.spec.dim}, and the vectors of width {self.dim}")
        return installed(self._work(write), quantizer)

    def drawn(self, db: Connection, count: int, seed: int) -> Vectors:
        from edge.ivf.maintenance.training import sample
        from edge.ivf.maintenance.work import VectorSource

        manifest = self._manifest(db)
        sources = [
            VectorSource(segment, manifest.all_deleted_rows(name))
            for name, segment in self._snapshots.segments(manifest).items()
        ]
        none = np.empty((0, self.dim), np.float32)
        return np.concatenate([none, *(vectors for _, vectors in sample(sources, count, seed))])

    def discard(self, write: Write) -> bool:
        """Removes unused files; returns whether all are gone. Only where no transaction may still read them."""
        from edge.ivf.maintenance.maintainer import discard

        return discard(self._work(write))

    def snapshot(self, db: Connection) -> Snapshot:
        """The committed state that `db` sees. Cheap while nothing has changed."""
        return self._snapshots.current(db)

    def search(
        self,
        db: Connection,
        queries: Vectors,
        k: int,
        *,
        nprobe: int | None = None,
        seconds: float | None = None,
        allowed: Ids | None = None,
        window: Lookahead | None = None,
    ) -> Found:
        """The `k` vectors with the largest inner products for each of `queries` [q, dim].

        The number of lists is `nprobe`, or what `seconds` allow once searches were timed, or what the recall target or
        the last tuning need. Under `allowed` (ascending ids) probing goes on until k are found. A `window` ends now."""
        snapshot = self._snapshots.current(db)
        if nprobe is None and seconds is not None:
            nprobe = self._searcher.fitting(snapshot, queries, seconds)
        if nprobe is None:
            nprobe = lists_to_probe(snapshot, self.options.recall_target)
        return self._searcher.search(snapshot, queries, k, nprobe=nprobe, allowed=allowed, window=window)

    def lookahead(
        self,
        db: Connection,
        queries: Vectors,
        *,
        seconds: float | None = None,
        lost: Callable[[float], object] | None = None,
    ) -> Lookahead:
        """Starts fetching the lists of a search for `queries` [q, dim]; more than those only into a further device."""
        snapshot = self._snapshots.current(db)
        nprobe = lists_to_probe(snapshot, self.options.recall_target)
        depth = nprobe if self._searcher.fast is None else None
        return self._searcher.lookahead(snapshot, queries, nprobe=nprobe, seconds=seconds, depth=depth, lost=lost)

    def resident(self, db: Connection) -> npt.NDArray[np.bool_]:
        """For each list [nlist] of the committed state whether it is in memory. Raises as `search` does."""
        return resident(self._snapshots.current(db), self._searcher.tiers)

    def picture(self) -> dict[str, Any]:
        return self._searcher.picture()

    def release_lists(self) -> None:
        self._searcher.release_lists()

    def status(self, db: Connection) -> IndexStatus:
        manifest = IndexManifest(db)
        state = manifest.state()
        training = self._snapshots.training(manifest)
        segments, nbytes = manifest.segment_totals()
        return IndexStatus(
            generation=state.generation,
            rows=state.rows,
            pending=manifest.pending_count(),
            deleted=sum(rows for _, rows in manifest.deleted_stamps().values()),
            lists=len(training.centroids),
            codec=training.codec.spec.name,
            segments=segments,
            nbytes=nbytes,
            recall=state.recall,
            tuned=manifest.tuned(),
        )

    def verify(self, db: Connection, *, read_data: bool) -> Verification:
        """Checks that the stored data is the data that was written; with `read_data`, every byte of it."""
        from edge.ivf.storage.snapshots import verify

        manifest = IndexManifest(db)
        spec = self._snapshots.training(manifest).codec.spec
        # Opened anew, because a segment that is already open does not verify its blocks again.
        segments = OpenSegments(self._segments.folder, self._budget)
        return verify(manifest, spec, segments, self._budget, read_data=read_data)

    def _work(
        self, write: Write, *, full: bool = False, stop: threading.Event | None = None, progress: Progress | None = None
    ) -> Work:
        """One run of maintenance. Its modules are imported here, because a search does without them."""
        from edge.ivf.maintenance.work import Work

        return Work(
            self._snapshots, self._segments, self._codecs, self.options, self._budget, self._trace, write,
            full=full, stop=stop, progress=progress,
        )  # fmt: skip

    def close(self) -> None:
        """Releases all memory and closes the files, except those that snapshots still hold."""
        self._searcher.close()
        self._snapshots.forget()
        self._close_devices()

    def _opened(self, text: str) -> SearchPlace:
        device = open_device(text, self._budget, trace=self._trace)
        self._own_devices.append(device)
        if not isinstance(device, Search):
            raise CapabilityError(f"device {device.name} searches no lists; it can: {', '.join(capabilities(device))}")
        return device

    def _close_devices(self) -> None:
        while self._own_devices:
            self._own_devices.pop().close()

    def _manifest(self, db: Connection) -> IndexManifest:
        manifest = IndexManifest(db)
        self._snapshots.state(manifest)
        return manifest

    def _remove(self, manifest: IndexManifest, ids: Ids, stamp: int) -> int:
        count = manifest.delete_pending(ids)
        for segment, _, rows in self._locate(manifest, ids):
            count += len(manifest.delete_rows(segment.name, np.sort(rows), stamp))
        return count

    def _locate(self, manifest: IndexManifest, ids: Ids) -> Iterator[tuple[IndexSegment, Ids, Ids]]:
        for segment in self._snapshots.segments(manifest).values():
            rows = segment.lookup(ids)
            at = np.flatnonzero(rows >= 0)
            if len(at):
                at = at[~member(manifest.all_deleted_rows(segment.name), rows[at])]
            if len(at):
                yield segment, at, rows[at]

    def _segment_writer(self, manifest: IndexManifest, count: int, stack: ExitStack) -> SegmentWriter | None:
        """The writer of a segment for `count` new rows and the pending ones. None if all of them stay pending."""
        pending, limit = manifest.pending_count(), self.options.pending_limit
        if pending + count <= 2 * limit:
            return None
        from edge.ivf.storage.segment_writer import SegmentWriter, assign_nbytes

        training = self._snapshots.training(manifest)
        joined = pending + count if pending else 0
        nbytes = joined * 4 * self.dim + assign_nbytes(len(training.centroids))
        try:
            stack.enter_context(self._budget.reserve("index writer", nbytes))
            return stack.enter_context(SegmentWriter(self._segments.folder, training.codec.spec, self._budget))
        except BudgetExceeded:
            if pending + count > 3 * limit:
                raise
            return None

    def _write_segment(self, writer: SegmentWriter, manifest: IndexManifest, ids: Ids, vectors: Vectors) -> None:
        from edge.ivf.storage.segment_writer import append_by_list, assign, misfit

        training = self._snapshots.training(manifest)
        lists, scores = assign(vectors, training.centroids)
        append_by_list(writer, training.codec, lists, ids, vectors)
        manifest.add_segment(writer.finish())
        if len(training.centroids) > 1:
            manifest.count_misfit(len(ids), misfit(vectors, scores))

    def _checked_vectors(self, vectors: npt.ArrayLike, count: int) -> Vectors:
        rows = np.ascontiguousarray(vectors, np.float32)
        if rows.shape != (count, self.dim):
            raise InputError(f"{count} ids need vectors of shape ({count}, {self.dim}), not {tuple(rows.shape)}")
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
