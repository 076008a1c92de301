"""`Health`: what is unfinished or damaged in a collection or memory, as every command says it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from typing import Any

from edge.connection import Connection

TABLE = """
CREATE TABLE IF NOT EXISTS health(kind TEXT PRIMARY KEY, text TEXT NOT NULL, remedy TEXT NOT NULL,
    since TEXT NOT NULL) WITHOUT ROWID;
"""
"""Troubles that are remembered until they are over."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something that is not as it should be.

    Attributes:
        kind: `rebuilding`, `missing vectors`, `indexing`, `compacting`, `lost commits` or `damaged`.
        text: what it means, as a sentence without its end.
        remedy: the command that ends it; empty where a running one is at it.
    """

    kind: str
    text: str
    remedy: str

    def __str__(self) -> str:
        if not self.remedy:
            return self.text
        return f"{self.text}; `{self.remedy}` {_ENDS.get(self.kind, 'goes on with it')}"


_ENDS = {
    "lost commits": "brings back what the sources still hold",
    "damaged": "mends what it can",
    "missing vectors": "makes them",
}


@dataclass(frozen=True, slots=True)
class Health:
    """All troubles of a store; none if it is complete and sound as far as is known."""

    troubles: tuple[Trouble, ...] = ()

    def __bool__(self) -> bool:
        """Whether all is well."""
        return not self.troubles

    def __iter__(self) -> Iterator[Trouble]:
        return iter(self.troubles)

    @property
    def state(self) -> str:
        """One word: `ok`, `unfinished` or `damaged`."""
        kinds = {trouble.kind for trouble in self.troubles}
        if kinds & {"damaged", "lost commits"}:
            return "damaged"
        return "unfinished" if kinds else "ok"

    def to_json(self) -> dict[str, Any]:
        """The state and its reasons."""
        return {"state": self.state, "troubles": [asdict(trouble) for trouble in self.troubles]}


def gathered(db: Connection, *found: Trouble | None) -> Health:
    """The troubles that are remembered, and those of `found` that there are, one of each kind."""
    troubles = {trouble.kind: trouble for trouble in noted(db)}
    for trouble in found:
        if trouble is not None:
            troubles[trouble.kind] = trouble
    return Health(tuple(troubles[kind] for kind in sorted(troubles)))


def note(db: Connection, trouble: Trouble) -> None:
    """Remembers a trouble until it is over; one of each kind, the first."""
    since = datetime.now(timezone.utc).isoformat(timespec="seconds")
    row = (trouble.kind, trouble.text, trouble.remedy, since)
    db.execute("INSERT OR IGNORE INTO health VALUES (?, ?, ?, ?)", row)


def is_noted(db: Connection, kind: str) -> bool:
    """Whether a trouble of this kind is remembered."""
    return db.execute("SELECT 1 FROM health WHERE kind = ?", (kind,)).fetchone() is not None


def forget(db: Connection, kind: str) -> None:
    """A trouble is over."""
    db.execute("DELETE FROM health WHERE kind = ?", (kind,))


def noted(db: Connection) -> list[Trouble]:
    """The troubles that are remembered."""
    return [Trouble(*row) for row in db.execute("SELECT kind, text, remedy FROM health ORDER BY kind")]
