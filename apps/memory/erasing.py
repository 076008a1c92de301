"""`Eraser`: erases memories with their histories, so that no file of the memory holds a byte of them."""

from __future__ import annotations

import numpy as np

from edge.apps.memory.arguments import Scope
from edge.apps.memory.records import SELECT, TEXT_INDEX, advance, erase_history, find_record, held_records
from edge.apps.memory.store import MemoryStore
from edge.apps.memory.writing import Writer
from edge.apps.store.erasure import Erasure, erasing, erasure
from edge.errors import InputError
from edge.ivf.base import Connection


class Eraser:
    """Each method deletes in transactions, and then writes the files anew (`edge.apps.store.erasure`). After a kill the
    next opening of the memory ends it. Raises `StorageError` if another process is reading an older state, which keeps
    the log; all is deleted then."""

    def __init__(self, store: MemoryStore, writer: Writer) -> None:
        self._store = store
        self._writer = writer

    def erase(self, uuid: str, scope: Scope) -> Erasure:
        """Erases a memory, also one that was deleted. The turns that follow it get vectors without its share."""
        store, index = self._store, self._store.index
        while True:
            with store.read() as db:
                turns = _following(db, uuid)
            vectors = store.embed([text for _, text in turns]) if turns else None
            with erasing(store.database) as db:
                if _following(db, uuid) != turns:
                    continue  # another process has changed them
                record = find_record(db, uuid, scope)
                lines = erase_history(db, scope, [uuid])
                if record is not None and index is not None:
                    self._writer.delete_records(db, index, [record], noted=False)
                    if vectors is not None:
                        index.add(db, np.array([turn for turn, _ in turns], np.int64), vectors)
                elif not lines:
                    raise InputError(f"there is no memory {uuid!r} here")
            return self._ended({"memories": int(record is not None), "lines of history": lines})

    def erase_all(self, scope: Scope) -> Erasure:
        """Erases every memory of a scope, also those that were deleted."""
        memories, lines = self._writer.delete_all(scope, purge=True)
        with erasing(self._store.database) as db:
            lines += erase_history(db, scope)
        return self._ended({"memories": memories, "lines of history": lines})

    def reset(self) -> None:
        """Erases all memories with their histories, and all actions."""
        index = self._store.index
        with erasing(self._store.database) as db:
            if index is not None:
                index.clear(db)
            db.execute(f"INSERT INTO {TEXT_INDEX}({TEXT_INDEX}) VALUES ('delete-all')")
            for table in ("links", "history", "memories", "actions"):
                db.execute(f"DELETE FROM {table}")
            db.execute("DELETE FROM settings WHERE name LIKE 'actions:%'")
            advance(db)
        self._ended({})

    def _ended(self, erased: dict[str, int]) -> Erasure:
        self._store.end_erasure()
        return erasure(self._store.database.path, erased)


def _following(db: Connection, uuid: str) -> list[tuple[int, str]]:
    """The turns whose vectors have a share of a memory: their ids and texts."""
    sql = f"{SELECT} WHERE memories.follows = (SELECT id FROM memories WHERE uuid = ?)"
    return [(record.id, record.text) for record in held_records(db, db.execute(sql, (uuid,)))]
