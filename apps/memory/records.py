"""`Record`: a stored memory, its forms for callers and for the indexes, its links, its history, and the tables of
these."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from edge.apps.memory.arguments import (
    Scope,
    check_share,
    check_text,
    check_unicode,
    parse_day,
    parse_local,
    parse_moment,
    spoken,
)
from edge.apps.store.database import Migration
from edge.apps.store.failures import damaged
from edge.apps.store.lexical import LexicalIndex
from edge.apps.store.rows import PER_JSON, ROW_SUM, HeldDict, HeldList, Row, held, row_sum
from edge.apps.verbs.memories import UNSET, GivenFields
from edge.errors import InputError
from edge.ivf.base import Connection
from edge.ivf.index import VectorIndex

TURN = 0
"""As `follows`: a turn of a conversation whose turn before is not known yet."""

_PAUSE = timedelta(hours=6)
"""A turn within this time of the turn before belongs to the same conversation, even past midnight."""

_READ: Mapping[str, Callable[[Any, str], Any]] = {
    "moment": parse_moment, "day": parse_day, "share": check_share, "name": check_unicode,
    "id": lambda value, name: check_text(value, f'"{name}"'),
}  # fmt: skip
"""Reads a value of each kind of field as a caller gives it, with the name of its field for errors."""

_STORED: Mapping[str, tuple[Any, str]] = {
    "int": (int, "INTEGER NOT NULL"), "int | None": (int | None, "INTEGER"), "bool": (int, "INTEGER NOT NULL"),
    "str": (str, "TEXT NOT NULL"), "str | None": (str | None, "TEXT"), "float | None": (float | int | None, "REAL"),
    "Mapping[str, Any]": (str, "TEXT NOT NULL"),
}  # fmt: skip
"""For each type of a field the type of the stored value, and that of the column. Anybody may have written a file, with
checksums that are right."""


def _of(kind: str, *, default: str | None = None) -> Any:
    """A field of a kind of `_READ`, which a caller or an import may give."""
    return field(default=default, metadata={"kind": kind})


def _column(rest: str, *, default: Any = None) -> Any:
    """A field whose column has more than a type in the schema."""
    return field(default=default, metadata={"sql": rest})


@dataclass(frozen=True, slots=True)
class Record:
    """A row of `memories`, whose schema is made from it. A caller may give the fields of `GivenFields`."""

    id: int = _column(" PRIMARY KEY AUTOINCREMENT", default=0)  # known to the indexes; never used twice
    uuid: str = _column(" UNIQUE", default="")  # known to callers
    text: str = ""
    hash: str = ""
    user_id: str | None = None
    agent_id: str | None = None
    run_id: str | None = None
    actor_id: str | None = _of("name")
    role: str | None = _of("name")
    metadata: Mapping[str, Any] = field(hash=False, default_factory=dict)
    importance: float | None = _of("share")
    timestamp: str | None = _of("moment")  # when what it tells was said or happened
    local_timestamp: str | None = _of("moment")  # in the time zone that it was given in, if not UTC
    expiration_date: str | None = _of("day")  # the last day on which it is shown
    forgotten_at: str | None = _of("moment")
    pinned: bool = False
    follows: int | None = _column(" REFERENCES memories(id) ON DELETE SET NULL")  # the turn before
    created_at: str = _of("moment", default="")
    updated_at: str = _of("moment", default="")
    valid_from: str | None = _of("moment")  # from when it holds, and until when, if that is known
    valid_until: str | None = _of("moment")
    superseded_by: str | None = _of("id")  # uuid of the memory that takes its place

    @classmethod
    def new(cls, uuid: str, text: str, scope: Scope, now: str, **more: Any) -> Record:
        values: dict[str, Any] = {**dict(scope.items()), "created_at": now, "updated_at": now, **more}
        return cls(uuid=uuid, text=text, hash=text_hash(text), **values)

    @classmethod
    def of(cls, row: Sequence[Any]) -> Record:
        *values, checksum = row
        try:
            sound = checksum == _checksum(values) and all(map(isinstance, values, _KINDS))
            values[_METADATA] = json.loads(values[_METADATA])
            for place in _MOMENTS:
                if values[place] is not None:
                    datetime.fromisoformat(values[place])
        except (ValueError, TypeError, AttributeError, RecursionError):
            sound = False
        if not sound or not isinstance(values[_METADATA], dict):
            raise not_stored(f"the memory {values[_UUID]!a:.80}")
        values[_PINNED] = bool(values[_PINNED])
        return cls(*values)

    @property
    def row(self) -> tuple[Any, ...]:
        values = [getattr(self, name) for name in COLUMNS]
        values[_METADATA] = json.dumps(dict(self.metadata), ensure_ascii=False, allow_nan=False)
        values[_PINNED] = int(self.pinned)
        return (*values, _checksum(values))

    @property
    def scope(self) -> Scope:
        return Scope(self.user_id, self.agent_id, self.run_id)

    @property
    def since(self) -> str:
        """The moment from which the memory holds, as far as is known."""
        return self.valid_from or self.timestamp or self.created_at

    def of_the_same(self, other: Record) -> bool:
        return (self.scope, self.role, self.actor_id) == (other.scope, other.role, other.actor_id)

    def goes_on(self, earlier: Record) -> bool:
        """Whether this turn belongs to the conversation of an earlier one of its run: on one local day, or within
        `_PAUSE`, or without timestamps."""
        if earlier.timestamp is None or self.timestamp is None:
            return earlier.timestamp == self.timestamp
        days = {(one.local_timestamp or one.timestamp or "")[:10] for one in (earlier, self)}
        pause = datetime.fromisoformat(self.timestamp) - datetime.fromisoformat(earlier.timestamp)
        return len(days) == 1 or abs(pause) <= _PAUSE

    @property
    def indexed_text(self) -> str:
        """The text in the full-text index: the date as a person writes it, and the memory's text."""
        return dated(self.text, self.local_timestamp or self.timestamp)

    def to_json(self) -> dict[str, Any]:
        """The memory in mem0's form, with additional fields of this library."""
        document: dict[str, Any] = {
            "id": self.uuid, "memory": self.text, "hash": self.hash, "metadata": dict(self.metadata),
            "created_at": self.created_at, "updated_at": self.updated_at,
        }  # fmt: skip
        for name in SHOWN:
            value = getattr(self, name)
            if value is not None and value is not False:
                document.setdefault(name, value)
        return document


COLUMNS = tuple(item.name for item in fields(Record))
STORED = (*COLUMNS, "checksum")
KINDS: Mapping[str, str] = {item.name: item.metadata["kind"] for item in fields(Record) if "kind" in item.metadata}
"""The kinds of the fields that a caller may give, or an import (see `_READ`)."""

GIVEN = tuple(name for name in COLUMNS if name in KINDS and name in GivenFields.options())
"""The fields, besides text and metadata, that a caller may give and change."""

SHOWN = tuple(name for name in COLUMNS if name not in ("id", "uuid", "text", "hash", "metadata", "follows"))


def stored(given: Mapping[str, Any] | GivenFields) -> dict[str, Any]:
    """The stored forms of fields as a caller gives them; None stays None. With `timestamp` comes its local time."""
    if isinstance(given, GivenFields):
        given = {name: value for name in GIVEN if (value := getattr(given, name)) is not UNSET}
    found = {name: None if value is None else _READ[KINDS[name]](value, name) for name, value in given.items()}
    if given.get("timestamp") is not None:
        found["timestamp"], found["local_timestamp"] = parse_local(given["timestamp"])
    elif "timestamp" in given:
        found["local_timestamp"] = None
    return found


SELECT = "SELECT " + ", ".join(f"memories.{name}" for name in STORED) + " FROM memories"
_UUID, _TEXT, _METADATA, _PINNED = map(COLUMNS.index, ("uuid", "text", "metadata", "pinned"))
_MOMENTS = tuple(COLUMNS.index(name) for name, kind in KINDS.items() if kind == "moment")
_KINDS = tuple(_STORED[str(item.type)][0] for item in fields(Record))

PROVED = {
    "memories": tuple(name for name in COLUMNS if name not in ("id", "follows")),
    "history": (
        "memory_id", "old_memory", "new_memory", "event", "created_at", "updated_at", "is_deleted", "actor_id", "role",
        "user_id", "agent_id", "run_id",
    ),
}  # fmt: skip
"""The columns of each table that its rows' checksums cover, in this order."""

SEAL = {
    table: f"UPDATE {table} SET checksum = {ROW_SUM}('{table}', {', '.join(columns)})"
    for table, columns in PROVED.items()
}
"""For each table, the statement that sets the checksums of its rows."""

_PROVED = tuple(map(COLUMNS.index, PROVED["memories"]))


def _checksum(values: Sequence[Any]) -> bytes:
    """The checksum of the values of `COLUMNS`, with the metadata in its stored form."""
    return row_sum("memories", *(values[place] for place in _PROVED))


not_stored = partial(damaged, what="is not what was stored", verbs="edge memory")
"""The error for a row that differs from the one stored."""


def text_hash(text: str) -> str:
    """mem0's hash of a memory's text. It distinguishes texts and has no security purpose."""
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


def visible(now: datetime) -> tuple[str, list[str]]:
    """SQL with parameters for memories neither forgotten nor, on the day of `now`, expired. Pinned memories never
    expire."""
    return (
        "memories.forgotten_at IS NULL AND "
        "(memories.pinned OR memories.expiration_date IS NULL OR memories.expiration_date >= ?)",
        [now.date().isoformat()],
    )


def held_records(db: Connection, rows: Iterable[Row]) -> HeldList[Record]:
    return held(db, rows, Record.of, lambda row: PER_JSON * len(str(row[_METADATA])) + sys.getsizeof(row[_TEXT]))


def read_records(db: Connection, ids: Iterable[int]) -> dict[int, Record]:
    rows = db.execute(f"{SELECT} WHERE memories.id IN (SELECT value FROM json_each(?))", (json.dumps(list(ids)),))
    records = held_records(db, rows)
    found = HeldDict({record.id: record for record in records})
    found.rows = records
    return found


def find_record(db: Connection, uuid: str, scope: Scope) -> Record | None:
    check_text(uuid, "an id")
    condition, params = scope.condition()
    found = held_records(db, db.execute(f"{SELECT} WHERE memories.uuid = ? AND {condition}", (uuid, *params)))
    return found[0] if found else None


def expect_record(db: Connection, uuid: str, scope: Scope) -> Record:
    record = find_record(db, uuid, scope)
    if record is None:
        raise no_memory(uuid)
    return record


def no_memory(uuid: str) -> InputError:
    return InputError(f"there is no memory {uuid!r} here")


HISTORY_COLUMNS = (*PROVED["history"], "checksum")
_INSERT_HISTORY = f"INSERT INTO history ({', '.join(HISTORY_COLUMNS)}) VALUES ({', '.join('?' * len(HISTORY_COLUMNS))})"
_SHOWN = HISTORY_COLUMNS[:9]


@dataclass(frozen=True, slots=True)
class HistoryLine:
    """A change of a memory: its text before and after, and the times of the memory's creation and of the change."""

    old: str | None
    new: str | None
    event: str
    created_at: str
    updated_at: str


def note_changes(db: Connection, changes: Iterable[tuple[Record | None, Record | None, str]], now: str) -> None:
    rows = []
    for old, new, event in changes:
        record = new or old
        assert record is not None
        before, after = (None if version is None else version.text for version in (old, new))
        rows.append(_history_row(record, HistoryLine(before, after, event, record.created_at, now)))
    db.executemany(_INSERT_HISTORY, rows)


def read_history(db: Connection, uuids: Sequence[str], scope: Scope) -> list[dict[str, Any]]:
    """The history of memories in mem0's form, oldest first; without memories that are not in `scope`."""
    named = [(name, value) for name, value in scope.items() if value is not None]
    condition = "".join(f" AND {name} = ?" for name, _ in named)
    places = ", ".join("?" * len(uuids))
    rows = db.execute(
        f"SELECT id, {', '.join(HISTORY_COLUMNS)} FROM history WHERE memory_id IN ({places}){condition} ORDER BY id",
        (*(check_text(uuid, "an id") for uuid in uuids), *(value for _, value in named)),
    )

    def line(row: Row) -> dict[str, Any]:
        number, *values = row
        if row_sum("history", *values[:-1]) != values[-1] or any(isinstance(value, bytes) for value in values[:-1]):
            raise not_stored(f"the history of the memory {values[0]!a:.80}")
        shown = {"id": str(number), **dict(zip(_SHOWN, values, strict=False))}
        return shown | {"is_deleted": bool(shown["is_deleted"])}

    return held(db, rows, line)


def erase_history(db: Connection, scope: Scope, uuids: Sequence[str] | None = None) -> int:
    """Deletes the histories of these memories of a scope, or of all; returns the number of lines."""
    condition, params = scope.condition("history")
    chosen = "" if uuids is None else f" AND memory_id IN ({', '.join('?' * len(uuids))})"
    db.execute(f"DELETE FROM history WHERE {condition}{chosen}", (*params, *(uuids or ())))
    return int(db.execute("SELECT changes()").fetchone()[0])


def restore_history(db: Connection, record: Record, changes: Iterable[HistoryLine]) -> None:
    db.executemany(_INSERT_HISTORY, [_history_row(record, change) for change in changes])


def _history_row(record: Record, change: HistoryLine) -> tuple[Any, ...]:
    values = (
        record.uuid, change.old, change.new, change.event, change.created_at, change.updated_at,
        int(change.new is None), record.actor_id, record.role, record.user_id, record.agent_id, record.run_id,
    )  # fmt: skip
    return (*values, row_sum("history", *values))


_INSERT = (
    f"INSERT INTO memories ({', '.join(STORED[1:])}, conversation) VALUES ({', '.join('?' * (len(STORED) - 1))}, "
    "(SELECT coalesce(conversation, id) FROM memories WHERE id = ?)) RETURNING id"
)
_UPDATE = f"UPDATE memories SET {', '.join(f'{name} = ?' for name in STORED[1:])} WHERE id = ?"


def insert_record(db: Connection, record: Record) -> Record:
    """Stores a record under a new `id`, without history and outside the indexes."""
    return replace(record, id=int(db.execute(_INSERT, (*record.row[1:], record.follows)).fetchall()[0][0]))


def replace_record(db: Connection, record: Record) -> None:
    db.execute(_UPDATE, (*record.row[1:], record.id))


def read_links(db: Connection, record: Record) -> list[dict[str, Any]]:
    """The memories linked with this one in either direction, each with `id` and `similarity`, most similar first."""
    rows = db.execute(
        "SELECT memories.uuid, links.similarity FROM links JOIN memories ON memories.id = links.earlier "
        "WHERE links.memory = ? UNION ALL "
        "SELECT memories.uuid, links.similarity FROM links JOIN memories ON memories.id = links.memory "
        "WHERE links.earlier = ? ORDER BY 2 DESC, 1",
        (record.id, record.id),
    )
    return [{"id": str(uuid), "similarity": float(similarity)} for uuid, similarity in rows]


def advance(db: Connection) -> None:
    """Increments the generation, which tells every process that its cached ids are out of date."""
    db.execute("UPDATE settings SET value = value + 1 WHERE name = 'generation'")


TEXT_INDEX = "memories_fts"

_MEMORIES = f"""
CREATE TABLE memories (
    {", ".join(f"{item.name} {_STORED[str(item.type)][1]}{item.metadata.get('sql', '')}" for item in fields(Record))},
    checksum BLOB,
    conversation INTEGER                   -- id of its first turn, unless it is that one
);
CREATE INDEX memories_scope ON memories(user_id, agent_id, run_id, forgotten_at, pinned, expiration_date);
CREATE INDEX memories_agent ON memories(agent_id, forgotten_at, pinned, expiration_date) WHERE agent_id IS NOT NULL;
CREATE INDEX memories_run ON memories(run_id, forgotten_at, pinned, expiration_date) WHERE run_id IS NOT NULL;
CREATE INDEX memories_turns ON memories(user_id, agent_id, run_id);  -- and, as in every index, in the order of id
CREATE INDEX memories_hash ON memories(hash, user_id, agent_id, run_id, timestamp);  -- the latest of a text first
CREATE INDEX memories_follows ON memories(follows) WHERE follows IS NOT NULL;
CREATE INDEX memories_until ON memories(valid_until) WHERE valid_until IS NOT NULL;
CREATE INDEX memories_since ON memories(valid_from) WHERE valid_from IS NOT NULL;
CREATE INDEX memories_superseded ON memories(superseded_by) WHERE superseded_by IS NOT NULL;
CREATE INDEX memories_conversation ON memories(conversation) WHERE conversation IS NOT NULL;
CREATE TABLE history (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    memory_id TEXT NOT NULL,               -- outlives the memory
    old_memory TEXT, new_memory TEXT,
    event TEXT NOT NULL,
    created_at TEXT NOT NULL, updated_at TEXT NOT NULL,
    is_deleted INTEGER NOT NULL,
    actor_id TEXT, role TEXT, user_id TEXT, agent_id TEXT, run_id TEXT,
    checksum BLOB
);
CREATE INDEX history_memory ON history(memory_id);
CREATE TABLE links (
    memory INTEGER NOT NULL REFERENCES memories(id) ON DELETE CASCADE,
    earlier INTEGER NOT NULL REFERENCES memories(id) ON DELETE CASCADE,
    similarity REAL NOT NULL,              -- cosine; 1 for the same text
    PRIMARY KEY (memory, earlier)
) WITHOUT ROWID;
CREATE INDEX links_earlier ON links(earlier);
CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO settings VALUES ('generation', '0');
{LexicalIndex.create(TEXT_INDEX)}"""

CONVERSATIONS = """
WITH RECURSIVE said(id, first) AS (
    SELECT id, id FROM memories WHERE follows IS NULL
    UNION ALL SELECT memories.id, said.first FROM said JOIN memories ON memories.follows = said.id
) UPDATE memories SET conversation = said.first FROM said WHERE said.id = memories.id AND said.first <> said.id;
"""
"""Sets the conversation of every turn from the turns that follow one another."""

_UNRELEASED = 14
"""Number of steps before the first release, see `Migration`."""


def migrations() -> list[Migration]:
    """The migrations of the schema, in the order they were made. New ones must be added at the end."""
    return [*[None] * _UNRELEASED, "\n".join([_MEMORIES, *VectorIndex.migrations()])]


def full_text() -> LexicalIndex:
    """The full-text index of the memories."""
    return LexicalIndex(TEXT_INDEX)


def dated(text: str, when: str | None) -> str:
    return f"{spoken(when)}: {text}" if when else text
