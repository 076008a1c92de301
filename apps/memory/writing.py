"""`Writer`: changes memories. Each change is one transaction, begun after embedding so that other writers wait less."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.apps.memory.arguments import Clock, Scope, stamp
from edge.apps.memory.entries import Entry, goes_on
from edge.apps.memory.models import REBUILD, Vectors, in_context
from edge.apps.memory.records import (
    MOST_LINKS,
    SELECT,
    Added,
    Record,
    Similar,
    batches,
    find_record,
    read_records,
    text_hash,
)
from edge.apps.memory.store import MemoryStore
from edge.apps.store.rebuilding import remedy
from edge.budget import MemoryBudget
from edge.errors import InputError
from edge.ivf.base import Connection
from edge.ivf.index import VectorIndex

NEAR = 0.93
"""The cosine from which two memories are linked. With the default embedder, such texts differ by wording or typing
errors only."""

_FEW = 2_000
"""A scope of at most this many memories is searched by itself. The memories of a larger scope are found in a search of
the whole index often enough."""

_BEYOND = 16
_BLOCK = 256
_COLUMNS = 2_048
"""The number of earlier vectors that a block of 256 vectors is compared with at a time: 2 MB of cosines."""


def find_similar(
    db: Connection, index: VectorIndex, vectors: Vectors, scope: Scope, budget: MemoryBudget
) -> list[list[Similar]]:
    """The memories most similar to each of `vectors`, with a cosine of at least `NEAR`; at most 3, most similar first.

    They are memories stored under exactly the ids of `scope`, and earlier rows of `vectors`, given as `-1 - row`.

    Args:
        vectors: the vectors of the new memories, [n, dim].

    Raises:
        BudgetExceeded: there is no room for the cosines.
    """
    found: list[list[Similar]] = []
    sql, params = scope.exactly()
    rows = db.execute(f"SELECT id FROM memories WHERE {sql} LIMIT ?", (*params, _FEW + 1)).fetchall()
    allowed = np.sort(np.array([row[0] for row in rows], np.int64)) if len(rows) <= _FEW else None
    for start in range(0, len(vectors), _BLOCK):
        block = vectors[start : start + _BLOCK]
        found += _in_index(db, index, block, scope, allowed) if rows else [[] for _ in block]
    if len(vectors) > 1:
        with budget.reserve("memory duplicates", 4 * min(_BLOCK, len(vectors)) * min(_COLUMNS, len(vectors))):
            for start in range(0, len(vectors), _BLOCK):
                _add_earlier(found, vectors, start)
    return [_most_similar(similar) for similar in found]


def _most_similar(similar: list[Similar]) -> list[Similar]:
    return sorted(similar, key=lambda one: -one.similarity)[:MOST_LINKS]


def _add_earlier(found: list[list[Similar]], vectors: Vectors, start: int) -> None:
    """Adds the most similar earlier rows of `vectors` to the results of the block that begins at `start`."""
    block = vectors[start : start + _BLOCK]
    for first in range(0, start + len(block), _COLUMNS):
        cosines = block @ vectors[first : min(first + _COLUMNS, start + len(block))].T
        for row in range(len(block)):  # leave out the row itself and the rows after it
            cosines[row, max(0, start + row - first) :] = -1
        for _ in range(MOST_LINKS):
            best = cosines.argmax(axis=1)
            for row in np.flatnonzero(cosines[np.arange(len(block)), best] >= NEAR).tolist():
                found[start + row].append(Similar(-1 - first - int(best[row]), float(cosines[row, best[row]])))
                cosines[row, best[row]] = -1
        # Cut after each block of columns: if a text is repeated often, nearly all rows are near.
        found[start : start + _BLOCK] = [_most_similar(similar) for similar in found[start : start + _BLOCK]]


def _in_index(
    db: Connection, index: VectorIndex, block: Vectors, scope: Scope, allowed: npt.NDArray[np.int64] | None
) -> list[list[Similar]]:
    with remedy(REBUILD):
        result = index.search(db, block, MOST_LINKS if allowed is not None else _BEYOND, allowed=allowed)
    near = [
        [Similar(int(i), float(s)) for i, s in zip(ids, scores, strict=True) if i >= 0 and s >= NEAR]
        for ids, scores in zip(result.ids, result.scores, strict=True)
    ]
    if allowed is not None:
        return near
    sql, params = scope.exactly()
    ours: set[int] = set()
    for group in batches(sorted({one.id for similar in near for one in similar})):
        # NOT INDEXED makes SQLite look up the row numbers. It would otherwise scan the whole scope.
        inside = f"SELECT id FROM memories NOT INDEXED WHERE id IN ({', '.join('?' * len(group))}) AND {sql}"
        ours.update(row[0] for row in db.execute(inside, (*group, *params)))
    return [[one for one in similar if one.id in ours] for similar in near]


_DELETED_TOGETHER = 1_000
"""The number of memories deleted in one transaction, which bounds the time that other writers wait."""


class Writer:
    """Changes memories. Thread-safe; writers of all processes take turns."""

    def __init__(self, store: MemoryStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def add(self, entries: Sequence[Entry], scope: Scope) -> list[Added]:
        """Stores entries under exactly the ids of `scope`: all of them or, if anything fails, none."""
        if not entries:
            return []
        store = self._store
        index = store.claimed_index()
        with store.read() as db:
            before = self._turn_before(db, entries[0], scope)
        vectors = store.embed([entry.text for entry in entries] + ([before.text] if before else []))
        previous = [
            number - 1 if number and _same_conversation(entries[number - 1], entry) else None
            for number, entry in enumerate(entries)
        ]
        follows = [None if place is None else -1 - place for place in previous]
        if before is not None:
            previous[0], follows[0] = len(entries), before.id
        vectors = in_context(vectors, previous)
        with store.read() as db:
            similar = find_similar(db, index, vectors, scope, store.budget)
        with store.write() as db:
            added = store.records_writer.insert(db, index, entries, vectors, similar, follows, scope, self._clock())
        store.upkeep.wrote(len(added))
        return added

    def update(self, uuid: str, scope: Scope, changes: dict[str, Any]) -> Record:
        """Sets fields of a memory; `metadata` are merged into the existing ones.

        Raises:
            InputError: there is no such memory in `scope`.
        """
        store = self._store
        index = self._index(uuid)
        vector, similar = None, []
        if "text" in changes:
            with store.read() as db:
                old = self._found(find_record(db, uuid, scope), uuid)
                before = read_records(db, [old.follows]) if old.follows is not None else {}
            texts = [changes["text"], *(record.text for record in before.values())]
            vector = in_context(store.embed(texts), [1 if before else None])
            changes = {**changes, "hash": text_hash(changes["text"])}
            with store.read() as db:
                old = self._found(find_record(db, uuid, scope), uuid)
                similar = find_similar(db, index, vector, old.scope, store.budget)[0]
        with store.write() as db:
            old = self._found(find_record(db, uuid, scope), uuid)
            merged = {**old.metadata, **changes.get("metadata", {})}
            new = replace(old, **{**changes, "metadata": merged, "updated_at": stamp(self._clock())})
            same = new.text == old.text
            store.records_writer.change(
                db, index, old, new, "UPDATE", vector=None if same or vector is None else vector[0], similar=similar
            )
        store.upkeep.wrote(1)
        return new

    def mark(self, uuid: str, scope: Scope, event: str, change: Callable[[Record, str], Record]) -> Record:
        """Changes whether a memory is pinned or hidden. Nothing is written if `change` returns an equal record.

        Raises:
            InputError: there is no such memory in `scope`.
        """
        store = self._store
        index = self._index(uuid)
        now = stamp(self._clock())
        with store.write() as db:
            old = self._found(find_record(db, uuid, scope), uuid)
            new = change(old, now)
            if new != old:
                new = replace(new, updated_at=now)
                store.records_writer.change(db, index, old, new, event)
        return new

    def delete(self, uuid: str, scope: Scope) -> None:
        """Deletes a memory; its history stays.

        Raises:
            InputError: there is no such memory in `scope`.
        """
        store = self._store
        index = self._index(uuid)
        with store.write() as db:
            record = self._found(find_record(db, uuid, scope), uuid)
            store.records_writer.delete(db, index, [record], stamp(self._clock()))
        store.upkeep.wrote(1)

    def delete_all(self, scope: Scope) -> int:
        """Deletes every memory of a scope that exists at the start, including hidden ones. Returns their number."""
        store = self._store
        index = store.index
        if index is None:
            return 0
        sql, params = scope.condition()
        with store.read() as db:
            last = db.execute("SELECT coalesce(max(id), 0) FROM memories").fetchone()[0]
        deleted = 0
        while True:
            with store.write() as db:
                rows = db.execute(
                    f"{SELECT} WHERE {sql} AND memories.id <= ? LIMIT ?", (*params, last, _DELETED_TOGETHER)
                ).fetchall()
                records = [Record.of(row) for row in rows]
                if not records:
                    break
                store.records_writer.delete(db, index, records, stamp(self._clock()))
            deleted += len(records)
            store.upkeep.wrote(len(records))
        return deleted

    def reset(self) -> None:
        """Deletes all memories with their histories, and all actions."""
        store = self._store
        index = store.index
        with store.write() as db:
            # A repair may read rows from pages. Without their history it could not tell that they were deleted.
            db.execute("PRAGMA secure_delete = ON").fetchall()
            store.records_writer.clear(db, index)
            db.execute("PRAGMA secure_delete = OFF").fetchall()
        store.upkeep.wrote(1)

    @staticmethod
    def _turn_before(db: Connection, entry: Entry, scope: Scope) -> Record | None:
        """The last turn of a run, if `entry` continues its conversation."""
        if scope.run_id is None or not entry.turn:
            return None
        sql, params = scope.exactly()
        row = db.execute(
            f"{SELECT} INDEXED BY memories_turns WHERE {sql} AND memories.role IS NOT NULL "
            "ORDER BY memories.id DESC LIMIT 1",
            params,
        ).fetchone()
        record = None if row is None else Record.of(row)
        return record if record is not None and goes_on(record, entry) else None

    def _index(self, uuid: str) -> VectorIndex:
        """The vector index. Without one, the memory `uuid` cannot exist.

        Raises:
            InputError: there is no vector index yet.
        """
        index = self._store.index
        if index is None:
            raise InputError(f"there is no memory {uuid!r} here")
        return index

    @staticmethod
    def _found(record: Record | None, uuid: str) -> Record:
        if record is None:
            raise InputError(f"there is no memory {uuid!r} here")
        return record


def _same_conversation(earlier: Entry, later: Entry) -> bool:
    return earlier.turn and later.turn and goes_on(earlier, later)
