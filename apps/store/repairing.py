"""Makes a damaged database again from its readable rows, and reports the actions."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Generic

import numpy as np

from edge.apps.store.checking import CheckReport
from edge.apps.store.database import Database, Migration
from edge.apps.store.failures import translated
from edge.apps.store.folder import log_of
from edge.apps.store.health import Trouble, forget, note
from edge.apps.store.lock import LOCK, WriterLock
from edge.apps.store.overwriting import aside, overwrite, put_aside
from edge.apps.store.rebuilding import BATCH, Made, Source
from edge.apps.store.salvage import Row, Wreck, layout_of, opened
from edge.budget import MemoryBudget
from edge.errors import CorruptBlock, StorageError
from edge.ivf.base import Ids
from edge.ivf.index import VectorIndex
from edge.ivf.storage.connection import Connection
from edge.ivf.storage.manifest import blobs_are_sound

_BESIDE = ("-wal",)
"""Suffixes of the files that are copied with a damaged database."""

_TRIES = 3
_PATIENCE_S = 5.0

_TOGETHER = 500
"""Rows that one transaction writes."""

_INDEX_TABLES = {
    "ivf_codec": ("one", "name", "code_size", "state", "crc"),
    "ivf_lists": ("list", "centroid", "crc"),
    "ivf_segments": ("number", "name", "rows", "nbytes", "parts", "pages", "crc"),
    "ivf_pending": ("id", "stamp", "vector", "crc"),
    "ivf_state": (
        "one", "generation", "stamp", "dim", "rows", "training", "trained_rows", "trained_misfit", "newer_rows",
        "newer_misfit", "recall", "measured_rows", "measured_lists",
    ),
}  # fmt: skip
"""Tables of the vector index with an integer key."""

_TUNING = ("one", "record", "crc")
_MARKS = ("segment", "chunk", "stamp", "rows", "bits")

Fill = Callable[[Wreck, Database], None]


@dataclass(slots=True)
class RepairReport:
    """The result of a repair.

    Attributes:
        actions: in order, each a sentence without its period.
        aside: folder with copies of the damaged files; None if nothing was damaged.
        before, after: results of the checks before and after the repair.
    """

    before: CheckReport
    after: CheckReport
    actions: list[str] = field(default_factory=list)
    aside: Path | None = None

    def to_json(self) -> dict[str, Any]:
        """The report, ready for JSON."""
        return {
            "actions": self.actions,
            "aside": None if self.aside is None else str(self.aside),
            "before": self.before.to_json(),
            "after": self.after.to_json(),
        }


def repair_database(
    path: Path,
    migrations: Sequence[Migration],
    fill: Fill,
    check: Callable[[], CheckReport],
    *,
    budget: MemoryBudget,
    verbs: str,
) -> tuple[CheckReport, Path | None]:
    """Repairs a damaged database while no other process writes, by `make_again`. Raises as it does.

    Args:
        check: checks every stored byte.

    Returns:
        The check before the repair, and the folder with a copy of the damaged files, if there is one.
    """
    kept: Path | None = None
    with WriterLock(path.with_name(LOCK))():
        before = check()
        if before.damaged("database", "texts", "full text"):
            kept = make_again(path, migrations, fill, budget=budget, verbs=verbs)
    return before, kept


def end_damage(db: Connection) -> None:
    """Removes the records of damage that a repair has mended."""
    for kind in ("damaged", "missing vectors"):
        forget(db, kind)


def make_again(path: Path, migrations: Sequence[Migration], fill: Fill, *, budget: MemoryBudget, verbs: str) -> Path:
    """Replaces a damaged database by a new one, which `fill` writes; returns the folder with a copy of the damaged one.
    A kill at any moment leaves either the old or the new database.

    Raises:
        StorageError: the disk refuses, has no room for two more copies, or another process keeps writing.
        BudgetExceeded: the limit is too small.
    """
    try:
        with translated(path, verbs, _PATIENCE_S):
            for _ in range(_TRIES):
                state = _state(path)
                copy = put_aside(path, _BESIDE)
                with tempfile.TemporaryDirectory(dir=copy.parent) as folder:
                    draft = Path(folder) / path.name
                    with Database(draft, migrations, budget=budget, verbs=verbs) as new:
                        with new.read() as db:
                            layout = layout_of(db)
                        with opened(copy, layout) as wreck:
                            fill(wreck, new)
                        new.settle()
                    if overwrite(path, draft, verbs=verbs, ready=partial(_is_as, path, state)):
                        return copy.parent
                shutil.rmtree(copy.parent)  # another process has written meanwhile
    except OSError as error:
        raise StorageError(f"{path} cannot be repaired: {error.strerror}") from error
    raise StorageError(f"other processes keep writing to {path}; try again when they are done")


def _state(path: Path) -> list[tuple[int, int]]:
    """Size and time of the files of a database. Our own programs do not write while it is repaired; another program
    that commits changes them."""
    files = [file.stat() for file in (path, log_of(path)) if file.exists()]
    return [(stat.st_size, stat.st_mtime_ns) for stat in files if stat.st_size]


def _is_as(path: Path, state: list[tuple[int, int]]) -> bool:
    return _state(path) == state


def bring_index(wreck: Wreck, new: Database) -> bool:
    """Copies the tables of a vector index if every row is readable and undamaged; returns whether it copied them."""
    tables = {name: list(wreck.rows(name, columns)) for name, columns in _INDEX_TABLES.items()}
    marks = wreck.small("ivf_deleted", _MARKS)
    retired = wreck.small("ivf_retired", ("name", "at"))
    # A lost record, or that of an index which was never tuned, leaves the parameters that any index has.
    tuning = list(filter(blobs_are_sound, wreck.small("ivf_tuning", _TUNING)))
    names = (*_INDEX_TABLES, "ivf_deleted")
    if any(wreck.lost[name] for name in names) or len(tables["ivf_state"]) != 1:
        return False
    for name in names:
        if "crc" in _INDEX_TABLES.get(name, ()) and not all(map(blobs_are_sound, tables[name])):
            return False
    with new.write() as db:
        db.execute("DELETE FROM ivf_state").fetchall()
        for name, rows in tables.items():
            _insert(db, name, _INDEX_TABLES[name], rows)
        _insert(db, "ivf_deleted", _MARKS, marks)
        _insert(db, "ivf_retired", ("name", "at"), retired)
        _insert(db, "ivf_tuning", _TUNING, tuning)
    return True


def in_batches(rows: Iterable[Row]) -> Iterable[list[Row]]:
    """Splits rows into lists, one for each transaction."""
    left = iter(rows)
    while some := list(islice(left, _TOGETHER)):
        yield some


class Mending(Generic[Made]):
    """Makes unreadable vectors again, and deletes vectors whose texts are gone."""

    def __init__(
        self,
        database: Database,
        index: VectorIndex,
        source: Source[Made],
        folder: Path,
        rebuild: Callable[[], int],
    ) -> None:
        """Stores the arguments.

        Args:
            source: the rows that the vectors are made from.
            folder: the folder of the segments.
            rebuild: makes all vectors again and returns how many.
        """
        self._database = database
        self._index = index
        self._source = source
        self._folder = folder
        self._rebuild = rebuild

    def __call__(self, expected: Ids, kept: Path | None, what: str, actions: list[str]) -> Path | None:
        """Mends the index; returns the folder with copies of the damaged files.

        Args:
            expected: ids that should have a vector, ascending.
            kept: that folder if it exists already.
            what: a plural for the rows that have vectors, such as `passages`.
        """
        problems, segments, ids = self._verified()
        if segments:
            kept = self._put_aside(segments, kept)
            with self._database.write() as db:
                self._index.forget_segments(db, segments)
                said = f"some {what} have no vector, because a repair was interrupted"
                note(db, Trouble("missing vectors", said, f"{self._database.verbs} repair"))
            problems, _, ids = self._verified()
        if problems:
            actions.append(f"vectors of {what} made again: {self._rebuild():,}")
            return kept
        extra, missing = np.setdiff1d(ids, expected), np.setdiff1d(expected, ids)
        if len(extra):
            with self._database.write() as db:
                self._index.delete(db, extra)
            actions.append(f"vectors of {what} that are gone, removed: {len(extra):,}")
        for start in range(0, len(missing), BATCH):
            some = missing[start : start + BATCH].tolist()
            with self._database.read() as db:
                rows = [row for one in some for row in self._source.rows(db, one - 1, 1) if row[0] == one]
            vectors = self._source.vectors([made_from for _, made_from in rows])
            with self._database.write() as db:
                self._index.add(db, np.array([one for one, _ in rows], np.int64), vectors)
        if len(missing):
            actions.append(f"vectors of {what} made again: {len(missing):,}")
        return kept

    def _verified(self) -> tuple[Sequence[str], Sequence[str], Ids]:
        """The problems of the index, its damaged segments, and the ids whose vectors are sound."""
        with self._database.read() as db:
            try:
                found = self._index.verify(db, read_data=True)
            except (StorageError, CorruptBlock) as error:
                return (str(error),), (), np.empty(0, np.int64)
        return found.problems, found.segments, np.empty(0, np.int64) if found.ids is None else found.ids

    def _put_aside(self, names: Iterable[str], kept: Path | None) -> Path:
        target = kept or aside(self._folder.parent)
        for name in names:
            source = self._folder / name
            try:
                if source.exists():
                    shutil.copy2(source, target / name)
            except OSError as error:
                raise StorageError(f"{source} cannot be copied to {target}: {error.strerror}") from error
        return target


def _insert(db: Connection, table: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
    marks = ", ".join("?" * len(columns))
    db.executemany(f"INSERT INTO {table}({', '.join(columns)}) VALUES ({marks})", rows)
