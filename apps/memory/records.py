"""`Record`: a stored memory, its forms for callers and for the indexes, its links, and the history of its changes."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from typing import Any

from edge.apps.memory.arguments import Scope, check_text, spoken
from edge.apps.memory.schema import PROVED
from edge.apps.store.failures import DamagedStore
from edge.apps.store.rows import PER_JSON, HeldDict, HeldList, Row, held, row_sum
from edge.ivf.base import Connection

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
        """The values of `STORED`."""
        values = [getattr(self, name) for name in COLUMNS]
        values[_METADATA] = json.dumps(dict(self.metadata), ensure_ascii=False, allow_nan=False)
        values[_PINNED] = int(self.pinned)
        return (*values, _checksum(values))

    @property
    def scope(self) -> Scope:
        """The ids that the memory is stored under."""
        return Scope(self.user_id, self.agent_id, self.run_id)

    @property
    def since(self) -> str:
        """The moment from which the memory holds, as far as is known."""
        return self.valid_from or self.timestamp or self.created_at

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
_UUID, _TEXT, _METADATA, _PINNED = map(COLUMNS.index, ("uuid", "text", "metadata", "pinned"))
_PROVED = tuple(map(COLUMNS.index, PROVED["memories"]))
_MOMENTS = tuple(
    map(COLUMNS.index, ("timestamp", "local_timestamp", "created_at", "updated_at", "valid_from", "valid_until"))
)
_KINDS = tuple(
    {
        "int": int, "int | None": int | None, "str": str, "str | None": str | None, "bool": int,
        "float | None": float | int | None, "Mapping[str, Any]": str,
    }[str(item.type)]
    for item in fields(Record)
)  # fmt: skip
"""The kind of each of `COLUMNS` as it is stored. Anybody may have written a file, with checksums that are right."""

_OPTIONAL = (
    "user_id", "agent_id", "run_id", "actor_id", "role", "timestamp", "local_timestamp", "expiration_date",
    "forgotten_at", "pinned", "importance", "valid_from", "valid_until", "superseded_by",
)  # fmt: skip


def _checksum(values: Sequence[Any]) -> bytes:
    """The checksum of the values of `COLUMNS`, with the metadata in its stored form."""
    return row_sum("memories", *(values[place] for place in _PROVED))


def not_stored(what: str) -> DamagedStore:
    """The error for a row that differs from the one stored."""
    return DamagedStore(
        f"{what} is not what was stored; `edge memory check` says what is lost, `edge memory repair` mends what it can"
    )


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


def held_records(db: Connection, rows: Iterable[Row]) -> HeldList[Record]:
    """The records of rows of `SELECT`, held as `held` does.

    Raises:
        BudgetExceeded: they do not fit.
        DamagedStore: a row differs from the one stored.
    """
    return held(db, rows, Record.of, lambda row: PER_JSON * len(str(row[_METADATA])) + sys.getsizeof(row[_TEXT]))


def read_records(db: Connection, ids: Iterable[int]) -> dict[int, Record]:
    """Records by id. Ids without a record are left out. Raises as `held_records` does."""
    sql = f"{SELECT} WHERE memories.id IN (%s)"
    rows = (row for group in batches(list(ids)) for row in db.execute(sql % ", ".join("?" * len(group)), group))
    records = held_records(db, rows)
    found = HeldDict({record.id: record for record in records})
    found.rows = records
    return found


def find_record(db: Connection, uuid: str, scope: Scope) -> Record | None:
    """The memory with this id; None if `scope` has none.

    Raises:
        InputError: the id is empty or not text.
    """
    check_text(uuid, "an id")
    condition, params = scope.condition()
    found = held_records(db, db.execute(f"{SELECT} WHERE memories.uuid = ? AND {condition}", (uuid, *params)))
    return found[0] if found else None


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


def read_history(db: Connection, uuids: Sequence[str], scope: Scope) -> list[dict[str, Any]]:
    """The history of memories in mem0's form, oldest first; without memories that are not in `scope`.

    Raises:
        InputError: the id is empty or not text.
        DamagedStore: a line differs from the one stored.
    """
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
    """Stores the history that an imported memory had elsewhere."""
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
    """Stores a record under a new `id`, without history and outside the indexes. Returns it with its `id`."""
    return replace(record, id=int(db.execute(_INSERT, (*record.row[1:], record.follows)).fetchall()[0][0]))


def replace_record(db: Connection, record: Record) -> None:
    """Stores a new version of a record."""
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
