"""The vectors of a store: which embedder made them, and how all are made again. One transaction deletes all and records
that a rebuild is under way, or that new rows get their vectors later; each batch is a transaction that records its last
row. Meanwhile, searches find rows without a vector by their words."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from edge.apps.store.database import Database, get_setting
from edge.apps.store.failures import Trouble, WrongValue
from edge.apps.store.rows import whole
from edge.errors import CorruptBlock, StorageError
from edge.ivf.base import Connection

BATCH = 256
"""Rows whose vectors are made together."""

_LAST = "rebuilding"
"""Name of the setting with the last row that has its new vector. It exists only while some rows have none."""

Floats = npt.NDArray[np.float32]

Progress = Callable[[int, int], None]
"""Called with the number of finished rows, such as passages, and the total."""

Made = TypeVar("Made")


class Source(Protocol[Made]):
    def rows(self, db: Connection, after: int, limit: int) -> list[tuple[int, Made]]:
        """Rows with an id above `after`, by ascending id: the id of the vector and the data that it is made from."""

    def count(self, db: Connection, after: int) -> int:
        """The number of rows with an id above `after`."""

    def vectors(self, made_from: Sequence[Made]) -> Floats:
        """Vectors of these rows, [n, dim]."""


class Index(Protocol):
    def add(self, db: Connection, ids: npt.NDArray[np.int64], vectors: Floats) -> None: ...
    def clear(self, db: Connection) -> None: ...


class Rebuilding(Generic[Made]):
    """Makes the vectors of an index again. Thread-safe. Several processes may rebuild and write at the same time."""

    def __init__(self, database: Database, source: Source[Made]) -> None:
        """The database must have a table `settings(name, value)`."""
        self._database = database
        self._source = source

    def begin(self, index: Index) -> None:
        """Deletes all vectors. Does nothing if a rebuild is under way."""
        with self._database.write() as db:
            if _last(db) is None:
                index.clear(db)
                db.execute("INSERT INTO settings VALUES (?, '0')", (_LAST,))

    def postpone(self, db: Connection, last: int) -> None:
        """Rows with an id above `last` have no vectors until `finish`."""
        db.execute("INSERT OR IGNORE INTO settings VALUES (?, ?)", (_LAST, str(last)))

    def trouble(self, db: Connection, what: str, remedy: str) -> Trouble | None:
        """What searches report; None if no row waits for its vector."""
        last = _last(db)
        left = 0 if last is None else self._source.count(db, last)
        if not left:
            return None
        return Trouble(
            "rebuilding", f"{what} that can be searched by their words, and not yet by meaning: {left:,}", remedy
        )

    def finish(self, index: Index, progress: Progress | None = None) -> int:
        """Makes the vectors that an unfinished rebuild still lacks; returns how many it made."""
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
                    continue  # another process has changed these rows or made their vectors
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
    """Adds to errors about unreadable vectors the command that makes them again."""
    try:
        yield
    except (CorruptBlock, StorageError) as error:
        raise type(error)(f"{error}; `{command}` makes all vectors anew, from stored texts") from error


def _last(db: Connection) -> int | None:
    last = get_setting(db, _LAST)
    return None if last is None else whole(last)


EMBEDDER = "embedder"
"""Name of the setting with the model that makes the vectors."""


@dataclass(frozen=True, slots=True)
class EmbedderIdentity:
    name: str
    source: str
    fingerprint: str
    dim: int

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def stored(cls, db: Connection) -> EmbedderIdentity | None:
        """That of the model which made the vectors of a store; None before the first."""
        text = get_setting(db, EMBEDDER)
        if text is None:
            return None
        try:
            found = cls(**json.loads(text))
        except (TypeError, ValueError, RecursionError):
            found = None
        if found is None or [type(value) for value in asdict(found).values()] != [str, str, str, int]:
            raise WrongValue("the setting of the embedder names none")
        return found
