"""`ActionCache`: trajectories an agent has gone before, found again by task and state, so that its model need not be
asked (GRATING, section 6: application "agent memory").

A trajectory is returned only where the cache is sure enough; how sure is enough is calibrated on labelled examples.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import uuid as uuids
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.apps.memory.arguments import check_text
from edge.apps.memory.confidence import Confidence, describe, fit
from edge.apps.memory.moments import Clock, stamp
from edge.apps.memory.schema import ACTIONS
from edge.apps.memory.scope import SCOPE_FIELDS, Scope
from edge.apps.memory.store import MemoryStore
from edge.errors import InputError

_CANDIDATES = 8
"""Similar trajectories among which the reranker chooses."""

_FEWEST_EXAMPLES = 20
_COUNTERS = ("lookups", "hits")
_SELECT = "SELECT uuid, task, state, trajectory, successes, failures, created_at, updated_at FROM actions"

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Action:
    """A stored trajectory.

    Attributes:
        trajectory: what was stored; anything JSON can hold.
        confidence: probability that it answers the task it was looked up for, lowered by failures; 1 where task and
            state are the same.
        similarity: cosine with what was asked.
        relevance: the reranker's probability; None without reranking.
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


@dataclass(frozen=True, slots=True)
class ActionExample:
    """A labelled lookup: what is asked, and the id of the trajectory that is right, None if none stored is."""

    task: str
    state: str
    right: str | None


@dataclass(frozen=True, slots=True)
class ActionStats:
    """How the cache has served: lookups and hits of all processes, and the feedback that hits were given.

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


class ActionCache:
    """Trajectories of one memory. Thread-safe."""

    def __init__(self, store: MemoryStore, bound: Scope, clock: Clock) -> None:
        self._store = store
        self._bound = bound
        self._clock = clock
        self._counting = threading.Lock()
        self._counts: Counter[str] = Counter()

    def add(self, task: str, trajectory: Any, *, state: str = "", **scope: Any) -> str:
        """Stores what was done for `task` in `state` (the screen, the page, the situation), in the scope named by
        `user_id`, `agent_id` and `run_id`. For the same task and state it replaces what was stored, and its feedback.

        Returns:
            The trajectory's id.

        Raises:
            InputError: no task, no scope, or a trajectory that JSON cannot hold.
        """
        whose = self._scope(scope)
        key = _key(check_text(task, "the task"), state)
        try:
            text = json.dumps(trajectory, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise InputError(f"a trajectory must be what JSON can hold: {error}") from None
        store = self._store
        index = store.claimed_index()
        vector = store.embed([key])
        now = stamp(self._clock())
        exactly = " AND ".join(f"{name} IS ?" for name in SCOPE_FIELDS)
        with store.write() as db:
            row = db.execute(
                f"SELECT uuid FROM actions WHERE {exactly} AND task = ? AND state = ?", (*whose, task, state)
            ).fetchone()
            if row is not None:
                db.execute(
                    "UPDATE actions SET trajectory = ?, successes = 0, failures = 0, updated_at = ? WHERE uuid = ?",
                    (text, now, row[0]),
                )
                return str(row[0])
            identifier = str(uuids.uuid4())
            number = db.execute(
                "INSERT INTO actions (uuid, task, state, trajectory, user_id, agent_id, run_id, successes, failures,"
                " created_at, updated_at) VALUES (?, ?, ?, ?, ?, ?, ?, 0, 0, ?, ?)",
                (identifier, task, state, text, *whose, now, now),
            ).lastrowid
            assert number is not None
            index.add(db, np.array([ACTIONS + number], np.int64), vector)
            store.ledger.advance(db)
        store.upkeep.wrote(1)
        return identifier

    def lookup(
        self, task: str, *, state: str = "", rerank: bool = True, confidence: float | None = None, **scope: Any
    ) -> Action | None:
        """The trajectory that answers `task` in `state`, or None if the cache is not sure of any.

        Without calibration only the same task and state is sure.

        Args:
            rerank: let the cross-encoder choose among similar ones.
            confidence: instead of the calibrated threshold.
        """
        found, calibration = self._judged(task, state, self._scope(scope), rerank)
        if confidence is None:
            confidence = 1.0 if calibration is None else calibration.threshold
        # The same task and state is sure, however careful the calibration is.
        hit = found[0] if found and found[0].confidence >= min(confidence, 1.0) else None
        with self._counting:
            self._counts.update(lookups=1, hits=int(hit is not None))
        return hit

    def candidates(self, task: str, *, state: str = "", rerank: bool = True, **scope: Any) -> list[Action]:
        """Similar trajectories, the chosen one first, with their confidence; what `lookup` decides on."""
        return self._judged(task, state, self._scope(scope), rerank)[0]

    def feedback(self, action_id: str, success: bool) -> None:
        """Says whether a returned trajectory worked; failures lower its confidence, successes restore it.

        Raises:
            InputError: there is no such trajectory here.
        """
        column = "successes" if success else "failures"
        condition, params = _condition(self._bound)
        with self._store.write() as db:
            changed = db.execute(
                f"UPDATE actions SET {column} = {column} + 1 WHERE uuid = ? AND {condition}", (action_id, *params)
            ).rowcount
            if not changed:
                raise InputError(f"there is no trajectory {action_id!r} here")
            self._count(db)

    def get(self, action_id: str) -> Action | None:
        """One trajectory; None if there is none here."""
        condition, params = _condition(self._bound)
        with self._store.read() as db:
            row = db.execute(f"{_SELECT} WHERE uuid = ? AND {condition}", (action_id, *params)).fetchone()
        return None if row is None else _action(row)

    def delete(self, action_id: str) -> None:
        """Deletes a trajectory.

        Raises:
            InputError: there is none here.
        """
        index = self._store.index
        condition, params = _condition(self._bound)
        with self._store.write() as db:
            row = db.execute(f"SELECT id FROM actions WHERE uuid = ? AND {condition}", (action_id, *params)).fetchone()
            if row is None or index is None:
                raise InputError(f"there is no trajectory {action_id!r} here")
            db.execute("DELETE FROM actions WHERE id = ?", row)
            index.delete(db, np.array([ACTIONS + row[0]], np.int64))
            self._store.ledger.advance(db)

    def calibrate(
        self, examples: Sequence[ActionExample], *, rerank: bool = True, most_wrong: float = 0.05, **scope: Any
    ) -> Confidence:
        """Learns from labelled lookups how sure to be, and keeps it: from then on `lookup` returns what is similar
        enough, of which at most `most_wrong` should be wrong. With and without reranking are calibrated apart.

        Raises:
            InputError: fewer than 20 examples that find anything, or a share outside (0, 1).
        """
        if not 0 < most_wrong < 1:
            raise InputError(f"most_wrong is a share between 0 and 1, not {most_wrong!r}")
        whose = self._scope(scope)
        signals, right = [], []
        for example in examples:
            found = self._similar(example.task, example.state, whose, rerank)
            if found and (found[0].task, found[0].state) != (example.task, example.state):
                signals.append(_signals(example.task, example.state, found, 0))
                right.append(found[0].id == example.right)
        if len(signals) < _FEWEST_EXAMPLES:
            raise InputError(
                f"{len(signals)} examples find a trajectory that is similar and not the same; "
                f"a calibration needs at least {_FEWEST_EXAMPLES}"
            )
        fitted = fit(np.array(signals), np.array(right), most_wrong, self._store.models.fingerprints(rerank=rerank))
        with self._store.write() as db:
            db.execute("INSERT OR REPLACE INTO settings VALUES (?, ?)", (_setting(rerank), fitted.to_json()))
        return fitted

    def calibration(self, *, rerank: bool = True) -> Confidence | None:
        """What `calibrate` found, if it was with the present models."""
        with self._store.read() as db:
            row = db.execute("SELECT value FROM settings WHERE name = ?", (_setting(rerank),)).fetchone()
        fitted = None if row is None else Confidence.from_json(row[0])
        return (
            fitted if fitted is not None and fitted.models == self._store.models.fingerprints(rerank=rerank) else None
        )

    def stats(self) -> ActionStats:
        """Hits, misses and wrong hits."""
        with self._store.write() as db:
            self._count(db)
            counted = dict(db.execute("SELECT name, value FROM settings WHERE name LIKE 'actions:count:%'").fetchall())
            total, right, wrong = db.execute(
                "SELECT count(*), coalesce(sum(successes), 0), coalesce(sum(failures), 0) FROM actions"
            ).fetchone()
        lookups, hits = (int(counted.get(f"actions:count:{name}", 0)) for name in _COUNTERS)
        return ActionStats(total, lookups, hits, right, wrong)

    def _judged(self, task: str, state: str, whose: Scope, rerank: bool) -> tuple[list[Action], Confidence | None]:
        """Similar trajectories with their confidence, and what that was calibrated by."""
        found = self._similar(check_text(task, "the task"), state, whose, rerank)
        calibration = self.calibration(rerank=rerank) if found else None
        judged = []
        for place, action in enumerate(found):
            if (action.task, action.state) == (task, state):
                sure = 1.0
            else:
                sure = calibration.of(_signals(task, state, found, place)) if calibration else 0.0
            kept = (action.successes + 1) / (action.successes + action.failures + 1)
            judged.append(replace(action, confidence=sure * kept))
        return judged, calibration

    def _similar(self, task: str, state: str, whose: Scope, rerank: bool) -> list[Action]:
        """The most similar trajectories, the best first: the same task and state, else by the reranker or cosine."""
        index = self._store.index
        if index is None:
            return []
        condition, params = _condition(whose)
        key = _key(task, state)
        vector = self._store.embed([key], query=True)
        with self._store.read() as db:
            rows = db.execute(f"SELECT id FROM actions WHERE {condition} ORDER BY id", params).fetchall()
            if not rows:
                return []
            allowed = ACTIONS + np.array([row[0] for row in rows], np.int64)
            result = index.search(db, vector, _CANDIDATES, allowed=allowed)
            near = []
            for number, similarity in zip(result.ids[0].tolist(), result.scores[0].tolist(), strict=True):
                if number >= 0:
                    row = db.execute(f"{_SELECT} WHERE id = ?", (number - ACTIONS,)).fetchone()
                    near.append(replace(_action(row), similarity=similarity))
        if rerank:
            docs = [_key(action.task, action.state) for action in near]
            ranked = self._store.models.rank(key, docs, retrieved=[action.similarity for action in near])
            near = [replace(near[r.index], relevance=r.relevance) for r in ranked]
        return sorted(near, key=lambda action: (action.task, action.state) != (task, state))

    def _scope(self, ids: dict[str, Any]) -> Scope:
        if unknown := set(ids) - set(SCOPE_FIELDS):
            raise InputError(f"{sorted(unknown)[0]!r} is no id of a scope; they are {', '.join(SCOPE_FIELDS)}")
        scope = Scope.of(ids).within(self._bound)
        if not scope:
            raise InputError("name a scope: user_id, agent_id or run_id, in the call or in Memory(...)")
        return scope

    def _count(self, db: sqlite3.Connection) -> None:
        """Adds what this process has counted since to what all have."""
        with self._counting:
            counts, self._counts = self._counts, Counter()
        for name in _COUNTERS:
            db.execute(
                "INSERT INTO settings VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = value + excluded.value",
                (f"actions:count:{name}", counts[name]),
            )


def _signals(task: str, state: str, found: Sequence[Action], place: int) -> Floats:
    """What is known of one candidate beside the others."""
    action = found[place]
    others = [other for number, other in enumerate(found) if number != place]
    lead = action.similarity - max((other.similarity for other in others), default=0.0)
    relevance = 0.5 if action.relevance is None else action.relevance
    behind = max((other.relevance for other in others if other.relevance is not None), default=0.0)
    return describe(
        task, state, action.task, action.state, similarity=action.similarity, lead=lead, relevance=relevance,
        relevance_lead=0.0 if action.relevance is None else relevance - behind,
    )  # fmt: skip


def _key(task: str, state: str) -> str:
    """What is embedded and ranked."""
    return f"{task}\n{state}" if state else task


def _setting(rerank: bool) -> str:
    return f"actions:confidence:{'reranked' if rerank else 'similar'}"


def _condition(scope: Scope) -> tuple[str, list[str]]:
    named = [(name, value) for name, value in scope.items() if value is not None]
    return " AND ".join(f"{name} = ?" for name, _ in named) or "1", [value for _, value in named]


def _action(row: Sequence[Any]) -> Action:
    identifier, task, state, trajectory, *rest = row
    return Action(identifier, task, state, json.loads(trajectory), *rest)
