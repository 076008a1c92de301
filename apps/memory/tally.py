"""`Tally`: how often the action cache was asked, and how often it knew."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from dataclasses import dataclass

from edge.apps.memory.store import MemoryStore
from edge.connection import Connection
from edge.errors import EdgeError

_COUNTERS = ("lookups", "hits")


@dataclass(frozen=True, slots=True)
class ActionStats:
    """How the cache has served: lookups and hits of all processes, and the feedback that hits were given. What another
    process has counted is here once it closes its memory or asks for its own.

    Attributes:
        wrong: hits that feedback called failures.
    """

    trajectories: int
    lookups: int
    hits: int
    right: int
    wrong: int

    @property
    def hit_rate(self) -> float:
        """Share of lookups that were hits."""
        return self.hits / self.lookups if self.lookups else 0.0

    @property
    def wrong_rate(self) -> float:
        """Share of the hits with feedback that were wrong."""
        return self.wrong / (self.right + self.wrong) if self.right + self.wrong else 0.0


class Tally:
    """Counts in this process, and adds that to the store when something is written anyway, asked for, or closed: a
    lookup does not wait for the disk. Thread-safe."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def count(self, *, hit: bool) -> None:
        """Notes a lookup."""
        with self._lock:
            self._counts.update(lookups=1, hits=int(hit))

    def save(self, db: Connection) -> None:
        """Adds what was counted here since to what all have, inside a transaction."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
        for name in _COUNTERS:
            db.execute(
                "INSERT INTO settings VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = value + excluded.value",
                (f"actions:count:{name}", counts[name]),
            )

    def stats(self) -> ActionStats:
        """What all have counted."""
        with self._store.write() as db:
            self.save(db)
            counted = dict(db.execute("SELECT name, value FROM settings WHERE name LIKE 'actions:count:%'").fetchall())
            total, right, wrong = db.execute(
                "SELECT count(*), coalesce(sum(successes), 0), coalesce(sum(failures), 0) FROM actions"
            ).fetchone()
        lookups, hits = (int(counted[f"actions:count:{name}"]) for name in _COUNTERS)
        return ActionStats(total, lookups, hits, right, wrong)

    def clear(self) -> None:
        """Forgets what was counted here."""
        with self._lock:
            self._counts.clear()

    def close(self) -> None:
        """Adds what was counted here to the store."""
        with self._lock:
            counted = bool(self._counts)
        if not counted:
            return
        try:
            with self._store.write() as db:
                self.save(db)
        except EdgeError as error:  # what remains to be closed must be
            logging.getLogger(__name__).warning("the lookups of the action cache were not counted: %s", error)
