"""The history of memories: a line for each change."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from edge.apps.memory.arguments import check_text
from edge.apps.memory.records import Record
from edge.apps.memory.scope import Scope
from edge.connection import Connection

_HISTORY = (
    "memory_id", "old_memory", "new_memory", "event", "created_at", "updated_at", "is_deleted", "actor_id", "role",
    "user_id", "agent_id", "run_id",
)  # fmt: skip
_INSERT_HISTORY = f"INSERT INTO history ({', '.join(_HISTORY)}) VALUES ({', '.join('?' * len(_HISTORY))})"
_SHOWN = _HISTORY[:9]


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
    """Stores the history that an imported memory had elsewhere."""
    db.executemany(_INSERT_HISTORY, [_history_row(record, change) for change in changes])


def _history_row(record: Record, change: HistoryLine) -> tuple[Any, ...]:
    return (
        record.uuid, change.old, change.new, change.event, change.created_at, change.updated_at,
        int(change.new is None), record.actor_id, record.role, record.user_id, record.agent_id, record.run_id,
    )  # fmt: skip
