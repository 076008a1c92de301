"""Making a database again from what can be read of it, and telling what was done."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from edge.apps.store.checking import CheckReport
from edge.apps.store.database import Database, Migration
from edge.apps.store.replacing import announce, aside, discard_draft, draft, put_aside, replace
from edge.apps.store.salvage import Row, Wreck, opened
from edge.budget import MemoryBudget
from edge.connection import Connection
from edge.errors import StorageError
from edge.ivf.manifest import blobs_are_sound

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
        StorageError: the disk refuses, or has no room for two more copies.
        BudgetExceeded: the limit is too small.
    """
    copy = put_aside(path)
    discard_draft(path)
    try:
        with opened(copy) as wreck, Database(draft(path), migrations, budget=budget, verbs=verbs) as new:
            fill(wreck, new)
            new.settle()
    except BaseException:
        discard_draft(path)
        raise
    announce(path)
    replace(path)
    return copy.parent


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


def put_segments_aside(folder: Path, names: Iterable[str], into: Path | None) -> Path:
    """Copies damaged files of the vector index into a folder for what is damaged, a new one if there is none.

    Raises:
        StorageError: the disk refuses.
    """
    target = into or aside(folder.parent)
    for name in names:
        source = folder / name
        try:
            if source.exists():
                shutil.copy2(source, target / name)
        except OSError as error:
            raise StorageError(f"{source} cannot be copied to {target}: {error.strerror}") from error
    return target


def _insert(db: Connection, table: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
    marks = ", ".join("?" * len(columns))
    db.executemany(f"INSERT INTO {table}({', '.join(columns)}) VALUES ({marks})", rows)
