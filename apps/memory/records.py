"""`Record`: a stored memory, its forms for callers and for the indexes, and its history; `RecordsWriter`: changes of
memories in all tables and indexes, in one transaction."""

from __future__ import annotations

import hashlib
import json
import uuid as uuids
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from typing import Any

import numpy as np

from edge.apps.memory.arguments import Scope, check_text, spoken, stamp
from edge.apps.memory.entries import Entry
from edge.apps.memory.models import REBUILD, Vectors
from edge.apps.memory.schema import PROVED, TEXT_INDEX
from edge.apps.store.failures import DamagedStore
from edge.apps.store.lexical import FUNCTION_WORDS, LexicalIndex
from edge.apps.store.rebuilding import remedy
from edge.apps.store.rows import row_sum
from edge.ivf.base import Connection
from edge.ivf.index import VectorIndex

_BATCH = 500
"""The number of ids in one SQL statement."""


@dataclass(frozen=True, slots=True)
class Record:
    """A row of `memories`, in the order of its columns.

    Attributes:
        id: the id in the indexes.
        uuid: the id for callers.
        timestamp: the time of the statement or event, if it was given.
        local_timestamp: the same time in the time zone it was given in; None if that is UTC or was not given.
        expiration_date: the last day on which the memory is shown.
        forgotten_at: the time from which the memory is hidden; None if it is not.
        follows: the `id` of the turn before, if the memory is a turn of a conversation.
        valid_from, valid_until: the times from and until which the statement holds, if they are known.
        superseded_by: the `uuid` of the memory that takes this one's place.
    """

    id: int
    uuid: str
    text: str
    hash: str
    user_id: str | None
    agent_id: str | None
    run_id: str | None
    actor_id: str | None
    role: str | None
    metadata: Mapping[str, Any] = field(hash=False)
    importance: float | None
    timestamp: str | None
    local_timestamp: str | None
    expiration_date: str | None
    forgotten_at: str | None
    pinned: bool
    follows: int | None
    created_at: str
    updated_at: str
    valid_from: str | None = None
    valid_until: str | None = None
    superseded_by: str | None = None

    @classmethod
    def of(cls, row: Sequence[Any]) -> Record:
        """A record from a row of `SELECT`.

        Raises:
            DamagedStore: the row differs from the one stored.
        """
        *values, checksum = row
        try:
            sound = checksum == _checksum(values)
            values[_METADATA] = json.loads(values[_METADATA])
        except (ValueError, TypeError, AttributeError):
            sound = False
        if not sound:
            raise not_stored(f"the memory {values[_UUID]!a}")
        values[_PINNED] = bool(values[_PINNED])
        return cls(*values)

    @property
    def row(self) -> tuple[Any, ...]:
        """The values of `STORED`."""
        values = [getattr(self, name) for name in COLUMNS]
        values[_METADATA] = dump_metadata(self.metadata)
        values[_PINNED] = int(self.pinned)
        return (*values, _checksum(values))

    @property
    def scope(self) -> Scope:
        """The ids that the memory is stored under."""
        return Scope(self.user_id, self.agent_id, self.run_id)

    @property
    def indexed_text(self) -> str:
        """The text in the full-text index: the date as a person writes it, and the memory's text."""
        when = self.local_timestamp or self.timestamp
        return f"{spoken(when)}: {self.text}" if when else self.text

    def to_json(self) -> dict[str, Any]:
        """The memory in mem0's form, with additional fields of this library. Fields without a value are left out,
        except `metadata`, which is then empty."""
        document: dict[str, Any] = {
            "id": self.uuid, "memory": self.text, "hash": self.hash, "metadata": dict(self.metadata),
            "created_at": self.created_at, "updated_at": self.updated_at,
        }  # fmt: skip
        for name in _OPTIONAL:
            value = getattr(self, name)
            if value is not None and value is not False:
                document[name] = value
        return document


COLUMNS = tuple(item.name for item in fields(Record))
STORED = (*COLUMNS, "checksum")
"""Columns of the table `memories`."""

SELECT = "SELECT " + ", ".join(f"memories.{name}" for name in STORED) + " FROM memories"
_UUID, _METADATA, _PINNED = map(COLUMNS.index, ("uuid", "metadata", "pinned"))
_PROVED = tuple(map(COLUMNS.index, PROVED["memories"]))
_OPTIONAL = (
    "user_id", "agent_id", "run_id", "actor_id", "role", "timestamp", "local_timestamp", "expiration_date",
    "forgotten_at", "pinned", "importance",
)  # fmt: skip


def _checksum(values: Sequence[Any]) -> bytes:
    """The checksum of the values of `COLUMNS`, with the metadata in its stored form."""
    return row_sum("memories", *(values[place] for place in _PROVED))


def not_stored(what: str) -> DamagedStore:
    """The error for a row that differs from the one stored."""
    return DamagedStore(
        f"{what} is not what was stored; `edge memory check` says what is lost, `edge memory repair` mends what it can"
    )


def dump_metadata(metadata: Mapping[str, Any]) -> str:
    """The stored form of metadata."""
    return json.dumps(dict(metadata), ensure_ascii=False, allow_nan=False)


def text_hash(text: str) -> str:
    """mem0's hash of a memory's text. It distinguishes texts and has no security purpose."""
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


def visible(now: datetime) -> tuple[str, list[str]]:
    """SQL for memories that are neither forgotten nor expired, with its parameters. Pinned memories never expire. The
    present day is that of `now` in its own time zone."""
    return (
        "memories.forgotten_at IS NULL AND "
        "(memories.pinned OR memories.expiration_date IS NULL OR memories.expiration_date >= ?)",
        [now.date().isoformat()],
    )


def read_records(db: Connection, ids: Iterable[int]) -> dict[int, Record]:
    """Records by id. Ids without a record are left out."""
    found: dict[int, Record] = {}
    for group in batches(list(ids)):
        rows = db.execute(f"{SELECT} WHERE memories.id IN ({', '.join('?' * len(group))})", group)
        found.update((row[0], Record.of(row)) for row in rows)
    return found


def find_record(db: Connection, uuid: str, scope: Scope) -> Record | None:
    """The memory with this id; None if `scope` has none.

    Raises:
        InputError: the id is empty or not text.
    """
    check_text(uuid, "an id")
    condition, params = scope.condition()
    row = db.execute(f"{SELECT} WHERE memories.uuid = ? AND {condition}", (uuid, *params)).fetchone()
    return None if row is None else Record.of(row)


def batches(values: Sequence[Any], size: int = _BATCH) -> Iterator[Sequence[Any]]:
    """Slices of at most `size`."""
    return (values[start : start + size] for start in range(0, len(values), size))


HISTORY_COLUMNS = (*PROVED["history"], "checksum")
_INSERT_HISTORY = f"INSERT INTO history ({', '.join(HISTORY_COLUMNS)}) VALUES ({', '.join('?' * len(HISTORY_COLUMNS))})"
_SHOWN = HISTORY_COLUMNS[:9]


@dataclass(frozen=True, slots=True)
class HistoryLine:
    """A change of a memory: its text before and after, the event, and the times of the memory's creation and of the
    change."""

    old: str | None
    new: str | None
    event: str
    created_at: str
    updated_at: str


def note_changes(db: Connection, changes: Iterable[tuple[Record | None, Record | None, str]], now: str) -> None:
    """Adds lines of history from (memory before, memory after, event) triples."""
    rows = []
    for old, new, event in changes:
        record = new or old
        assert record is not None
        before, after = (None if version is None else version.text for version in (old, new))
        rows.append(_history_row(record, HistoryLine(before, after, event, record.created_at, now)))
    db.executemany(_INSERT_HISTORY, rows)


def read_history(db: Connection, uuid: str, scope: Scope) -> list[dict[str, Any]]:
    """A memory's history in mem0's form, oldest first; empty if the memory is not in `scope`.

    Raises:
        InputError: the id is empty or not text.
        DamagedStore: a line differs from the one stored.
    """
    named = [(name, value) for name, value in scope.items() if value is not None]
    condition = "".join(f" AND {name} = ?" for name, _ in named)
    rows = db.execute(
        f"SELECT id, {', '.join(HISTORY_COLUMNS)} FROM history WHERE memory_id = ?{condition} ORDER BY id",
        (check_text(uuid, "an id"), *(value for _, value in named)),
    )
    lines = []
    for number, *values in rows:
        if row_sum("history", *values[:-1]) != values[-1]:
            raise not_stored(f"the history of the memory {uuid!a}")
        line = {"id": str(number), **dict(zip(_SHOWN, values, strict=False))}
        lines.append(line | {"is_deleted": bool(line["is_deleted"])})
    return lines


def restore_history(db: Connection, record: Record, changes: Iterable[HistoryLine]) -> None:
    """Stores the history that an imported memory had elsewhere."""
    db.executemany(_INSERT_HISTORY, [_history_row(record, change) for change in changes])


def _history_row(record: Record, change: HistoryLine) -> tuple[Any, ...]:
    values = (
        record.uuid, change.old, change.new, change.event, change.created_at, change.updated_at,
        int(change.new is None), record.actor_id, record.role, record.user_id, record.agent_id, record.run_id,
    )  # fmt: skip
    return (*values, row_sum("history", *values))


_INSERT = f"INSERT INTO memories ({', '.join(STORED[1:])}) VALUES ({', '.join('?' * (len(STORED) - 1))}) RETURNING id"
_UPDATE = f"UPDATE memories SET {', '.join(f'{name} = ?' for name in STORED[1:])} WHERE id = ?"
_TOLD = ("role", "actor_id", "timestamp", "expiration_date", "importance")
"""The fields of an entry besides its text and metadata."""

MOST_LINKS = 3
"""The most earlier memories that a memory is linked to. A frequent statement would otherwise have very many links."""


@dataclass(frozen=True, slots=True)
class Similar:
    """An earlier memory that a new one resembles.

    Attributes:
        id: its id, or `-1 - n` for the n-th entry of the same call.
        similarity: their cosine.
    """

    id: int
    similarity: float


@dataclass(frozen=True, slots=True)
class Added:
    """The result of adding an entry.

    Attributes:
        record: the new memory, or the existing one.
        event: ADD, or NONE if the same memory existed before.
        similar: the earlier memories that it was linked to, most similar first.
    """

    record: Record
    event: str
    similar: tuple[tuple[Record, float], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """mem0's form: `id`, `memory`, `event`, and in addition `similar` earlier memories if there are any."""
        record = self.record
        document: dict[str, Any] = {"id": record.uuid, "memory": record.text, "event": self.event}
        if record.role is not None:
            document |= {"actor_id": record.actor_id, "role": record.role}
        if self.similar:
            document["similar"] = [
                {"id": other.uuid, "memory": other.text, "similarity": similarity} for other, similarity in self.similar
            ]
        return document


class RecordsWriter:
    """Writes memories. Holds no connection: every method works inside the transaction of the `db` it is given."""

    def __init__(self) -> None:
        self.lexical = LexicalIndex(TEXT_INDEX, ignored=FUNCTION_WORDS)

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
        """Stores entries under exactly the ids of `scope`.

        An entry that equals a shown memory of the scope in all fields is not stored twice. Entries of one call are
        never compared with each other, because a conversation may repeat itself.

        Args:
            vectors: the vector of each entry, [n, dim].
            similar: for each entry, the memories to link it to. Memories stored under other ids are left out.
            follows: for each entry, the id of the turn before, or `-1 - n` for the n-th entry of this call.
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
                before = None  # another process has deleted it since
            record = _new_record(entry, scope, before, stamp(now))
            same_text = tuple((twin, 1.0) for twin in twins[entry.text])
            outcomes.append(Added(self._insert_row(db, record), "ADD", same_text))
        added = [(number, outcome) for number, outcome in enumerate(outcomes) if outcome.event == "ADD"]
        records = [outcome.record for _, outcome in added]
        self._index(db, index, records, vectors[[number for number, _ in added]])
        note_changes(db, ((None, record, "ADD") for record in records), stamp(now))
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
        """Stores records with their dates and `uuid`s, but without history and under new `id`s.

        Args:
            records: the records, each with the `uuid` of the turn before it, which must come earlier or be stored
                already.
            vectors: the vector of each record, [n, dim].
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
        """Stores a record unchanged, except for a new `id`. Its vector must be made later."""
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
        """Replaces a memory by a new version.

        Args:
            new: the new version, with the same `id` and `uuid`; its `updated_at` is the moment of the change.
            vector: the vector of the new text, [dim]; None if the text is unchanged.
            similar: the memories to link the new text to.
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
        note_changes(db, [(old, new, event)], new.updated_at)
        self.advance(db)

    def delete(self, db: Connection, index: VectorIndex, records: Sequence[Record], now: str) -> None:
        """Deletes memories; their history stays."""
        ids = [record.id for record in records]
        self.lexical.delete(db, ids, [record.indexed_text for record in records])
        with remedy(REBUILD):
            index.delete(db, np.array(ids, np.int64))
        for group in batches(ids):
            db.execute(f"DELETE FROM memories WHERE id IN ({', '.join('?' * len(group))})", group)
        note_changes(db, ((record, None, "DELETE") for record in records), now)
        self.advance(db)

    def clear(self, db: Connection, index: VectorIndex | None) -> None:
        """Deletes all rows of all tables, with the histories, and the action cache's settings."""
        if index is not None:
            index.clear(db)
        db.execute(f"INSERT INTO {TEXT_INDEX}({TEXT_INDEX}) VALUES ('delete-all')")
        for table in ("links", "history", "memories", "actions"):
            db.execute(f"DELETE FROM {table}")
        db.execute("DELETE FROM settings WHERE name LIKE 'actions:%'")
        self.advance(db)

    def advance(self, db: Connection) -> None:
        """Increments the generation, which tells every process that its cached ids are out of date."""
        db.execute("UPDATE settings SET value = value + 1 WHERE name = 'generation'")

    def link(self, db: Connection, record: Record, earlier: Sequence[tuple[str, float]]) -> None:
        """Links a memory to earlier ones, given as (`uuid`, similarity). Memories that are not earlier, or not stored
        under the same ids, are left out."""
        for uuid, similarity in earlier:
            other = find_record(db, uuid, record.scope)
            if other is not None and other.id < record.id and other.scope == record.scope:
                db.execute("INSERT OR IGNORE INTO links VALUES (?, ?, ?)", (record.id, other.id, similarity))

    def links(self, db: Connection, record: Record) -> list[tuple[str, float]]:
        """The ids and similarities of the memories linked with this one in either direction, most similar first."""
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
        """The oldest shown memory of exactly these ids that equals an entry in all fields."""
        same, params = _same_text(entry.text, scope, now)
        told = " AND ".join(f"memories.{name} IS ?" for name in _TOLD)
        values = [getattr(entry, name) for name in _TOLD]
        rows = db.execute(f"{SELECT} {same} AND {told} ORDER BY memories.id", (*params, *values))
        return next((record for row in rows if (record := Record.of(row)).metadata == dict(entry.metadata)), None)

    def _twins(self, db: Connection, text: str, scope: Scope, now: datetime) -> list[Record]:
        """The latest shown memories of exactly these ids with this text, at most `MOST_LINKS`."""
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


def _new_record(entry: Entry, scope: Scope, follows: int | None, now: str) -> Record:
    return Record(
        id=0, uuid=str(uuids.uuid4()), text=entry.text, hash=text_hash(entry.text), user_id=scope.user_id,
        agent_id=scope.agent_id, run_id=scope.run_id, actor_id=entry.actor_id, role=entry.role,
        metadata=entry.metadata, importance=entry.importance, timestamp=entry.timestamp,
        local_timestamp=entry.local_timestamp, expiration_date=entry.expiration_date, forgotten_at=None,
        pinned=False, follows=follows, created_at=now, updated_at=now,
    )  # fmt: skip


def _same_text(text: str, scope: Scope, now: datetime) -> tuple[str, tuple[Any, ...]]:
    """SQL for the shown memories of exactly these ids with this text, with its parameters."""
    exactly, ids = scope.exactly()
    shown, day = visible(now)
    sql = f"INDEXED BY memories_hash WHERE memories.hash = ? AND {exactly} AND memories.text = ? AND {shown}"
    return sql, (text_hash(text), *ids, text, *day)
