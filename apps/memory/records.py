"""`Record`: one memory as it is stored, and the forms it takes for callers and for the indexes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any

from edge.apps.memory.arguments import check_text
from edge.apps.memory.moments import spoken
from edge.apps.memory.scope import Scope
from edge.apps.store.failures import DamagedStore
from edge.connection import Connection

_BATCH = 500
"""Ids in one statement."""


@dataclass(frozen=True, slots=True)
class Record:
    """A row of `memories`, in the order of its columns.

    Attributes:
        id: what the indexes know it by; `uuid` is what callers know it by.
        timestamp: when what it tells was said or happened, if anybody said.
        local_timestamp: the same in the time zone it was given in; None where that is UTC or was not said.
        expiration_date: the last day on which it is shown.
        forgotten_at: since when it is hidden.
        follows: the `id` of the turn before it, where it is one of a conversation.
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

    @classmethod
    def of(cls, row: Sequence[Any]) -> Record:
        """A record from a row of `COLUMNS`.

        Raises:
            DamagedStore: it is not what was stored.
        """
        values = list(row)
        try:
            values[_METADATA] = json.loads(values[_METADATA])
            sound = text_hash(values[_TEXT]) == values[_HASH]
        except (ValueError, TypeError, AttributeError):
            sound = False
        if not sound:
            raise not_stored(f"the memory {values[_UUID]!a}")
        values[_PINNED] = bool(values[_PINNED])
        return cls(*values)

    @property
    def row(self) -> tuple[Any, ...]:
        """The values of `COLUMNS`."""
        values = [getattr(self, name) for name in COLUMNS]
        values[_METADATA] = dump_metadata(self.metadata)
        values[_PINNED] = int(self.pinned)
        return tuple(values)

    @property
    def scope(self) -> Scope:
        """The ids it is stored under."""
        return Scope(self.user_id, self.agent_id, self.run_id)

    @property
    def indexed_text(self) -> str:
        """What the text index holds: the date as a person writes it, and the text."""
        when = self.local_timestamp or self.timestamp
        return f"{spoken(when)}: {self.text}" if when else self.text

    def to_json(self) -> dict[str, Any]:
        """The memory as mem0 returns it, with what only this library knows beside it; fields without a value are left
        out but for `metadata`, which is then empty."""
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
SELECT = "SELECT " + ", ".join(f"memories.{name}" for name in COLUMNS) + " FROM memories"
_UUID, _TEXT, _HASH, _METADATA, _PINNED = map(COLUMNS.index, ("uuid", "text", "hash", "metadata", "pinned"))
_OPTIONAL = (
    "user_id", "agent_id", "run_id", "actor_id", "role", "timestamp", "local_timestamp", "expiration_date",
    "forgotten_at", "pinned", "importance",
)  # fmt: skip


def not_stored(what: str) -> DamagedStore:
    """The error for a row that is not what was written."""
    return DamagedStore(
        f"{what} is not what was stored; `edge memory check` says what is lost, `edge memory repair` mends what it can"
    )


def dump_metadata(metadata: Mapping[str, Any]) -> str:
    """Metadata as stored."""
    return json.dumps(dict(metadata), ensure_ascii=False, allow_nan=False)


def text_hash(text: str) -> str:
    """mem0's hash of a memory's text; tells texts apart, protects nothing."""
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


def visible(now: datetime) -> tuple[str, list[str]]:
    """SQL that holds for memories that are neither forgotten nor, unless pinned, expired on the day that `now` says it
    is where it was read off; with its parameters."""
    return (
        "memories.forgotten_at IS NULL AND "
        "(memories.pinned OR memories.expiration_date IS NULL OR memories.expiration_date >= ?)",
        [now.date().isoformat()],
    )


def read_records(db: Connection, ids: Iterable[int]) -> dict[int, Record]:
    """Records by id; ids that are not there are missing."""
    found: dict[int, Record] = {}
    for group in batches(list(ids)):
        rows = db.execute(f"{SELECT} WHERE memories.id IN ({', '.join('?' * len(group))})", group)
        found.update((row[0], Record.of(row)) for row in rows)
    return found


def find_record(db: Connection, uuid: str, scope: Scope) -> Record | None:
    """The memory with this id, if it belongs to `scope`.

    Raises:
        InputError: no text can be an id.
    """
    check_text(uuid, "an id")
    condition, params = scope.condition()
    row = db.execute(f"{SELECT} WHERE memories.uuid = ? AND {condition}", (uuid, *params)).fetchone()
    return None if row is None else Record.of(row)


def batches(values: Sequence[Any], size: int = _BATCH) -> Iterator[Sequence[Any]]:
    """Slices of at most `size`."""
    return (values[start : start + size] for start in range(0, len(values), size))
