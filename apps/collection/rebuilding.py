"""Embedding every passage again, from the texts in the database: where vectors are damaged or gone.

The vectors are forgotten in one transaction that says so; from then on every writer first goes on where the last one
stopped, so that a rebuild that was killed is finished by whatever is done next. Meanwhile searches find by words what
has no vector yet.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from edge.apps.collection.catalog import passage
from edge.apps.collection.indexing import Progress
from edge.apps.collection.intake import BATCH
from edge.apps.collection.schema import get_setting, set_setting
from edge.apps.store.database import Database

_LAST = "rebuilding"
"""Setting: the last chunk that has its new vector; there only as long as some have none."""

Floats = npt.NDArray[np.float32]


class Index(Protocol):
    """What a rebuild needs of the vector index."""

    def add(self, db: sqlite3.Connection, ids: npt.NDArray[np.int64], vectors: Floats) -> None: ...
    def clear(self, db: sqlite3.Connection) -> None: ...


def begin_rebuild(database: Database, index: Index) -> None:
    """Forgets all vectors. Does nothing if a rebuild is under way."""
    with database.write() as db:
        if get_setting(db, _LAST) is None:
            index.clear(db)
            set_setting(db, _LAST, "0")


def finish_rebuild(
    database: Database, index: Index, embed: Callable[[Sequence[str]], Floats], progress: Progress | None = None
) -> int:
    """Makes the vectors that a rebuild has not made yet, if one is under way; returns how many."""
    made = 0
    while True:
        with database.read() as db:
            last = get_setting(db, _LAST)
            if last is None:
                return made
            rows = db.execute(
                "SELECT id, context, text FROM chunks WHERE id > ? ORDER BY id LIMIT ?", (int(last), BATCH)
            ).fetchall()
            total = made + db.execute("SELECT count(*) FROM chunks WHERE id > ?", (int(last),)).fetchone()[0]
        vectors = embed([passage(context, text) for _, context, text in rows]) if rows else None
        with database.write() as db:
            if vectors is None:
                db.execute("DELETE FROM settings WHERE name = ?", (_LAST,))
                return made
            ids = np.array([identifier for identifier, _, _ in rows], np.int64)
            index.add(db, ids, vectors)
            set_setting(db, _LAST, str(ids[-1]))
        made += len(rows)
        if progress is not None:
            progress(made, total)
