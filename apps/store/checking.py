"""Checks a collection or a memory for damage: the database, its rows, the full-text index and the vectors."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

import apsw
import numpy as np

from edge.apps.store.backup import Store
from edge.apps.store.connections import CONNECTION_BYTES, PAGE_CACHE, connect
from edge.apps.store.database import Database
from edge.apps.store.failures import Health, StoreUnavailable, note
from edge.apps.store.folder import reading_uri
from edge.apps.store.rebuilding import Source
from edge.apps.store.salvage import Wreck
from edge.budget import MemoryBudget, OperationPlan, OperationStage
from edge.config import counted
from edge.errors import CorruptBlock, EdgeError, StorageError
from edge.ivf.base import Connection, Ids
from edge.ivf.index import VectorIndex
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
    def check_rows(self, report: CheckReport, wreck: Wreck) -> tuple[Ids, Ids]:
        """Adds findings about the rows; returns the ids that the full text should have, and the vectors, ascending."""

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
                texts, vectors = care.check_rows(report, Wreck(cast(apsw.Connection, db), report.nbytes))
                _check_full_text(report, db, care.full_text, texts)
                kinds = {trouble.kind for trouble in opened.health()}
                index = opened.index()
                if index is not None:
                    _check_vectors(report, db, index, None if "rebuilding" in kinds else vectors, care)
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
