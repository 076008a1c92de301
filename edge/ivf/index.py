"""`VectorIndex`: a tiered IVF index inside somebody else's SQLite database, and a folder of segments beside it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType

import numpy.typing as npt

from edge.budget import MemoryBudget
from edge.connection import Connection
from edge.errors import CapabilityError, InputError
from edge.ivf.base import Codecs, Found, Ids, IndexOptions, IndexStatus, MaintenanceReport, Snapshot, Vectors
from edge.ivf.device import Place, Search, SearchPlace
from edge.ivf.maintenance import Maintainer
from edge.ivf.manifest import MIGRATIONS, Manifest
from edge.ivf.opening import capabilities, open_device
from edge.ivf.search import Searcher
from edge.ivf.segments import OpenSegments
from edge.ivf.snapshots import Snapshots
from edge.ivf.verification import Verification, verify
from edge.ivf.work import Progress, Write
from edge.ivf.writer import Writer
from edge.lookahead import Lookahead
from edge.plugins import load
from edge.trace import Trace

__all__ = ["IndexOptions", "VectorIndex"]


class VectorIndex:
    """Inner-product search over float32 vectors with int64 ids. Thread-safe: many readers, one writer, one maintainer.

    The caller owns the database (tables `ivf_*`, see `migrations`) and its transactions; a change is seen when the
    caller has committed it, and a kill at any moment leaves what was committed last. Several processes may open the
    same index.

    >>> with database.write() as db:
    ...     index.add(db, np.array([1, 2]), vectors)
    >>> index.maintain(database.write)
    >>> with database.read() as db:
    ...     found = index.search(db, queries, 10)
    """

    def __init__(
        self,
        directory: Path,
        dim: int,
        *,
        budget: MemoryBudget,
        trace: Trace | None = None,
        device: SearchPlace | None = None,
        fast: SearchPlace | None = None,
        places: Sequence[SearchPlace] = (),
        search_on: str = "",
        codecs: Codecs | None = None,
        options: IndexOptions | None = None,
        threads: int = 0,
    ) -> None:
        """Opens nothing yet: files are opened by what needs them.

        Args:
            directory: folder of the segments; made when the first is written.
            dim: width of the vectors.
            device: where lists are scanned; the host if not given. It stays the caller's.
            fast: a second device, filled by `lookahead` alone.
            places: further devices that hold and search lists, the fastest first. They stay the caller's.
            search_on: a further device by name and options, as `--device` takes them; opened and closed here.
            codecs: the library that trains and codes; faiss if not given.
            threads: of training; 0 takes all cores this process may use.

        Raises:
            InputError: `dim` is below 1.
            CapabilityError: a device or the codecs are not installed, or the device searches no lists.
            ConfigError, DeviceLost: the device cannot be opened.
            BudgetExceeded: the codecs' library does not fit.
        """
        if dim < 1:
            raise InputError(f"vectors have at least one component, not {dim}")
        self.dim = dim
        self.options = options or IndexOptions()
        self._trace = trace or Trace()
        self._own_devices: list[Place] = []
        if codecs is None:
            default = load("edge.codecs", "faiss")(threads=threads)
            budget.hold_libraries(default.libraries)
            codecs = default
        segments = OpenSegments(directory, budget)
        self._folder = directory
        self._budget = budget
        self._snapshots = Snapshots(segments, codecs, dim, budget)
        self._writer = Writer(self._snapshots, segments, self.options, budget)
        self._maintainer = Maintainer(self._snapshots, segments, codecs, self.options, budget, self._trace)
        try:
            host = device or self._opened("cpu")
            others = [*places, *([self._opened(search_on)] if search_on not in ("", "cpu") else [])]
            self._searcher = Searcher(host, fast=fast, places=others, trace=self._trace)
        except BaseException:
            self._close_devices()
            raise

    @staticmethod
    def migrations() -> list[str | Callable[[Connection], None]]:
        """Its tables, step by step, as SQL or as a function; the owner of the database appends it to its own."""
        return list(MIGRATIONS)

    def add(self, db: Connection, ids: npt.ArrayLike, vectors: npt.ArrayLike) -> None:
        """Adds `vectors` [n, dim] under `ids` [n]; an id that exists is replaced. Few rows go into a table of `db` and
        touch no file; many become a segment at once.

        Raises:
            InputError: ids are negative, twice the same, or not as many as vectors; a vector has the wrong width or is
                not finite; `db` is not inside a transaction.
            ConfigError: the index holds vectors of another width.
            BudgetExceeded, StorageError: a segment cannot be written; the caller rolls back.
        """
        self._writer.add(db, ids, vectors)

    def delete(self, db: Connection, ids: npt.ArrayLike) -> int:
        """Removes vectors; returns how many of `ids` [n] there were.

        Raises:
            InputError: ids are negative or twice the same; `db` is not inside a transaction.
        """
        return self._writer.delete(db, ids)

    def clear(self, db: Connection) -> None:
        """Forgets all vectors without reading any; their files go when nobody can be reading them any more.

        Raises:
            InputError: `db` is not inside a transaction.
        """
        Manifest(db).clear(time.time())

    def forget_segments(self, db: Connection, names: Iterable[str]) -> None:
        """Forgets the vectors of some segments without reading them: of damaged ones, whose vectors are added again.

        Raises:
            InputError: `db` is not inside a transaction.
        """
        Manifest(db).drop_segments(names, time.time())

    def vectors(self, db: Connection, ids: npt.ArrayLike, *, absent_as_zero: bool = False) -> Vectors:
        """The stored vectors [n, dim] of `ids` [n], in that order.

        Args:
            absent_as_zero: the row of an id that is not in the index is zero.

        Raises:
            InputError: an id is not in the index, unless `absent_as_zero`.
            CorruptBlock, StorageError: a segment cannot be read.
        """
        return self._writer.vectors(db, ids, absent_as_zero=absent_as_zero)

    def maintain(
        self,
        write: Write,
        *,
        full: bool = False,
        stop: threading.Event | None = None,
        progress: Progress | None = None,
    ) -> MaintenanceReport:
        """Keeps the index in order: moves pending rows to segments, trains when it has outgrown its lists or drifted
        from them, splits large lists, merges segments, leaves out what was deleted, measures recall, removes files.
        In short transactions of its own; safe to kill at any point, beside readers and a writer.

        Args:
            write: opens a write transaction (`Database.write`).
            full: everything, down to one segment without deleted rows.
            stop: ends it as soon as possible when set; what is done stays.
            progress: called with a stage's name, rows done and rows in all.

        Raises:
            BudgetExceeded, CorruptBlock, StorageError: a step cannot be done; what was done before stays, and nothing
                is lost.
        """
        return self._maintainer.run(write, full=full, stop=stop, progress=progress)

    def discard(self, write: Write) -> int:
        """Removes the files that are out of use at once; returns how many. `maintain` keeps them for a minute, because
        transactions of other processes may still read them: call this only where there are none (`Database.vacuum`).

        Raises:
            StorageError: the folder cannot be read.
        """
        return self._maintainer.discard(write)

    def snapshot(self, db: Connection) -> Snapshot:
        """The state `db` sees. Cheap while nothing has changed.

        Raises: as `search`.
        """
        return self._snapshots.current(db)

    def search(
        self,
        db: Connection,
        queries: Vectors,
        k: int,
        *,
        nprobe: int | None = None,
        recall: float | None = None,
        seconds: float | None = None,
        allowed: Ids | None = None,
        window: Lookahead | None = None,
    ) -> Found:
        """The `k` vectors with the largest inner products for each of `queries` [q, dim].

        Args:
            nprobe: lists to probe; if not given, as many as reached `recall` (or the options' target) when that was
                measured on this collection's own vectors.
            seconds: as many lists instead as can probably be searched in this time, at least one (see
                `Searcher.fitting`); until it is known how long searches take, `recall` counts.
            allowed: ids that may be returned, ascending. Probing then goes on until k are found or no list is left.
            window: a lookahead whose time is over now.

        Raises:
            InputError: shapes do not fit, or k, nprobe or recall are out of range.
            ConfigError: the index holds vectors of another width.
            BudgetExceeded: the limit is too small even for one query.
            CorruptBlock, StorageError: a segment cannot be read.
        """
        snapshot = self._snapshots.current(db)
        if nprobe is None and seconds is not None:
            nprobe = self._searcher.fitting(snapshot, queries, seconds)
        if nprobe is None:
            nprobe = choose_nprobe(snapshot, self.options.recall_target if recall is None else recall)
        return self._searcher.search(snapshot, queries, k, nprobe=nprobe, allowed=allowed, window=window)

    def lookahead(
        self, db: Connection, queries: Vectors, *, nbytes: int | None = None, seconds: float | None = None
    ) -> Lookahead:
        """Starts fetching what queries near `queries` [q, dim] will need; see `Searcher.lookahead`. Raises as `search`
        does."""
        snapshot = self._snapshots.current(db)
        nprobe = choose_nprobe(snapshot, self.options.recall_target)
        return self._searcher.lookahead(snapshot, queries, nprobe=nprobe, nbytes=nbytes, seconds=seconds)

    def release_lists(self) -> None:
        """Gives back the memory of all lists that no search or lookahead is using."""
        self._searcher.release_lists()

    def status(self, db: Connection) -> IndexStatus:
        """The state of the index in numbers.

        Raises:
            ConfigError: the index holds vectors of another width.
        """
        manifest = Manifest(db)
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
        )

    def verify(self, db: Connection, *, read_data: bool) -> Verification:
        """Looks whether what is stored is what was written; at every byte of it with `read_data`.

        Raises:
            ConfigError: the index holds vectors of another width.
            CorruptBlock: the centroids or the codec are damaged.
            BudgetExceeded: a block does not fit the memory limit.
        """
        manifest = Manifest(db)
        spec = self._snapshots.training(manifest).codec.spec
        # Opened anew: a block that was read before is not verified again.
        segments = OpenSegments(self._folder, self._budget)
        return verify(manifest, spec, segments, self._budget, read_data=read_data)

    def close(self) -> None:
        """Gives all memory back and closes the files, except what snapshots still hold."""
        self._searcher.close()
        self._snapshots.forget()
        self._close_devices()

    def _opened(self, name: str) -> SearchPlace:
        """A device of its own, which `close` closes."""
        device = open_device(name, self._budget, trace=self._trace)
        self._own_devices.append(device)
        if not isinstance(device, Search):
            raise CapabilityError(f"device {device.name} searches no lists; it can: {', '.join(capabilities(device))}")
        return device

    def _close_devices(self) -> None:
        while self._own_devices:
            self._own_devices.pop().close()

    def __enter__(self) -> VectorIndex:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def choose_nprobe(snapshot: Snapshot, recall: float) -> int:
    """The fewest lists that reached `recall` when that was measured, or the highest recall that was; all lists where
    nothing was measured.

    Raises:
        InputError: `recall` is not between 0 and 1.
    """
    if not 0 < recall <= 1:
        raise InputError(f"recall is above 0 and at most 1, not {recall}")
    return probed(snapshot.recall, recall)[0] if snapshot.recall else snapshot.nlist


def probed(curve: Sequence[tuple[int, float]], recall: float) -> tuple[int, float]:
    """The first point (lists, recall@10) of a measured curve, ascending, that reaches `recall`; else the first that
    reaches the highest recall of all."""
    wanted = min(recall, curve[-1][1])
    return next(point for point in curve if point[1] >= wanted)
