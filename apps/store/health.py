"""`Health`: the unfinished work and the damage of a collection or memory, as every command reports it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from typing import Any

from edge.ivf.base import Connection

TABLE = """
CREATE TABLE IF NOT EXISTS health(kind TEXT PRIMARY KEY, text TEXT NOT NULL, remedy TEXT NOT NULL,
    since TEXT NOT NULL) WITHOUT ROWID;
"""
"""The table of troubles that stay recorded until they are over."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """One problem of a store.

    Attributes:
        kind: `rebuilding`, `missing vectors`, `indexing`, `compacting`, `erasing` or `damaged`.
        text: describes the problem, as a sentence without its period.
        remedy: the command that ends it; empty while a running process is already ending it.
    """

    kind: str
    text: str
    remedy: str

    def __str__(self) -> str:
        if not self.remedy:
            return self.text
        return f"{self.text}; `{self.remedy}` {_ENDS.get(self.kind, 'goes on with it')}"


_NOTED = {
    "compacting": ("the last compaction was interrupted", "compact"),
    "damaged": ("a check found damage", "repair"),
    "erasing": ("an erasure was interrupted, and bytes of what was deleted are left", "repair"),
    "indexing": ("a run was interrupted", "index"),
    "missing vectors": ("some texts have no vector, because a repair was interrupted", "repair"),
}
"""The text of each kind of recorded trouble, and the verb that ends it."""

_ENDS = {
    "erasing": "ends it",
    "damaged": "mends what it can",
    "missing vectors": "makes them",
}


@dataclass(frozen=True, slots=True)
class Health:
    """All troubles of a store; empty if the store is complete and no damage is known."""

    troubles: tuple[Trouble, ...] = ()

    def __bool__(self) -> bool:
        """Whether the store has no trouble."""
        return not self.troubles

    def __iter__(self) -> Iterator[Trouble]:
        return iter(self.troubles)

    @property
    def state(self) -> str:
        """One word: `ok`, `unfinished` or `damaged`."""
        kinds = {trouble.kind for trouble in self.troubles}
        if "damaged" in kinds:
            return "damaged"
        return "unfinished" if kinds else "ok"

    def to_json(self) -> dict[str, Any]:
        """The state and the troubles behind it, ready for JSON."""
        return {"state": self.state, "troubles": [asdict(trouble) for trouble in self.troubles]}


def gathered(db: Connection, verbs: str, *found: Trouble | None) -> Health:
    """The recorded troubles together with those in `found`, one of each kind."""
    troubles = {trouble.kind: trouble for trouble in noted(db, verbs)}
    for trouble in found:
        if trouble is not None:
            troubles[trouble.kind] = trouble
    return Health(tuple(troubles[kind] for kind in sorted(troubles)))


def note(db: Connection, kind: str) -> None:
    """Records a trouble of one of the kinds of `_NOTED` until it is over."""
    since = datetime.now(timezone.utc).isoformat(timespec="seconds")
    text, verb = _NOTED[kind]
    db.execute("INSERT OR IGNORE INTO health VALUES (?, ?, ?, ?)", (kind, text, verb, since))


def is_noted(db: Connection, kind: str) -> bool:
    """Whether a trouble of this kind is recorded."""
    return db.execute("SELECT 1 FROM health WHERE kind = ?", (kind,)).fetchone() is not None


def forget(db: Connection, kind: str) -> None:
    """Removes the record of a trouble that is over."""
    db.execute("DELETE FROM health WHERE kind = ?", (kind,))


def noted(db: Connection, verbs: str) -> list[Trouble]:
    """The recorded troubles. Only their kinds are read: the texts come from this program, not from the file."""
    kinds = [kind for kind in _NOTED if is_noted(db, kind)]
    return [Trouble(kind, text, f"{verbs} {verb}") for kind in kinds for text, verb in [_NOTED[kind]]]
