"""`Action`: a stored trajectory, the queries that find its rows, and the counts of lookups."""

from __future__ import annotations

import json
import logging
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from edge.apps.memory.arguments import Scope, check_text
from edge.apps.memory.records import PROVED, action_key, not_stored
from edge.apps.memory.store import MemoryStore
from edge.apps.store.rows import PER_JSON, HeldList, Row, held, row_sum, whole
from edge.errors import EdgeError
from edge.ivf.base import Connection

ROW = ("id", *PROVED["actions"], "checksum")
"""The columns that an action is read from."""

_SHOWN = PROVED["actions"].index("key")
_KINDS = (str, str, str, str, int, int, str, str)
"""The kinds of the values that are shown."""

_SELECT = f"SELECT {', '.join(ROW)} FROM actions"
_SAME = "key = ? AND task = ? AND state = ?"


@dataclass(frozen=True, slots=True)
class Action:
    """A stored trajectory.

    Attributes:
        trajectory: the stored value, which can be any JSON value.
        confidence: the probability that it solves the task it was looked up for, lowered by failures. Without failures
            it is 1 if task and state are the same.
        similarity: the cosine with the task and state that were looked up.
        relevance: the reranker's probability; None without reranking, or if `lookup` found the same task and state.
    """

    id: str
    task: str
    state: str
    trajectory: Any
    successes: int
    failures: int
    created_at: str
    updated_at: str
    confidence: float = 1.0
    similarity: float = 1.0
    relevance: float | None = None

    @property
    def kept(self) -> float:
        """The share of the confidence that remains after failures."""
        return (self.successes + 1) / (self.successes + self.failures + 1)


def find_action(db: Connection, uuid: str, scope: Scope) -> tuple[int, Action] | None:
    """The row number and the trajectory with this id; None if `scope` has none.

    Raises:
        InputError: the id is empty or not text.
    """
    condition, params = scope.condition("actions")
    found = _held(db, db.execute(f"{_SELECT} WHERE uuid = ? AND {condition}", (check_text(uuid, "an id"), *params)))
    return found[0] if found else None


def read_actions(db: Connection, numbers: Iterable[int]) -> list[Action]:
    """The trajectories of these rows, in their order."""
    rows = (row for number in numbers for row in db.execute(f"{_SELECT} WHERE id = ?", (number,)))
    return held(db, rows, read_action, _more)


def same_actions(db: Connection, task: str, state: str, scope: Scope, most: int) -> dict[int, Action]:
    """The trajectories of `scope` for exactly this task and state, by row number: first those with the best feedback,
    then the newest. There may be several if the scope leaves an id open."""
    condition, params = scope.condition("actions")
    order = "ORDER BY (successes + 1.0) / (successes + failures + 1) DESC, updated_at DESC, id DESC LIMIT ?"
    sql = f"{_SELECT} WHERE {_SAME} AND {condition} {order}"
    return dict(_held(db, db.execute(sql, (*_same(task, state), *params, most))))


def _held(db: Connection, rows: Iterable[Row]) -> HeldList[tuple[int, Action]]:
    return held(db, rows, lambda row: (row[0], read_action(row)), _more)


def _more(row: Row) -> int:
    return PER_JSON * len(str(row[ROW.index("trajectory")]))


def stored_under(db: Connection, task: str, state: str, scope: Scope) -> str | None:
    """The id of the trajectory for this task and state under exactly the ids of `scope`."""
    condition, params = scope.exactly("actions")
    sql = f"SELECT uuid FROM actions WHERE {_SAME} AND {condition}"
    row = db.execute(sql, (*_same(task, state), *params)).fetchone()
    return None if row is None else str(row[0])


def _same(task: str, state: str) -> tuple[str, str, str]:
    return action_key(task, state), task, state


def read_action(row: Sequence[Any]) -> Action:
    """A trajectory from a row of `ROW`.

    Raises:
        DamagedStore: the row differs from the one stored.
    """
    _, *values, checksum = row
    identifier, task, state, trajectory, *rest = values[:_SHOWN]
    try:
        sound = row_sum("actions", *values) == checksum and all(map(isinstance, values[:_SHOWN], _KINDS))
        found = json.loads(trajectory)
    except (ValueError, TypeError, RecursionError):
        sound = False
    if not sound:
        raise not_stored(f"the action {identifier!a:.80}")
    return Action(identifier, task, state, found, *rest)


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
            lookups, hits = (whole(counted[f"actions:count:{name}"]) for name in _COUNTERS)
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
