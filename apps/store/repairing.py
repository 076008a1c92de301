"""Making a database again from what can be read of it, and telling what was done."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Generic

import apsw
import numpy as np

from edge.apps.store.checking import CheckReport
from edge.apps.store.connecting import plain
from edge.apps.store.database import Database, Migration
from edge.apps.store.failures import is_refusal, translated
from edge.apps.store.health import Trouble, note
from edge.apps.store.overwriting import aside, overwrite, put_aside
from edge.apps.store.rebuilding import BATCH, Made, Source
from edge.apps.store.salvage import Row, Wreck, opened
from edge.budget import MemoryBudget
from edge.connection import Connection
from edge.errors import CorruptBlock, StorageError
from edge.ivf.base import Ids
from edge.ivf.index import VectorIndex
from edge.ivf.manifest import blobs_are_sound

_BESIDE = ("-wal", "-mark", "-schema")
"""What is kept of the files beside a damaged database."""

_TRIES = 3
_PATIENCE_S = 5.0

_TOGETHER = 500
"""Rows that are written in one transaction."""

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

_MARKS = ("segment", "chunk", "stamp", "rows", "bits")

Fill = Callable[[Wreck, Database], None]


@dataclass(slots=True)
class RepairReport:
    """What a repair has done.

    Attributes:
        actions: in their order, each a sentence without its end.
        aside: where copies of what was damaged lie; None if nothing was.
        before, after: what a check found.
    """

    before: CheckReport
    after: CheckReport
    actions: list[str] = field(default_factory=list)
    aside: Path | None = None

    def to_json(self) -> dict[str, Any]:
        """The figures by name."""
        return {
            "actions": self.actions,
            "aside": None if self.aside is None else str(self.aside),
            "before": self.before.to_json(),
            "after": self.after.to_json(),
        }


def make_again(path: Path, migrations: Sequence[Migration], fill: Fill, *, budget: MemoryBudget, verbs: str) -> Path:
    """Puts a new database with what `fill` brings over in the place of a damaged one; returns the folder in which a
    copy of that lies. Killed at any moment, it leaves either of the two.

    Raises:
        StorageError: the disk refuses, has no room for two more copies, or another process keeps writing.
        BudgetExceeded: the limit is too small.
    """
    try:
        with translated(path, verbs, _PATIENCE_S):
            for _ in range(_TRIES):
                number = _commits(path)
                copy = put_aside(path, _BESIDE)
                with tempfile.TemporaryDirectory(dir=copy.parent) as folder:
                    draft = Path(folder) / path.name
                    with opened(copy) as wreck, Database(draft, migrations, budget=budget, verbs=verbs) as new:
                        fill(wreck, new)
                        new.settle()
                    if overwrite(path, draft, verbs=verbs, unchanged=_Unchanged(path, number)):
                        return copy.parent
                shutil.rmtree(copy.parent)  # others have written meanwhile
    except OSError as error:
        raise StorageError(f"{path} cannot be repaired: {error.strerror}") from error
    raise StorageError(f"other processes keep writing to {path}; try again when they are done")


@dataclass(frozen=True, slots=True)
class _Unchanged:
    """Whether nobody has written to a database since."""

    path: Path
    number: int | None

    def __call__(self) -> bool:
        # Every commit counts itself. Where the number cannot be read, nobody can commit.
        return self.number is None or self.number == _commits(self.path)


def _commits(path: Path) -> int | None:
    """The number of the last commit, where that can be read."""
    try:
        db = plain(path)
        try:
            row: Any = db.execute("SELECT number FROM commits").fetchall()[0]
            return int(row[0])
        finally:
            db.close(True)
    except (apsw.Error, IndexError) as error:
        if is_refusal(error):
            raise
        return None


def bring_index(wreck: Wreck, new: Database) -> bool:
    """Copies the tables of a vector index, if every row of them can be read and is what was written."""
    tables = {name: list(wreck.rows(name, columns)) for name, columns in _INDEX_TABLES.items()}
    marks = wreck.small("ivf_deleted", _MARKS)
    retired = wreck.small("ivf_retired", ("name", "at"))
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
    return True


def in_batches(rows: Iterable[Row]) -> Iterable[list[Row]]:
    """Rows in lists for one transaction each."""
    left = iter(rows)
    while some := list(islice(left, _TOGETHER)):
        yield some


class Mending(Generic[Made]):
    """Makes vectors again that cannot be read, and drops those of texts that are gone."""

    def __init__(
        self,
        database: Database,
        index: VectorIndex,
        source: Source[Made],
        folder: Path,
        rebuild: Callable[[], int],
    ) -> None:
        """Prepares it.

        Args:
            source: what the vectors are made from.
            folder: of the segments.
            rebuild: makes all vectors again.
        """
        self._database = database
        self._index = index
        self._source = source
        self._folder = folder
        self._rebuild = rebuild

    def __call__(self, expected: Ids, kept: Path | None, what: str, actions: list[str]) -> Path | None:
        """Mends the index; returns the folder that has copies of what was damaged.

        Args:
            expected: ids that have a vector, ascending.
            kept: that folder, if there is one.
            what: the things that have vectors.
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
            actions.append(f"the vectors of {self._rebuild():,} {what} were made again")
            return kept
        extra, missing = np.setdiff1d(ids, expected), np.setdiff1d(expected, ids)
        if len(extra):
            with self._database.write() as db:
                self._index.delete(db, extra)
            actions.append(f"{len(extra):,} vectors of {what} that are gone were removed")
        for start in range(0, len(missing), BATCH):
            some = missing[start : start + BATCH].tolist()
            with self._database.read() as db:
                rows = [row for one in some for row in self._source.rows(db, one - 1, 1) if row[0] == one]
            vectors = self._source.vectors([made_from for _, made_from in rows])
            with self._database.write() as db:
                self._index.add(db, np.array([one for one, _ in rows], np.int64), vectors)
        if len(missing):
            actions.append(f"the vectors of {len(missing):,} {what} were made again")
        return kept

    def _verified(self) -> tuple[Sequence[str], Sequence[str], Ids]:
        """What is wrong with the index, the segments that are damaged, and the ids whose vectors are sound."""
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
