"""Checks a store for damage, and repairs it: the database, its rows, the full-text index and the vectors."""

from __future__ import annotations

import shutil
import tempfile
import time
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, cast

import apsw
import numpy as np

from edge.apps.store.backup import Store, aside, overwrite, put_aside
from edge.apps.store.connections import CONNECTION_BYTES, LOCK, PAGE_CACHE, WriterLock, connect
from edge.apps.store.database import Database, Migration
from edge.apps.store.failures import Health, StoreUnavailable, forget, note, translated
from edge.apps.store.folder import SEGMENTS, log_of, reading_uri
from edge.apps.store.rebuilding import BATCH, Progress, Source
from edge.apps.store.rows import Row, Table
from edge.apps.store.salvage import Wreck, layout_of
from edge.apps.store.salvage import opened as opened_wreck
from edge.budget import MemoryBudget, OperationPlan, OperationStage
from edge.config import counted
from edge.errors import CorruptBlock, EdgeError, StorageError, as_storage_error
from edge.ivf.base import Connection, Ids
from edge.ivf.index import VectorIndex
from edge.ivf.storage.manifest import blobs_are_sound
from edge.resident import anonymous_resident

_NAMED = 20

_READING = 3 << 20

_CODECS = ("faiss",)

_PER_TEXT = 128

_SMALLEST_ROW = 64

_LEAST_CACHE = 64 << 10


@dataclass(frozen=True, slots=True)
class Finding:
    part: str
    text: str
    items: tuple[str, ...] = ()


@dataclass(slots=True)
class CheckReport:
    path: Path
    read_data: bool
    findings: list[Finding] = field(default_factory=list)
    nbytes: int = 0
    seconds: float = 0.0

    @property
    def sound(self) -> bool:
        return not self.findings

    def damaged(self, *parts: str) -> bool:
        return any(finding.part in parts for finding in self.findings)

    def add(self, part: str, text: str, items: Iterable[str] = ()) -> None:
        names = sorted(set(items))
        more = len(names) - _NAMED
        self.findings.append(Finding(part, text, (*names[:_NAMED], *([f"... and {more:,} more"] if more > 0 else []))))

    def to_json(self) -> dict[str, Any]:
        return {
            "path": str(self.path),
            "sound": self.sound,
            "read_data": self.read_data,
            "findings": [asdict(finding) for finding in self.findings],
            "bytes": self.nbytes,
            "seconds": self.seconds,
        }


@dataclass(frozen=True, slots=True)
class OpenedStore:
    """An open store, as it is checked and repaired. `index` is None before the first text; `rebuild` makes all vectors
    again; `read_again` restores lost rows from their source, and returns sentences about that."""

    database: Database
    index: Callable[[], VectorIndex | None]
    health: Callable[[], Health]
    source: Source[Any]
    rebuild: Callable[..., int]
    read_again: Callable[[], list[str]] = list


class StoreCare(ABC):
    noun: tuple[str, str]
    full_text: str

    def __init__(self, place: Store) -> None:
        self.place = place

    @property
    def path(self) -> Path:
        return self.place.path / self.place.database

    @abstractmethod
    def opened(self, *, writable: bool) -> AbstractContextManager[OpenedStore]:
        """Opens it, as its commands do."""

    @abstractmethod
    def check_rows(self, report: CheckReport, wreck: Wreck) -> Ids:
        """Adds findings about the rows; returns the ids that full text and vectors should have, ascending."""

    @abstractmethod
    def vector_ids(self, db: Connection) -> Ids:
        """The ids of the rows that have vectors, ascending, in an undamaged database."""

    def named(self, db: Connection, ids: Sequence[int]) -> Iterable[str]:
        """Names of files, for a finding."""
        return ()

    @abstractmethod
    def bring(self, wreck: Wreck, new: Database) -> tuple[str, list[str]]:
        """Copies the proved rows of a damaged database. Returns their number as a text, and sentences about lost
        rows."""

    def keeps(self, setting: str) -> bool:
        return setting != "rebuilding"


def check(care: StoreCare, *, read_data: bool = False, noting: bool = True) -> CheckReport:
    """Checks everything that is stored; every byte with `read_data`. With `noting` damage is recorded in the store."""
    started = time.perf_counter()
    report = CheckReport(care.place.path, read_data)
    noted = True
    try:
        report.nbytes = care.path.stat().st_size
    except OSError as error:
        report.add("database", f"{care.path} cannot be read: {error.strerror}")
    try:
        with care.opened(writable=False) as opened:
            with opened.database.read() as db:
                _check_tables(report, db, care)
                ids = care.check_rows(report, Wreck(cast(apsw.Connection, db), report.nbytes))
                _check_full_text(report, db, care.full_text, ids)
                kinds = {trouble.kind for trouble in opened.health()}
                index = opened.index()
                if index is not None:
                    _check_vectors(report, db, index, None if "rebuilding" in kinds else ids, care)
            noted = "damaged" in kinds
    except StoreUnavailable:
        raise
    except StorageError as error:
        report.add("database", str(error).split("; `")[0])
    if noting and not report.sound and not noted:
        with suppress(EdgeError), care.opened(writable=True) as opened, opened.database.write() as db:
            note(db, "damaged")
    report.seconds = time.perf_counter() - started
    return report


def _check_tables(report: CheckReport, db: Connection, care: StoreCare) -> None:
    pragma = "integrity_check" if report.read_data else "quick_check"
    try:
        found = [str(row[0]) for row in db.execute(f"PRAGMA {pragma}({_NAMED})")]
    except (apsw.CorruptError, apsw.IOError) as error:
        found = [f"{care.path} cannot be read through ({error})"]
    for text in found:
        if text != "ok":
            report.add("database", text.strip().replace("\n", " "))


def _check_full_text(report: CheckReport, db: Connection, table: str, expected: Ids) -> None:
    try:
        rows = array("q", (row[0] for row in db.execute(f"SELECT id FROM {table}_docsize ORDER BY id")))
    except (apsw.CorruptError, apsw.IOError) as error:
        report.add("full text", f"the full text cannot be read ({error})")
        return
    have = np.frombuffer(rows, np.int64)
    wrong = len(np.setxor1d(have, expected))
    if wrong:
        report.add("full text", f"the full text has {counted(wrong, 'text')} too many or too few")


def _check_vectors(
    report: CheckReport, db: Connection, index: VectorIndex, expected: Ids | None, care: StoreCare
) -> None:
    """`expected` is None while a rebuild is under way."""
    try:
        found = index.verify(db, read_data=report.read_data)
    except (CorruptBlock, StorageError) as error:
        report.add("vectors", str(error).split("; `")[0])
        return
    report.nbytes += found.nbytes
    for problem in found.problems:
        report.add("vectors", problem)
    if found.ids is None or expected is None:
        return
    extra = np.setdiff1d(found.ids, expected)
    if len(extra):
        report.add("vectors", f"{counted(len(extra), 'vector')} of no text")
    missing = np.setdiff1d(expected, found.ids).tolist()
    if missing:
        what = f"{counted(len(missing), *care.noun)} without a vector that can be read"
        report.add("vectors", what, care.named(db, missing))


def checking_budget(limit: int, path: Path, table: str, repair: OperationPlan | None = None) -> MemoryBudget:
    """The budget for a check, or for a repair, which begins with one; made before the database is opened. A limit that
    is too small for the check is told that of the repair."""
    opening = OperationStage("opening the database", kept=PAGE_CACHE + CONNECTION_BYTES)
    own = _READING + _PER_TEXT * _rows(path, table)
    plan = OperationPlan("the check", (opening, OperationStage("reading what is stored", own=own, libraries=_CODECS)))
    held = anonymous_resident()
    if held + plan.nbytes > limit:
        raise max(plan, repair or plan, key=lambda plan: plan.nbytes).refusal(limit, held)
    return MemoryBudget(limit)


def _rows(path: Path, table: str) -> int:
    try:
        db = connect(reading_uri(path), writable=False, cache=_LEAST_CACHE, busy_seconds=1.0)
        try:
            return int(db.execute(f"SELECT max(id) FROM {table}").fetchall()[0][0] or 0)
        finally:
            db.close(True)
    except (apsw.Error, OSError):  # damaged, or another process is replacing it: estimate from the file's size
        return path.stat().st_size // _SMALLEST_ROW if path.exists() else 0


_TRIES = 3
_PATIENCE_S = 5.0

_TOGETHER = 500

Fill = Callable[[Wreck, Database], None]


@dataclass(slots=True)
class RepairReport:
    before: CheckReport
    after: CheckReport
    actions: list[str] = field(default_factory=list)
    aside: Path | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "actions": self.actions,
            "aside": None if self.aside is None else str(self.aside),
            "before": self.before.to_json(),
            "after": self.after.to_json(),
        }


def repair(care: StoreCare, *, budget: MemoryBudget, progress: Progress | None = None) -> RepairReport:
    """Checks every stored byte, and repairs damage. Copies of the damaged files are kept."""
    place = care.place
    kept: Path | None = None
    actions: list[str] = []

    def fill(wreck: Wreck, new: Database) -> None:
        actions[:] = _bring(care, wreck, new)  # anew, if another process has written meanwhile

    with WriterLock(care.path.with_name(LOCK))():
        before = check(care, read_data=True, noting=False)
        if before.damaged("database", "texts", "full text"):
            kept = make_again(care.path, place.migrations, fill, budget=budget, verbs=place.verbs)
    with care.opened(writable=True) as opened:
        kept = _mend_vectors(care, opened, kept, actions, progress)
        actions += opened.read_again()
        with opened.database.write() as db:
            for kind in ("damaged", "missing vectors"):
                forget(db, kind)
    after = check(care, read_data=True)
    return RepairReport(before, after, actions, kept)


def make_again(path: Path, migrations: Sequence[Migration], fill: Fill, *, budget: MemoryBudget, verbs: str) -> Path:
    """Replaces a damaged database by a new one, which `fill` writes; returns the folder with a copy of the damaged one.
    A kill at any moment leaves either of them."""
    with as_storage_error(f"{path} cannot be repaired"), translated(path, verbs, _PATIENCE_S):
        for _ in range(_TRIES):
            state = _state(path)
            copy = put_aside(path)
            with tempfile.TemporaryDirectory(dir=copy.parent) as folder:
                draft = Path(folder) / path.name
                with Database(draft, migrations, budget=budget, verbs=verbs) as new:
                    new.settle()
                    with opened_wreck(copy, draft) as wreck:
                        fill(wreck, new)
                    new.settle()
                if overwrite(path, draft, verbs=verbs, ready=partial(_is_as, path, state)):
                    return copy.parent
            shutil.rmtree(copy.parent)  # another process has written meanwhile
    raise StorageError(f"other processes keep writing to {path}; try again when they are done")


def _state(path: Path) -> list[tuple[int, int]]:
    """Size and time of the files of a database: another program that commits changes them."""
    files = [file.stat() for file in (path, log_of(path)) if file.exists()]
    return [(stat.st_size, stat.st_mtime_ns) for stat in files if stat.st_size]


def _is_as(path: Path, state: list[tuple[int, int]]) -> bool:
    return _state(path) == state


def _bring(care: StoreCare, wreck: Wreck, new: Database) -> list[str]:
    """Returns sentences about what was copied."""
    settings = [row for row in wreck.small("settings", ("name", "value")) if care.keeps(row[0])]
    with new.write() as db:
        db.executemany("INSERT OR REPLACE INTO settings VALUES (?, ?)", settings)
    held, said = care.bring(wreck, new)
    said.insert(0, f"a new database holds {held} of the damaged one")
    index = any(row[0] == "embedder" for row in settings) and _bring_index(wreck, new)
    with new.write() as db:
        if not index and len(care.vector_ids(db)):
            db.execute("INSERT OR REPLACE INTO settings VALUES ('rebuilding', '0')")
            said.append("all vectors are made again")
    return said


def bring_rows(
    wreck: Wreck,
    new: Database,
    table: Table,
    *,
    wanted: Callable[[Connection, Row], bool] = lambda db, row: True,
    written: Callable[[Connection, list[Row]], None] = lambda db, rows: None,
    empty: str = "",
) -> tuple[int, int]:
    """Copies the rows of a table that are proved, and that the new table accepts. Returns how many, and how many were
    read that are not what was stored."""
    brought = wrong = 0
    chosen = [name for name in table.columns if name != empty]
    places = [table.columns.index(name) for name in chosen]
    insert = f"INSERT INTO {table.name}({', '.join(chosen)}) VALUES ({', '.join('?' * len(chosen))})"
    left = wreck.rows(table.name, table.columns)
    while some := list(islice(left, _TOGETHER)):
        with new.write() as db:
            copied: list[Row] = []
            for row in some:
                if not table.proves(row):
                    wrong += 1
                elif wanted(db, row):
                    with suppress(apsw.ConstraintError):
                        db.execute(insert, [row[place] for place in places])
                        copied.append(row)
            written(db, copied)
        brought += len(copied)
    return brought, wrong


def _bring_index(wreck: Wreck, new: Database) -> bool:
    """Copies the tables of a vector index if every row is readable and undamaged; returns whether it copied them."""
    with new.read() as db:
        layout = layout_of(db).items()
    # A row's checksum comes last.
    tables = {name: sorted(columns, key="crc".__eq__) for name, columns in layout if name.startswith("ivf_")}
    rows = {name: wreck.small(name, columns) for name, columns in tables.items()}
    # A lost record, or that of an index which was never tuned, leaves the parameters that any index has.
    rows["ivf_tuning"] = list(filter(blobs_are_sound, rows["ivf_tuning"]))
    needed = rows.keys() - {"ivf_retired", "ivf_tuning"}
    if any(wreck.lost[name] for name in needed) or len(rows["ivf_state"]) != 1:
        return False
    if not all(blobs_are_sound(row) for name in needed if "crc" in tables[name] for row in rows[name]):
        return False
    with new.write() as db:
        db.execute("DELETE FROM ivf_state")
        for name, columns in tables.items():
            marks = ", ".join("?" * len(columns))
            db.executemany(f"INSERT INTO {name}({', '.join(columns)}) VALUES ({marks})", rows[name])
    return True


def _mend_vectors(
    care: StoreCare, opened: OpenedStore, kept: Path | None, actions: list[str], progress: Progress | None
) -> Path | None:
    """Makes unreadable vectors again, and deletes vectors whose rows are gone. Returns the folder with copies of the
    damaged files, which is `kept` if it exists already."""
    database, (_, what) = opened.database, care.noun
    with database.read() as db:
        texts = len(care.vector_ids(db))
    unfinished = any(trouble.kind == "rebuilding" for trouble in opened.health())
    if unfinished or (texts and opened.index() is None):
        opened.rebuild(progress=progress)
    if (index := opened.index()) is None:
        return kept
    problems, segments, ids, expected = _verified(care, database, index)
    if segments:
        kept = _put_aside(care.place.path / SEGMENTS, segments, kept)
        with database.write() as db:
            index.forget_segments(db, segments)
            note(db, "missing vectors")
        problems, _, ids, expected = _verified(care, database, index)
    if problems:
        actions.append(f"vectors of {what} made again: {opened.rebuild(progress=progress):,}")
        return kept
    extra, missing = np.setdiff1d(ids, expected), np.setdiff1d(expected, ids)
    if len(extra):  # no id is used twice, so none of them has got a row meanwhile
        with database.write() as db:
            index.delete(db, extra)
        actions.append(f"vectors of {what} that are gone, removed: {len(extra):,}")
    for start in range(0, len(missing), BATCH):
        _embed(opened, index, missing[start : start + BATCH].tolist())
    if len(missing):
        actions.append(f"vectors of {what} made again: {len(missing):,}")
    return kept


def _embed(opened: OpenedStore, index: VectorIndex, ids: list[int]) -> None:
    database, source = opened.database, opened.source

    def read(db: Connection) -> list[tuple[int, Any]]:
        return [row for one in ids for row in source.rows(db, one - 1, 1) if row[0] == one]

    while True:
        with database.read() as db:
            rows = read(db)
        vectors = source.vectors([made_from for _, made_from in rows]) if rows else None
        with database.write() as db:
            if read(db) != rows:
                continue
            if vectors is not None:
                index.add(db, np.array([one for one, _ in rows], np.int64), vectors)
            return


def _verified(care: StoreCare, database: Database, index: VectorIndex) -> tuple[Sequence[str], Sequence[str], Ids, Ids]:
    """The problems of an index, its damaged segments, the ids whose vectors are sound, and those that should have one,
    all of one moment: other processes write meanwhile."""
    with database.read() as db:
        expected = care.vector_ids(db)
        try:
            found = index.verify(db, read_data=True)
        except (StorageError, CorruptBlock) as error:
            return (str(error),), (), np.empty(0, np.int64), expected
    return found.problems, found.segments, np.empty(0, np.int64) if found.ids is None else found.ids, expected


def _put_aside(segments: Path, names: Iterable[str], kept: Path | None) -> Path:
    target = kept or aside(segments.parent)
    with as_storage_error(f"damaged segments cannot be copied to {target}"):
        for name in names:
            if (segments / name).exists():
                shutil.copy2(segments / name, target / name)
    return target
