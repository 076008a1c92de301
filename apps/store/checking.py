"""Checks of stored data for damage: the database, its texts, the full-text index and the vectors."""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import apsw
import numpy as np

from edge.apps.store.connections import CONNECTION_BYTES, PAGE_CACHE, connect
from edge.apps.store.failures import damaged
from edge.apps.store.folder import reading_uri
from edge.apps.store.health import Trouble
from edge.budget import MemoryBudget, OperationPlan, OperationStage
from edge.config import counted
from edge.errors import CorruptBlock, StorageError
from edge.ivf.base import Ids
from edge.ivf.index import VectorIndex
from edge.ivf.storage.connection import Connection
from edge.resident import anonymous_resident

_NAMED = 20
"""Files or memories that one finding lists."""

_READING = 3 << 20
"""Bytes for SQLite's check, for the index's tables, and for one block of a segment."""

_CODECS = ("faiss",)

_PER_TEXT = 128
"""Bytes for each text that is checked: its id in three places, and its place in its file."""

_SMALLEST_ROW = 64

_LEAST_CACHE = 64 << 10


@dataclass(frozen=True, slots=True)
class Finding:
    """A part of the stored data that is damaged or missing.

    Attributes:
        part: `database`, `texts`, `full text` or `vectors`.
        text: describes the damage, as a sentence without its period.
        items: the affected files or memories, if they are known.
    """

    part: str
    text: str
    items: tuple[str, ...] = ()


@dataclass(slots=True)
class CheckReport:
    """The result of a check.

    Attributes:
        findings: empty if no damage was found.
        read_data: whether every stored byte was read.
        nbytes: bytes of the files that were checked.
    """

    path: Path
    read_data: bool
    findings: list[Finding] = field(default_factory=list)
    nbytes: int = 0
    seconds: float = 0.0
    _started: float = field(default_factory=time.perf_counter)

    @property
    def sound(self) -> bool:
        """Whether nothing is damaged."""
        return not self.findings

    def damaged(self, *parts: str) -> bool:
        """Whether any of the named parts is damaged."""
        return any(finding.part in parts for finding in self.findings)

    def add(self, part: str, text: str, items: Iterable[str] = ()) -> None:
        """Adds a finding."""
        names = sorted(set(items))
        more = len(names) - _NAMED
        self.findings.append(Finding(part, text, (*names[:_NAMED], *([f"... and {more:,} more"] if more > 0 else []))))

    def end(self) -> CheckReport:
        """Stops the clock."""
        self.seconds = time.perf_counter() - self._started
        return self

    def trouble(self, verbs: str) -> Trouble:
        """The trouble that every later command reports until a repair."""
        parts = ", ".join(dict.fromkeys(finding.part for finding in self.findings))
        return Trouble("damaged", f"a check found damage ({parts})", f"{verbs} repair")

    def to_json(self) -> dict[str, Any]:
        """The figures and findings, ready for JSON."""
        return {
            "path": str(self.path),
            "sound": self.sound,
            "read_data": self.read_data,
            "findings": [asdict(finding) for finding in self.findings],
            "bytes": self.nbytes,
            "seconds": self.seconds,
        }


def checking_budget(limit: int, path: Path, table: str) -> MemoryBudget:
    """The budget for a check. It is made before the database is opened.

    Args:
        path: the database file.
        table: the table of texts; its number of rows decides how much memory the check needs.

    Raises:
        BudgetExceeded: the limit is too small; the error names the smallest limit that works.
    """
    opening = OperationStage("opening the database", kept=PAGE_CACHE + CONNECTION_BYTES)
    own = _READING + _PER_TEXT * _rows(path, table)
    plan = OperationPlan("the check", (opening, OperationStage("reading what is stored", own=own, libraries=_CODECS)))
    held = anonymous_resident()
    if held + plan.nbytes > limit:
        raise plan.refusal(limit, held)
    return MemoryBudget(limit)


def _rows(path: Path, table: str) -> int:
    """The largest number of rows that a table can have."""
    try:
        db = connect(reading_uri(path), writable=False, cache=_LEAST_CACHE, busy_seconds=1.0)
        try:
            return int(db.execute(f"SELECT max(id) FROM {table}").fetchall()[0][0] or 0)
        finally:
            db.close(True)
    except (apsw.Error, OSError):  # damaged, or another process is replacing it: estimate from the file's size
        return path.stat().st_size // _SMALLEST_ROW if path.exists() else 0


def check_file(report: CheckReport, path: Path) -> None:
    """Counts the bytes of a database file."""
    try:
        report.nbytes += path.stat().st_size
    except OSError as error:
        report.add("database", f"{path} cannot be read: {error.strerror}")


def check_tables(report: CheckReport, db: Connection, path: Path, verbs: str) -> None:
    """Asks SQLite whether its pages are in order, and tables, indexes and the full-text index agree with each other."""
    pragma = "integrity_check" if report.read_data else "quick_check"
    try:
        found = [str(row[0]) for row in db.execute(f"PRAGMA {pragma}({_NAMED})")]
    except (apsw.CorruptError, apsw.IOError) as error:
        found = [str(damaged(path, f"cannot be read through ({error})", verbs)).split("; `")[0]]
    for text in found:
        if text != "ok":
            report.add("database", text.strip().replace("\n", " "))


def check_full_text(report: CheckReport, db: Connection, table: str, expected: Ids) -> None:
    """Compares the ids in a full-text index with the ids of the stored texts."""
    try:
        rows = array("q", (row[0] for row in db.execute(f"SELECT id FROM {table}_docsize ORDER BY id")))
    except (apsw.CorruptError, apsw.IOError) as error:
        report.add("full text", f"the full text cannot be read ({error})")
        return
    have = np.frombuffer(rows, np.int64)
    wrong = len(np.setxor1d(have, expected))
    if wrong:
        report.add("full text", f"the full text has {counted(wrong, 'text')} too many or too few")


def check_vectors(report: CheckReport, db: Connection, index: VectorIndex, expected: Ids | None) -> Sequence[int]:
    """Checks the vector index; returns the ids whose vectors are missing or cannot be read.

    Args:
        expected: ids that should have a vector, ascending; None while a rebuild is under way.
    """
    try:
        found = index.verify(db, read_data=report.read_data)
    except (CorruptBlock, StorageError) as error:
        report.add("vectors", str(error).split("; `")[0])
        return []
    report.nbytes += found.nbytes
    for problem in found.problems:
        report.add("vectors", problem)
    if found.ids is None or expected is None:
        return []
    extra = np.setdiff1d(found.ids, expected)
    if len(extra):
        report.add("vectors", f"{counted(len(extra), 'vector')} of no text")
    return [int(identifier) for identifier in np.setdiff1d(expected, found.ids)]
