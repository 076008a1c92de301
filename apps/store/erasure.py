"""`Erasure`: what was erased from a store; `compact`: a store's files without what was deleted. SQLite leaves deleted
rows in free pages and in the log, its full text and the vector index in parts that wait to be merged. A transaction
that erases rows records this as unfinished work, and whoever opens the store next finishes it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge.apps.store.connections import WriterLock
from edge.apps.store.database import Database
from edge.apps.store.failures import forget, is_noted, note
from edge.apps.store.lexical import LexicalIndex
from edge.errors import EdgeError, StorageError
from edge.ivf.base import Connection, MaintenanceReport
from edge.ivf.index import VectorIndex

ERASING = "erasing"

_PATIENCE_S = 30.0

_BEYOND = (
    "backups, exports and copies elsewhere",
    "what the file system, its snapshots or the disk keep of overwritten and deleted blocks",
    "the memory of processes that are running",
)


@dataclass(frozen=True, slots=True)
class Erasure:
    erased: Mapping[str, int]
    beyond: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {"erased": dict(self.erased), "not_reached": list(self.beyond)}


def erasure(database: Path, erased: Mapping[str, int]) -> Erasure:
    """Copies of the database that a repair or a killed restore left are named."""
    copies = {file.parent for file in database.parent.glob(f"*/{database.name}")}
    copies |= set(database.parent.glob("damaged-*"))
    return Erasure(erased, (*map(str, sorted(copies)), *_BEYOND))


@contextmanager
def erasing(database: Database) -> Iterator[Connection]:
    """A write transaction that overwrites what it deletes, and records that the other files must be written anew."""
    with database.write() as db:
        db.execute("PRAGMA secure_delete = ON").fetchall()
        try:
            yield db
            note(db, ERASING)
        finally:
            db.execute("PRAGMA secure_delete = OFF").fetchall()


def compact(
    database: Database,
    lexical: LexicalIndex,
    index: VectorIndex | None,
    run: Callable[[Callable[[], MaintenanceReport]], MaintenanceReport],
    progress: Callable[[str, int, int], None] | None = None,
) -> bool:
    """Writes the full text, the vectors and the database without what was deleted, and empties the log. False if
    another process is reading an older state, which keeps the log and the old segments."""
    deadline = time.monotonic() + _PATIENCE_S
    while index is not None and run(lambda: index.maintain(database.write, full=True, progress=progress)).busy:
        if time.monotonic() > deadline:
            raise StorageError(f"another process is putting {database.path.parent} in order; try again later")
        time.sleep(0.1)
    with database.write() as db:
        lexical.optimize(db)
    if not database.vacuum():
        return False
    deadline = time.monotonic() + _PATIENCE_S
    while index is not None and not index.discard(database.write):
        if time.monotonic() > deadline:  # maintenance in the background holds the files meanwhile
            return False
        time.sleep(0.1)
    return True


def finish(database: Database, work: Callable[[], bool]) -> None:
    """Ends an erasure by `work`, which calls `compact`. `StorageError` if something is left; the next opening tries
    again."""
    if not work():
        raise StorageError(
            f"what was erased is deleted, but {database.path.parent} still holds bytes of it, because another process "
            "reads an older state: the next command that opens it for writing ends the erasure"
        )
    with database.write() as db:
        forget(db, ERASING)


def end_erasure(database: Database, lock: WriterLock, work: Callable[[], object]) -> None:
    """Ends an interrupted erasure when a store is opened. What prevents it is only logged: the store can be used."""
    try:
        with database.read() as db:
            begun = is_noted(db, ERASING)
        if begun and not lock.is_held():
            work()
    except EdgeError as error:
        logging.getLogger(__name__).warning("an erasure was not ended: %s", error)
