"""Looking whether what is stored is what was written: the database, its texts, full text and vectors."""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import apsw
import numpy as np

from edge.apps.store.connecting import connect
from edge.apps.store.failures import damaged
from edge.apps.store.health import Trouble
from edge.apps.store.mark import HighWaterMark
from edge.apps.store.pages import PAGE, damaged_pages, missing_bytes
from edge.apps.store.pool import CONNECTION_BYTES, PAGE_CACHE
from edge.budget import MemoryBudget
from edge.connection import Connection
from edge.errors import CorruptBlock, StorageError
from edge.ivf.base import Ids
from edge.ivf.index import VectorIndex
from edge.plan import Plan, Stage
from edge.resident import anonymous_resident

_NAMED = 20
"""Files or memories that one finding names."""

_SHOWN_PAGES = 10

_READING = 3 << 20
"""Bytes of SQLite's check, of the index's tables, and of one block of a segment."""

_CODECS = ("faiss",)

_PER_TEXT = 128
"""Bytes of what is compared of a text: its ids in three places, and where it stands in its file."""

_SMALLEST_ROW = 64


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not what was written.

    Attributes:
        part: `database`, `texts`, `full text`, `vectors`, `commits` (missing ones) or `mark` (of the last one).
        text: what is wrong, as a sentence without its end.
        items: files or memories it came from, as far as they are known.
    """

    part: str
    text: str
    items: tuple[str, ...] = ()


@dataclass(slots=True)
class CheckReport:
    """What a check has found.

    Attributes:
        findings: none if all is as it was written.
        read_data: every stored byte was read.
        nbytes: bytes of the files that were looked at.
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
        """Whether one of some parts is damaged."""
        return any(finding.part in parts for finding in self.findings)

    def add(self, part: str, text: str, items: Iterable[str] = ()) -> None:
        """Notes something."""
        names = sorted(set(items))
        more = len(names) - _NAMED
        self.findings.append(Finding(part, text, (*names[:_NAMED], *([f"... and {more:,} more"] if more > 0 else []))))

    def end(self) -> CheckReport:
        """Stops the clock."""
        self.seconds = time.perf_counter() - self._started
        return self

    def trouble(self, verbs: str) -> Trouble:
        """What every later command says of it."""
        parts = ", ".join(dict.fromkeys(finding.part for finding in self.findings))
        return Trouble("damaged", f"a check found damage ({parts})", f"{verbs} repair")

    def to_json(self) -> dict[str, Any]:
        """The figures and findings."""
        return {
            "path": str(self.path),
            "sound": self.sound,
            "read_data": self.read_data,
            "findings": [asdict(finding) for finding in self.findings],
            "bytes": self.nbytes,
            "seconds": self.seconds,
        }


def checking_budget(limit: int, path: Path, table: str) -> MemoryBudget:
    """The ledger of a check, made before the database is opened under it.

    Args:
        path: of the database.
        table: of its texts, whose number decides what the check needs.

    Raises:
        BudgetExceeded: the limit is too small; the error names the smallest that works.
    """
    opening = Stage("opening the database", kept=PAGE_CACHE + CONNECTION_BYTES)
    own = _READING + _PER_TEXT * _rows(path, table)
    plan = Plan("the check", (opening, Stage("reading what is stored", own=own, libraries=_CODECS)))
    held = anonymous_resident()
    if held + plan.nbytes > limit:
        raise plan.refusal(limit, held)
    return MemoryBudget(limit)


def _rows(path: Path, table: str) -> int:
    """The most rows that a table can have."""
    try:
        db = connect(path.absolute().as_uri(), writable=False, cache=PAGE, busy_seconds=1.0)
        try:
            return int(db.execute(f"SELECT max(id) FROM {table}").fetchall()[0][0] or 0)
        finally:
            db.close(True)
    except (apsw.Error, OSError):  # damaged, or another process is replacing it: what its size allows
        return path.stat().st_size // _SMALLEST_ROW if path.exists() else 0


def check_file(report: CheckReport, path: Path) -> None:
    """Looks at a database file from outside, and at what is kept beside it."""
    try:
        report.nbytes += path.stat().st_size
        if report.read_data:
            missing = missing_bytes(path)
            if missing:
                report.add("database", f"{path} was cut off: its last {missing:,} bytes are missing")
            pages = list(damaged_pages(path))
            if pages:
                shown = ", ".join(map(str, pages[:_SHOWN_PAGES])) + (", ..." if len(pages) > _SHOWN_PAGES else "")
                what = "page" if len(pages) == 1 else f"{len(pages):,} pages,"
                report.add("database", f"{path}: {what} {shown} not what was written")
        mark = HighWaterMark(path.with_name(path.name + "-mark"))
        if mark.path.exists() and not mark.sound():
            report.add("mark", f"{mark.path} is damaged; nothing is lost by that alone")
    except OSError as error:
        report.add("database", f"{path} cannot be read: {error.strerror}")


def check_tables(report: CheckReport, db: Connection, path: Path, verbs: str) -> None:
    """Asks SQLite whether tables, indexes and full text agree with each other."""
    pragma = "integrity_check" if report.read_data else "quick_check"
    try:
        found = [str(row[0]) for row in db.execute(f"PRAGMA {pragma}({_NAMED})")]
    except (apsw.CorruptError, apsw.IOError) as error:
        found = [str(damaged(path, f"cannot be read through ({error})", verbs)).split("; `")[0]]
    for text in found:
        if text != "ok":
            report.add("database", text.strip().replace("\n", " "))


def check_full_text(report: CheckReport, db: Connection, table: str, expected: Ids) -> None:
    """Compares the rows of a full-text index with the texts there are."""
    try:
        rows = array("q", (row[0] for row in db.execute(f"SELECT id FROM {table}_docsize ORDER BY id")))
    except (apsw.CorruptError, apsw.IOError) as error:
        report.add("full text", f"the full text cannot be read ({error})")
        return
    have = np.frombuffer(rows, np.int64)
    wrong = len(np.setxor1d(have, expected))
    if wrong:
        report.add("full text", f"the full text has {wrong:,} texts too many or too few")


def check_vectors(report: CheckReport, db: Connection, index: VectorIndex, expected: Ids | None) -> Sequence[int]:
    """Looks at the vector index; returns the ids that have no vector that could be read.

    Args:
        expected: ids that have a vector, ascending; None while a rebuild is under way.
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
        report.add("vectors", f"{len(extra):,} vectors belong to no text")
    return [int(identifier) for identifier in np.setdiff1d(expected, found.ids)]
