"""`ActionCounter`: counts the lookups of the action cache, and its hits."""

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
    """Figures of the action cache: the lookups and hits of all processes, and the feedback on hits. The counts of
    another process are included once that process closes its memory or reads its own figures.

    Attributes:
        trajectories: the number of stored trajectories.
        right, wrong: feedback on hits that reported success, and failure.
    """

    trajectories: int
    lookups: int
    hits: int
    right: int
    wrong: int

    @property
    def hit_rate(self) -> float:
        """The share of lookups that were hits."""
        return self.hits / self.lookups if self.lookups else 0.0

    @property
    def wrong_rate(self) -> float:
        """The share of wrong hits among the hits with feedback."""
        return self.wrong / (self.right + self.wrong) if self.right + self.wrong else 0.0


class ActionCounter:
    """Counts in memory, so that a lookup does not wait for the disk. The counts are added to the store with the next
    feedback, when the figures are read, and on closing. Thread-safe."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def count(self, *, hit: bool) -> None:
        """Counts a lookup."""
        with self._lock:
            self._counts.update(lookups=1, hits=int(hit))

    def save(self, db: Connection) -> None:
        """Adds this process's new counts to the common ones, inside a transaction."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
        for name in _COUNTERS:
            db.execute(
                "INSERT INTO settings VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = value + excluded.value",
                (f"actions:count:{name}", counts[name]),
            )

    def stats(self) -> ActionStats:
        """The figures of all processes."""
        with self._store.write() as db:
            self.save(db)
            counted = dict(db.execute("SELECT name, value FROM settings WHERE name LIKE 'actions:count:%'").fetchall())
            total, right, wrong = db.execute(
                "SELECT count(*), coalesce(sum(successes), 0), coalesce(sum(failures), 0) FROM actions"
            ).fetchone()
        lookups, hits = (int(counted[f"actions:count:{name}"]) for name in _COUNTERS)
        return ActionStats(total, lookups, hits, right, wrong)

    def clear(self) -> None:
        """Drops the counts that are not stored yet."""
        with self._lock:
            self._counts.clear()

    def close(self) -> None:
        """Adds the remaining counts to the store."""
        with self._lock:
            counted = bool(self._counts)
        if not counted:
            return
        try:
            with self._store.write() as db:
                self.save(db)
        except EdgeError as error:  # the caller must still be able to close the other parts
            logging.getLogger(__name__).warning("the lookups of the action cache were not counted: %s", error)
