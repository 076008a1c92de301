"""Making every vector again, from the texts in the database: where vectors are damaged or gone.

The vectors are forgotten in one transaction that says so; the batches that follow are transactions of their own, which
note how far they have come, so that a rebuild that was killed is gone on with. Meanwhile searches find by words what
has no vector yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from edge.apps.store.database import Database
from edge.apps.store.health import Trouble
from edge.connection import Connection
from edge.errors import CorruptBlock, StorageError

BATCH = 256
"""Rows whose vectors are made together."""

_LAST = "rebuilding"
"""Setting: the last row that has its new vector; there only as long as some have none."""

Floats = npt.NDArray[np.float32]
Progress = Callable[[int, int], None]

Made = TypeVar("Made")


class Source(Protocol[Made]):
    """What has vectors."""

    def rows(self, db: Connection, after: int, limit: int) -> list[tuple[int, Made]]:
        """Ids of vectors beyond `after`, ascending, and what each is made from."""

    def count(self, db: Connection, after: int) -> int:
        """How many ids there are beyond `after`."""

    def vectors(self, made_from: Sequence[Made]) -> Floats:
        """[n, dim]."""


class Index(Protocol):
    """What a rebuild needs of the vector index."""

    def add(self, db: Connection, ids: npt.NDArray[np.int64], vectors: Floats) -> None: ...
    def clear(self, db: Connection) -> None: ...


class Rebuilding(Generic[Made]):
    """Makes the vectors of an index again. Thread-safe; any number of processes may be at it, and write beside it."""

    def __init__(self, database: Database, source: Source[Made]) -> None:
        """The database has a table `settings(name, value)`."""
        self._database = database
        self._source = source

    def begin(self, index: Index) -> None:
        """Forgets all vectors. Does nothing if a rebuild is under way."""
        with self._database.write() as db:
            if _last(db) is None:
                index.clear(db)
                db.execute("INSERT INTO settings VALUES (?, '0')", (_LAST,))

    def trouble(self, db: Connection, what: str, remedy: str) -> Trouble | None:
        """What a search has to know of a rebuild that is under way, or was interrupted; None if there is none.

        Args:
            what: the things that have vectors, such as `passages`.
            remedy: the command that goes on.
        """
        last = _last(db)
        if last is None:
            return None
        left = self._source.count(db, last)
        return Trouble("rebuilding", f"{left:,} {what} have no vector yet and are found by their words alone", remedy)

    def finish(self, index: Index, progress: Progress | None = None) -> int:
        """Makes the vectors that a rebuild has not made yet, if one is under way; returns how many."""
        source, made = self._source, 0
        while True:
            with self._database.read() as db:
                last = _last(db)
                if last is None:
                    return made
                rows = source.rows(db, last, BATCH)
                total = made + source.count(db, last)
            vectors = source.vectors([what for _, what in rows]) if rows else None
            with self._database.write() as db:
                if _last(db) != last or source.rows(db, last, BATCH) != rows:
                    continue  # others have changed these rows, or made their vectors
                if vectors is None:
                    db.execute("DELETE FROM settings WHERE name = ?", (_LAST,))
                    return made
                index.add(db, np.array([identifier for identifier, _ in rows], np.int64), vectors)
                db.execute("UPDATE settings SET value = ? WHERE name = ?", (str(rows[-1][0]), _LAST))
            made += len(rows)
            if progress is not None:
                progress(made, total)


@contextmanager
def remedy(command: str) -> Iterator[None]:
    """Vectors that cannot be read are an error that says which command makes them again."""
    try:
        yield
    except (CorruptBlock, StorageError) as error:
        raise type(error)(f"{error}; `{command}` makes all vectors anew, from stored texts") from error


def _last(db: Connection) -> int | None:
    row = db.execute("SELECT value FROM settings WHERE name = ?", (_LAST,)).fetchone()
    return None if row is None else int(row[0])
