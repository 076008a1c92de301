"""A write that the disk refuses while a database is made again is no loss: the repair ends, nothing is replaced."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from edge.apps.store import salvage
from edge.apps.store.database import Database
from edge.apps.store.repairing import make_again
from edge.apps.store.salvage import Wreck
from edge.budget import MemoryBudget
from edge.errors import StorageError

NOTES = ["CREATE TABLE notes(id INTEGER PRIMARY KEY, text TEXT NOT NULL)"]


def refused(*_: Any, **__: Any) -> Any:
    raise apsw.IOError("disk I/O error")


def no_room(*_: Any) -> Any:
    raise OSError(28, "No space left on device")


def bring(wreck: Wreck, new: Database) -> None:
    rows = list(wreck.rows("notes", ("id", "text")))
    with new.write() as db:
        db.executemany("INSERT INTO notes VALUES (?, ?)", rows)


class RefusedReading:
    """A connection that refuses in the middle of a table."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db

    def execute(self, sql: str, *arguments: Any) -> Any:
        if sql.startswith("SELECT id, text"):
            return self._some(sql, *arguments)
        return self._db.execute(sql, *arguments)

    def _some(self, sql: str, *arguments: Any) -> Any:
        yield self._db.execute(sql, *arguments).fetchone()
        refused()

    def close(self, force: bool) -> None:
        self._db.close(force)


def in_the_middle(*given: Any, connect: Callable[..., apsw.Connection] = salvage.connect, **options: Any) -> Any:
    return RefusedReading(connect(*given, **options))


@pytest.mark.parametrize(
    ("where", "what"),
    [
        ("connect", refused), ("connect", in_the_middle), ("_move_log", refused), ("_move_log", no_room),
    ],
)  # fmt: skip
def test_nothing_is_replaced_where_the_disk_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, what: Callable[..., Any]
) -> None:
    budget = MemoryBudget(1 << 36, baseline=0)
    path = tmp_path / "notes.db"
    with Database(path, NOTES, budget=budget) as database, database.write() as db:
        db.executemany("INSERT INTO notes(text) VALUES (?)", [("a",), ("b",), ("c",)])
    with monkeypatch.context() as patch:
        patch.setattr(salvage, where, what)
        with pytest.raises(StorageError, match=r"notes\.db"):
            make_again(path, NOTES, bring, budget=budget, verbs="edge")
    with Database(path, NOTES, budget=budget) as database, database.read() as db:
        assert db.execute("SELECT text FROM notes").fetchall() == [("a",), ("b",), ("c",)]
    make_again(path, NOTES, bring, budget=budget, verbs="edge")
    with Database(path, NOTES, budget=budget) as database, database.read() as db:
        assert db.execute("SELECT text FROM notes").fetchall() == [("a",), ("b",), ("c",)]
