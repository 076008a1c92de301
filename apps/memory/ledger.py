"""`Ledger`: changes to memories inside a transaction, in all tables and indexes at once; each leaves its history."""

from __future__ import annotations

import uuid as uuids
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.apps.memory.arguments import check_text
from edge.apps.memory.entries import Entry
from edge.apps.memory.moments import stamp
from edge.apps.memory.records import COLUMNS, SELECT, Record, batches, find_record, text_hash, visible
from edge.apps.memory.remembered import REBUILD
from edge.apps.memory.schema import TEXT_INDEX
from edge.apps.memory.scope import Scope
from edge.apps.store.lexical import LexicalIndex
from edge.apps.store.rebuilding import remedy
from edge.connection import Connection
from edge.ivf.index import VectorIndex

Vectors = npt.NDArray[np.float32]

_INSERT = f"INSERT INTO memories ({', '.join(COLUMNS[1:])}) VALUES ({', '.join('?' * (len(COLUMNS) - 1))}) RETURNING id"
_UPDATE = f"UPDATE memories SET {', '.join(f'{name} = ?' for name in COLUMNS[1:])} WHERE id = ?"
_HISTORY = (
    "memory_id", "old_memory", "new_memory", "event", "created_at", "updated_at", "is_deleted", "actor_id", "role",
    "user_id", "agent_id", "run_id",
)  # fmt: skip
_INSERT_HISTORY = f"INSERT INTO history ({', '.join(_HISTORY)}) VALUES ({', '.join('?' * len(_HISTORY))})"
_SHOWN = _HISTORY[:9]
_TOLD = ("role", "actor_id", "timestamp", "expiration_date", "importance")
"""What an entry says beside its text and metadata."""

MOST_LINKS = 3
"""Earlier memories that one is linked to, however many there are like it: what is often said has very many."""


@dataclass(frozen=True, slots=True)
class Similar:
    """An earlier memory that a new one resembles: its id, or `-1 - n` for the n-th of the same call; their cosine."""

    id: int
    similarity: float


@dataclass(frozen=True, slots=True)
class Added:
    """What became of an entry.

    Attributes:
        record: the new memory, or the one that was there already.
        event: ADD, or NONE where exactly this was remembered before.
        similar: earlier memories it was linked to, most similar first.
    """

    record: Record
    event: str
    similar: tuple[tuple[Record, float], ...] = ()


@dataclass(frozen=True, slots=True)
class HistoryLine:
    """A change of a memory: its text before and after, what happened, when the memory was made and when it changed."""

    old: str | None
    new: str | None
    event: str
    created_at: str
    updated_at: str


class Ledger:
    """Writes memories. Holds no connection: every method belongs to the transaction of the `db` it is given."""

    def __init__(self) -> None:
        self.lexical = LexicalIndex(TEXT_INDEX)

    def insert(
        self,
        db: Connection,
        index: VectorIndex,
        entries: Sequence[Entry],
        vectors: Vectors,
        similar: Sequence[Sequence[Similar]],
        follows: Sequence[int | None],
        scope: Scope,
        now: datetime,
    ) -> list[Added]:
        """Stores entries under exactly these ids.

        An entry of which everything is already stored there and shown is recognised and not stored twice; entries of
        one call are never taken for each other, because a conversation may repeat itself.

        Args:
            vectors: [n, dim], one for each entry.
            similar: for each entry, what it is to be linked to if that is stored under the same ids.
            follows: for each entry, the id of the turn before, or `-1 - n` for the n-th of this call.
        """
        known = [self._known(db, entry, scope, now) for entry in entries]
        twins = {text: self._twins(db, text, scope, now) for text in {entry.text for entry in entries}}
        outcomes: list[Added] = []
        for entry, same, before in zip(entries, known, follows, strict=True):
            if same is not None:
                outcomes.append(Added(same, "NONE"))
                continue
            if before is not None and before < 0:
                before = outcomes[-1 - before].record.id
            elif before is not None and not db.execute("SELECT 1 FROM memories WHERE id = ?", (before,)).fetchone():
                before = None  # deleted since
            record = _new_record(entry, scope, before, stamp(now))
            same_text = tuple((twin, 1.0) for twin in twins[entry.text])
            outcomes.append(Added(self._insert_row(db, record), "ADD", same_text))
        added = [(number, outcome) for number, outcome in enumerate(outcomes) if outcome.event == "ADD"]
        records = [outcome.record for _, outcome in added]
        self._index(db, index, records, vectors[[number for number, _ in added]])
        self.note(db, ((None, record, "ADD") for record in records), stamp(now))
        for number, outcome in added:
            outcomes[number] = self._link(db, outcome, similar[number], outcomes)
        self.advance(db)
        return outcomes

    def restore(
        self,
        db: Connection,
        index: VectorIndex,
        records: Sequence[tuple[Record, str | None]],
        vectors: Vectors,
    ) -> list[Record]:
        """Stores records as they are, dates and `uuid` included, without history; `id` is given anew.

        Args:
            records: each with the `uuid` of the turn before it, which must come earlier or be stored already.
        """
        stored = []
        for record, before in records:
            known = None if before is None else find_record(db, before, record.scope)
            known = known if known is not None and known.scope == record.scope else None
            stored.append(self._insert_row(db, replace(record, follows=None if known is None else known.id)))
        self._index(db, index, stored, vectors)
        self.advance(db)
        return stored

    def bring(self, db: Connection, record: Record) -> None:
        """Stores a record as it is, under a new `id`; its vector is made later."""
        stored = self._insert_row(db, record)
        self.lexical.add(db, [stored.id], [stored.indexed_text])

    def change(
        self,
        db: Connection,
        index: VectorIndex,
        old: Record,
        new: Record,
        event: str,
        *,
        vector: Vectors | None = None,
        similar: Sequence[Similar] = (),
    ) -> None:
        """Replaces a memory by a new version of itself.

        Args:
            new: the same `id` and `uuid`; its `updated_at` is the moment of the change.
            vector: [dim], of the new text where that differs.
            similar: what the new text is to be linked to.
        """
        if new.indexed_text != old.indexed_text:
            self.lexical.delete(db, [old.id], [old.indexed_text])
            self.lexical.add(db, [new.id], [new.indexed_text])
        if vector is not None:
            with remedy(REBUILD):
                index.add(db, np.array([new.id], np.int64), vector.reshape(1, -1))
            db.execute("DELETE FROM links WHERE memory = ? OR earlier = ?", (new.id, new.id))
            self._link(db, Added(new, event), similar, [])
        db.execute(_UPDATE, (*new.row[1:], new.id))
        self.note(db, [(old, new, event)], new.updated_at)
        self.advance(db)

    def delete(self, db: Connection, index: VectorIndex, records: Sequence[Record], now: str) -> None:
        """Deletes memories; their history stays."""
        ids = [record.id for record in records]
        self.lexical.delete(db, ids, [record.indexed_text for record in records])
        with remedy(REBUILD):
            index.delete(db, np.array(ids, np.int64))
        for group in batches(ids):
            db.execute(f"DELETE FROM memories WHERE id IN ({', '.join('?' * len(group))})", group)
        self.note(db, ((record, None, "DELETE") for record in records), now)
        self.advance(db)

    def clear(self, db: Connection, index: VectorIndex | None) -> None:
        """Deletes all rows of all tables, history included, and of the settings what was learnt of actions."""
        if index is not None:
            index.clear(db)
        db.execute(f"INSERT INTO {TEXT_INDEX}({TEXT_INDEX}) VALUES ('delete-all')")
        for table in ("links", "history", "memories", "actions"):
            db.execute(f"DELETE FROM {table}")
        db.execute("DELETE FROM settings WHERE name LIKE 'actions:%'")
        self.advance(db)

    def advance(self, db: Connection) -> None:
        """Tells every process that what it remembers of the rows is out of date."""
        db.execute("UPDATE settings SET value = value + 1 WHERE name = 'generation'")

    def note(self, db: Connection, changes: Iterable[tuple[Record | None, Record | None, str]], now: str) -> None:
        """Lines of history: the memory before, after, and what happened."""
        rows = []
        for old, new, event in changes:
            record = new or old
            assert record is not None
            before, after = (None if version is None else version.text for version in (old, new))
            rows.append(_history_row(record, HistoryLine(before, after, event, record.created_at, now)))
        db.executemany(_INSERT_HISTORY, rows)

    def link(self, db: Connection, record: Record, earlier: Sequence[tuple[str, float]]) -> None:
        """Links a memory to earlier ones stored under the same ids, by `uuid` and similarity; others are left out."""
        for uuid, similarity in earlier:
            other = find_record(db, uuid, record.scope)
            if other is not None and other.id < record.id and other.scope == record.scope:
                db.execute("INSERT OR IGNORE INTO links VALUES (?, ?, ?)", (record.id, other.id, similarity))

    def links(self, db: Connection, record: Record) -> list[tuple[str, float]]:
        """Ids of the memories that are linked to this one, either way, and how similar they are; most similar first."""
        return [
            (str(uuid), float(similarity))
            for uuid, similarity in db.execute(
                "SELECT memories.uuid, links.similarity FROM links JOIN memories ON memories.id = links.earlier "
                "WHERE links.memory = ? UNION ALL "
                "SELECT memories.uuid, links.similarity FROM links JOIN memories ON memories.id = links.memory "
                "WHERE links.earlier = ? ORDER BY 2 DESC, 1",
                (record.id, record.id),
            )
        ]

    def _known(self, db: Connection, entry: Entry, scope: Scope, now: datetime) -> Record | None:
        """The oldest shown memory of exactly these ids that says all that an entry says."""
        same, params = _same_text(entry.text, scope, now)
        told = " AND ".join(f"memories.{name} IS ?" for name in _TOLD)
        values = [getattr(entry, name) for name in _TOLD]
        rows = db.execute(f"{SELECT} {same} AND {told} ORDER BY memories.id", (*params, *values))
        return next((record for row in rows if (record := Record.of(row)).metadata == dict(entry.metadata)), None)

    def _twins(self, db: Connection, text: str, scope: Scope, now: datetime) -> list[Record]:
        """The latest shown memories of exactly these ids with this text, as many as are linked."""
        same, params = _same_text(text, scope, now)
        latest = "ORDER BY memories.timestamp DESC, memories.id DESC LIMIT ?"
        return [Record.of(row) for row in db.execute(f"{SELECT} {same} {latest}", (*params, MOST_LINKS))]

    def _insert_row(self, db: Connection, record: Record) -> Record:
        return replace(record, id=int(db.execute(_INSERT, record.row[1:]).fetchall()[0][0]))

    def _index(self, db: Connection, index: VectorIndex, records: Sequence[Record], vectors: Vectors) -> None:
        if records:
            ids = [record.id for record in records]
            self.lexical.add(db, ids, [record.indexed_text for record in records])
            with remedy(REBUILD):
                index.add(db, np.array(ids, np.int64), vectors)

    def _link(self, db: Connection, outcome: Added, similar: Sequence[Similar], outcomes: Sequence[Added]) -> Added:
        record = outcome.record
        found = {twin.id: (twin, similarity) for twin, similarity in outcome.similar}
        exactly, ids = record.scope.exactly()
        for candidate in similar:
            identifier = outcomes[-1 - candidate.id].record.id if candidate.id < 0 else candidate.id
            row = db.execute(f"{SELECT} WHERE memories.id = ? AND {exactly}", (identifier, *ids)).fetchone()
            if row is not None and identifier != record.id:
                found.setdefault(identifier, (Record.of(row), candidate.similarity))
        linked = sorted(found.values(), key=lambda pair: -pair[1])[:MOST_LINKS]
        db.executemany(
            "INSERT INTO links VALUES (?, ?, ?)", [(record.id, other.id, similarity) for other, similarity in linked]
        )
        return Added(record, outcome.event, tuple(linked))


def read_history(db: Connection, uuid: str, scope: Scope) -> list[dict[str, Any]]:
    """A memory's history in mem0's form, oldest first; empty outside `scope`.

    Raises:
        InputError: no text can be an id.
    """
    named = [(name, value) for name, value in scope.items() if value is not None]
    condition = "".join(f" AND {name} = ?" for name, _ in named)
    rows = db.execute(
        f"SELECT id, {', '.join(_SHOWN)} FROM history WHERE memory_id = ?{condition} ORDER BY id",
        (check_text(uuid, "an id"), *(value for _, value in named)),
    )
    names = ("id", *_SHOWN)
    return [
        dict(zip(names, (str(row[0]), *row[1:]), strict=True)) | {"is_deleted": bool(row[names.index("is_deleted")])}
        for row in rows
    ]


def restore_history(db: Connection, record: Record, changes: Iterable[HistoryLine]) -> None:
    """Gives a memory the history it had elsewhere."""
    db.executemany(_INSERT_HISTORY, [_history_row(record, change) for change in changes])


def _history_row(record: Record, change: HistoryLine) -> tuple[Any, ...]:
    return (
        record.uuid, change.old, change.new, change.event, change.created_at, change.updated_at,
        int(change.new is None), record.actor_id, record.role, record.user_id, record.agent_id, record.run_id,
    )  # fmt: skip


def _new_record(entry: Entry, scope: Scope, follows: int | None, now: str) -> Record:
    return Record(
        id=0, uuid=str(uuids.uuid4()), text=entry.text, hash=text_hash(entry.text), user_id=scope.user_id,
        agent_id=scope.agent_id, run_id=scope.run_id, actor_id=entry.actor_id, role=entry.role,
        metadata=entry.metadata, importance=entry.importance, timestamp=entry.timestamp,
        local_timestamp=entry.local_timestamp, expiration_date=entry.expiration_date, forgotten_at=None,
        pinned=False, follows=follows, created_at=now, updated_at=now,
    )  # fmt: skip


def _same_text(text: str, scope: Scope, now: datetime) -> tuple[str, tuple[Any, ...]]:
    """SQL that holds for shown memories of exactly these ids with this text, with its parameters."""
    exactly, ids = scope.exactly()
    shown, day = visible(now)
    sql = f"INDEXED BY memories_hash WHERE memories.hash = ? AND {exactly} AND memories.text = ? AND {shown}"
    return sql, (text_hash(text), *ids, text, *day)
