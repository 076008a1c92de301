"""`ActionCache`: an agent's earlier trajectories, found again by task and state, so that its model need not be asked
(GRATING, section 6: application "agent memory"). One is returned only from a confidence that labelled examples
calibrate."""

from __future__ import annotations

import json
import logging
import re
import threading
import uuid as uuids
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.apps.memory.arguments import SCOPE_FIELDS, Clock, Scope, check_text, check_unicode, json_text, stamp
from edge.apps.memory.records import ACTIONS, PROVED, SEAL, action_key, action_text, advance, not_stored
from edge.apps.memory.store import REBUILD, MemoryStore
from edge.apps.store.failures import WrongValue
from edge.apps.store.rebuilding import remedy
from edge.apps.store.rows import PER_JSON, HeldList, Row, held, row_sum, whole
from edge.errors import EdgeError, InputError
from edge.ivf.base import Connection
from edge.models import evidence
from edge.models.evidence import Logistic, log_odds
from edge.public_calls import checked_arguments

ROW = ("id", *PROVED["actions"], "checksum")
"""The columns that an action is read from."""

_SHOWN = PROVED["actions"].index("key")
_KINDS = (str, str, str, str, int, int, str, str)
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
    """The row number and the trajectory with this id; None if `scope` has none."""
    condition, params = scope.condition("actions")
    found = _held(db, db.execute(f"{_SELECT} WHERE uuid = ? AND {condition}", (check_text(uuid, "an id"), *params)))
    return found[0] if found else None


def read_actions(db: Connection, numbers: Iterable[int]) -> list[Action]:
    rows = (row for number in numbers for row in db.execute(f"{_SELECT} WHERE id = ?", (number,)))
    return held(db, rows, read_action, _more)


def same_actions(db: Connection, task: str, state: str, scope: Scope, most: int) -> dict[int, Action]:
    """The trajectories of `scope` for exactly this task and state, by row number: the best feedback first, then the
    newest."""
    condition, params = scope.condition("actions")
    order = "ORDER BY (successes + 1.0) / (successes + failures + 1) DESC, updated_at DESC, id DESC LIMIT ?"
    sql = f"{_SELECT} WHERE {_SAME} AND {condition} {order}"
    return dict(_held(db, db.execute(sql, (*_same(task, state), *params, most))))


def _held(db: Connection, rows: Iterable[Row]) -> HeldList[tuple[int, Action]]:
    return held(db, rows, lambda row: (row[0], read_action(row)), _more)


def _more(row: Row) -> int:
    return PER_JSON * len(str(row[ROW.index("trajectory")]))


def stored_under(db: Connection, task: str, state: str, scope: Scope) -> str | None:
    condition, params = scope.exactly("actions")
    sql = f"SELECT uuid FROM actions WHERE {_SAME} AND {condition}"
    row = db.execute(sql, (*_same(task, state), *params)).fetchone()
    return None if row is None else str(row[0])


def _same(task: str, state: str) -> tuple[str, str, str]:
    return action_key(task, state), task, state


def read_action(row: Sequence[Any]) -> Action:
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
    """Figures of the action cache: lookups, hits and the feedback on hits. Counts of another process come once it
    closes its memory."""

    trajectories: int
    lookups: int
    hits: int
    right: int
    wrong: int

    @property
    def hit_rate(self) -> float:
        return self.hits / self.lookups if self.lookups else 0.0


_CANDIDATES = 8
_RANKED = 2
"""The trajectories that the reranker returns: the chosen one, and the next one for comparison."""

_FEWEST_EXAMPLES = 20

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ActionExample:
    """A labelled lookup: the task and state, and the id of the right trajectory; None if no stored one is right."""

    task: str
    state: str
    right: str | None


@checked_arguments
class ActionCache:
    """Trajectories of one memory. Thread-safe."""

    def __init__(self, store: MemoryStore, bound: Scope, clock: Clock) -> None:
        self._store = store
        self._bound = bound
        self._clock = clock
        self._counting = threading.Lock()
        self._counts: Counter[str] = Counter()
        """Kept in memory, so that a lookup does not wait for the disk."""

    def add(self, task: str, trajectory: Any, *, state: str = "", **scope: Any) -> str:
        """Stores the trajectory of a task in a state (the screen, the page, the situation), in the scope named by
        `user_id`, `agent_id` and `run_id`. It replaces a stored trajectory for the same task and state, with its
        feedback.

        Returns:
            The trajectory's id.

        Raises:
            InputError: the task or scope is missing, the state is not text, or JSON cannot hold the trajectory.
        """
        whose = self._scope(scope)
        _check(task, state)
        text = json_text(trajectory, "a trajectory")
        store = self._store
        index = store.claimed_index()
        vector = store.embed([action_text(task, state)])
        now = stamp(self._clock())
        with store.write() as db:
            known = stored_under(db, task, state, whose)
            if known is not None:
                db.execute(
                    "UPDATE actions SET trajectory = ?, successes = 0, failures = 0, updated_at = ? WHERE uuid = ?",
                    (text, now, known),
                )
                db.execute(f"{SEAL['actions']} WHERE uuid = ?", (known,))
                return known
            identifier = str(uuids.uuid4())
            rows = db.execute(
                "INSERT INTO actions (uuid, task, state, key, trajectory, user_id, agent_id, run_id, successes,"
                " failures, created_at, updated_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, 0, 0, ?, ?) RETURNING id",
                (identifier, task, state, action_key(task, state), text, *whose, now, now),
            )
            number = int(rows.fetchall()[0][0])
            db.execute(f"{SEAL['actions']} WHERE id = ?", (number,))
            index.add(db, np.array([ACTIONS + number], np.int64), vector)
            advance(db)
        store.upkeep.wrote(1)
        return identifier

    def lookup(
        self, task: str, *, state: str = "", rerank: bool = True, confidence: float | None = None, **scope: Any
    ) -> Action | None:
        """The trajectory that solves `task` in `state`, or None if the cache is not confident of any.

        Without calibration only a trajectory for exactly the same task and state is returned. It is found without a
        model.

        Args:
            rerank: let the cross-encoder choose among similar trajectories.
            confidence: the confidence needed; by default the calibrated threshold.
        """
        whose = self._scope(scope)
        _check(task, state)
        with self._store.read() as db:
            same = same_actions(db, task, state, whose, 1)
        if same:
            found = [replace(action, confidence=action.kept) for action in same.values()]
            calibration = self.calibration(rerank=rerank) if found[0].confidence < 1 else None
        else:
            found, calibration = self._judged(task, state, whose, rerank)
        if confidence is None:
            confidence = 1.0 if calibration is None else calibration.threshold
        # A calibrated threshold may exceed 1. A trajectory for the same task and state is returned all the same.
        hit = found[0] if found and found[0].confidence >= min(confidence, 1.0) else None
        with self._counting:
            self._counts.update(lookups=1, hits=int(hit is not None))
        return hit

    def candidates(self, task: str, *, state: str = "", rerank: bool = True, **scope: Any) -> list[Action]:
        """Similar trajectories with their confidence, the chosen one first. `lookup` decides by the first one."""
        return self._judged(task, state, self._scope(scope), rerank)[0]

    def feedback(self, action_id: str, success: bool) -> None:
        """Records whether a returned trajectory worked. Failures lower its confidence, successes restore it."""
        column = "successes" if success else "failures"
        with self._store.write() as db:
            number, _ = self._found(db, action_id)
            db.execute(f"UPDATE actions SET {column} = {column} + 1 WHERE id = ?", (number,))
            db.execute(f"{SEAL['actions']} WHERE id = ?", (number,))
            self._save_counts(db)

    def get(self, action_id: str) -> Action | None:
        """The trajectory with an id; None if there is none in this scope."""
        with self._store.read() as db:
            found = find_action(db, action_id, self._bound)
        return None if found is None else found[1]

    def delete(self, action_id: str) -> None:
        index = self._store.index
        with self._store.write() as db:
            number, _ = self._found(db, action_id)
            db.execute("DELETE FROM actions WHERE id = ?", (number,))
            if index is not None:
                index.delete(db, np.array([ACTIONS + number], np.int64))
            advance(db)

    def calibrate(
        self, examples: Sequence[ActionExample], *, rerank: bool = True, most_wrong: float = 0.05, **scope: Any
    ) -> Confidence:
        """Fits a confidence model to labelled lookups, and stores it. From then on `lookup` also returns similar
        trajectories, of which a share of at most `most_wrong` should be wrong. Lookups with and without reranking are
        calibrated separately.

        Raises:
            InputError: fewer than 20 examples find a similar trajectory, or `most_wrong` is outside (0, 1).
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
        """The stored result of `calibrate`; None if there is none for the models in use."""
        with self._store.read() as db:
            row = db.execute("SELECT value FROM settings WHERE name = ?", (_setting(rerank),)).fetchone()
            fitted = None if row is None else Confidence.from_json(row[0])
        return (
            fitted if fitted is not None and fitted.models == self._store.models.fingerprints(rerank=rerank) else None
        )

    def stats(self) -> ActionStats:
        """The cache's figures: hits, lookups and wrong hits."""
        with self._store.write() as db:
            self._save_counts(db)
            counted = dict(db.execute("SELECT name, value FROM settings WHERE name LIKE 'actions:count:%'").fetchall())
            total, right, wrong = db.execute(
                "SELECT count(*), coalesce(sum(successes), 0), coalesce(sum(failures), 0) FROM actions"
            ).fetchone()
            lookups, hits = (whole(counted[f"actions:count:{name}"]) for name in _COUNTERS)
        return ActionStats(total, lookups, hits, right, wrong)

    def forget_counts(self) -> None:
        """Drops the lookups of this process that are not stored yet."""
        with self._counting:
            self._counts.clear()

    def close(self) -> None:
        with self._counting:
            counted = bool(self._counts)
        if not counted:
            return
        try:
            with self._store.write() as db:
                self._save_counts(db)
        except EdgeError as error:  # the caller must still be able to close the other parts
            logging.getLogger(__name__).warning("the lookups of the action cache were not counted: %s", error)

    def _save_counts(self, db: Connection) -> None:
        with self._counting:
            counts, self._counts = self._counts, Counter()
        for name in _COUNTERS:
            db.execute(
                "INSERT INTO settings VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = value + excluded.value",
                (f"actions:count:{name}", counts[name]),
            )

    def _judged(self, task: str, state: str, whose: Scope, rerank: bool) -> tuple[list[Action], Confidence | None]:
        found = self._similar(task, state, whose, rerank)
        calibration = self.calibration(rerank=rerank) if found else None
        judged = []
        for place, action in enumerate(found):
            if (action.task, action.state) == (task, state):
                sure = 1.0
            else:
                sure = calibration.of(_signals(task, state, found, place)) if calibration else 0.0
            judged.append(replace(action, confidence=sure * action.kept))
        return judged, calibration

    def _similar(self, task: str, state: str, whose: Scope, rerank: bool) -> list[Action]:
        """The most similar trajectories, best first; those for the same task and state are before all others."""
        _check(task, state)
        index = self._store.index
        if index is None:
            return []
        key = action_text(task, state)
        condition, params = whose.condition("actions")
        vector = self._store.embed([key], query=True)
        with self._store.read() as db:
            rows = db.execute(f"SELECT id FROM actions WHERE {condition} ORDER BY id", params).fetchall()
            if not rows:
                return []
            allowed = ACTIONS + np.array([row[0] for row in rows], np.int64)
            with remedy(REBUILD):
                result = index.search(db, vector, _CANDIDATES, allowed=allowed)
            pairs = zip(result.ids[0].tolist(), result.scores[0].tolist(), strict=True)
            similarity = {number - ACTIONS: score for number, score in pairs if number >= 0}
            # A model reads the beginning of a long state, so others may be as near as the very same.
            same = list(same_actions(db, task, state, whose, _CANDIDATES))
            unseen = [number for number in same if number not in similarity]
            if unseen:
                vectors = index.vectors(db, ACTIONS + np.array(unseen, np.int64), absent_as_zero=True)
                similarity |= zip(unseen, (vectors @ vector[0]).tolist(), strict=True)
            numbers = same + [number for number in similarity if number not in same]
            found = zip(read_actions(db, numbers), numbers, strict=True)
            near = [replace(action, similarity=similarity[number]) for action, number in found]
        if rerank:
            docs = [action_text(action.task, action.state) for action in near]
            wanted = min(_RANKED, len(docs))
            ranked = self._store.models.rank(key, docs, wanted, retrieved=[action.similarity for action in near])
            order = [(r.index, replace(near[r.index], relevance=r.relevance)) for r in ranked]
            judged = {r.index for r in ranked}
            order += [(place, action) for place, action in enumerate(near) if place not in judged]
        else:
            order = list(enumerate(near))
        return [action for _, action in sorted(order, key=lambda pair: min(pair[0], len(same)))]

    def _found(self, db: Connection, action_id: str) -> tuple[int, Action]:
        found = find_action(db, action_id, self._bound)
        if found is None:
            raise InputError(f"there is no trajectory {action_id!r} here")
        return found

    def _scope(self, ids: dict[str, Any]) -> Scope:
        if unknown := set(ids) - set(SCOPE_FIELDS):
            raise InputError(f"{sorted(unknown)[0]!r} is no id of a scope; they are {', '.join(SCOPE_FIELDS)}")
        scope = Scope.of(ids).within(self._bound)
        if not scope:
            raise InputError("name a scope: user_id, agent_id or run_id, in the call or in Memory(...)")
        return scope


def _signals(task: str, state: str, found: Sequence[Action], place: int) -> Floats:
    action = found[place]
    others = [other for number, other in enumerate(found) if number != place]
    lead = action.similarity - max((other.similarity for other in others), default=0.0)
    relevance = 0.5 if action.relevance is None else action.relevance
    behind = max((other.relevance for other in others if other.relevance is not None), default=0.0)
    return describe(
        task, state, action.task, action.state, similarity=action.similarity, lead=lead, relevance=relevance,
        relevance_lead=0.0 if action.relevance is None else relevance - behind,
    )  # fmt: skip


def _check(task: str, state: str) -> None:
    check_text(task, "the task")
    check_unicode(state, "the state")


def _setting(rerank: bool) -> str:
    return f"actions:confidence:{'reranked' if rerank else 'similar'}"


SIGNALS = ("similarity", "lead", "overlap", "state_overlap", "details_differ", "relevance", "relevance_lead")
"""Of the chosen trajectory: its cosine and the lead over the next one's; the overlap of words; whether numbers, quoted
texts or names differ; the reranker's log-odds, and the lead of its probability (0 without reranking)."""

_WORD = re.compile(r"\w+")
_DETAIL = re.compile(r"\d+(?:[.:,]\d+)*|\"[^\"]+\"|'[^']{2,}'|(?<![.!?]\s)(?<!^)\b[A-Z]\w+")
_FOLDS = 5


@dataclass(frozen=True, slots=True)
class Confidence:
    """A fitted model: weights of the standardized signals, then the constant. A lookup is a hit from `threshold` on
    (above 1: none was safe enough). `hit_rate` and `wrong_rate` are of cross-validation; `models`: fingerprints of
    embedder and reranker."""

    weights: tuple[float, ...]
    mean: tuple[float, ...]
    scale: tuple[float, ...]
    threshold: float
    examples: int
    hit_rate: float
    wrong_rate: float
    models: tuple[str, str]

    def of(self, signals: Floats) -> float:
        """The probability that the trajectory with these signals, [len(SIGNALS)], is right."""
        return float(Logistic(self.weights, self.mean, self.scale).probability(signals[None])[0])

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Confidence:
        try:
            values: dict[str, Any] = json.loads(text)
            weights, mean, scale = (tuple(map(float, values[name])) for name in ("weights", "mean", "scale"))
            threshold, hits, wrong = (float(values[name]) for name in ("threshold", "hit_rate", "wrong_rate"))
            examples = int(values["examples"])
            embedder, reranker = map(str, values["models"])
        except (TypeError, ValueError, LookupError, RecursionError):
            raise WrongValue("a calibration of actions is none") from None
        if (len(weights), len(mean), len(scale)) != (len(SIGNALS) + 1, len(SIGNALS), len(SIGNALS)):
            raise WrongValue("a calibration of actions has other signals")
        return cls(weights, mean, scale, threshold, examples, hits, wrong, (embedder, reranker))


def fit(signals: Floats, right: npt.NDArray[np.bool_], most_wrong: float, models: tuple[str, str]) -> Confidence:
    """Fits a ridge logistic regression to signals [n, len(SIGNALS)], and chooses the lowest threshold with a wrong
    share of at most `most_wrong` on held-out predictions of a 5-fold cross-validation. One wrong hit is added to those
    observed, so that it is higher with few examples."""
    held_out = np.empty(len(signals))
    folds = np.arange(len(signals)) % _FOLDS
    for fold in range(_FOLDS):
        inside = folds == fold
        held_out[inside] = evidence.fit(signals[~inside], right[~inside]).probability(signals[inside])
    threshold = _threshold(held_out, right, most_wrong)
    hits = held_out >= threshold
    wrong = float((hits & ~right).sum() / hits.sum()) if hits.any() else 0.0
    model = evidence.fit(signals, right)
    return Confidence(
        weights=model.weights, mean=model.mean, scale=model.scale, threshold=threshold, examples=len(signals),
        hit_rate=float(hits.mean()), wrong_rate=wrong, models=models,
    )  # fmt: skip


def describe(
    task: str, state: str, other_task: str, other_state: str, *, similarity: float, lead: float,
    relevance: float = 0.5, relevance_lead: float = 0.0,
) -> Floats:  # fmt: skip
    return np.array([
        similarity, lead, _overlap(task, other_task), _overlap(state, other_state),
        float(details(task) != details(other_task)), log_odds(relevance), relevance_lead,
    ])  # fmt: skip


def details(text: str) -> frozenset[str]:
    """What a paraphrase keeps: numbers, quoted texts, and capitalized words that do not begin a sentence."""
    return frozenset(match.strip("\"'").casefold() for match in _DETAIL.findall(text))


def _overlap(one: str, other: str) -> float:
    """The Jaccard similarity of the texts' words; 1 if both have none."""
    a, b = set(_WORD.findall(one.casefold())), set(_WORD.findall(other.casefold()))
    return len(a & b) / len(a | b) if a | b else 1.0


def _threshold(confidence: Floats, right: npt.NDArray[np.bool_], most_wrong: float) -> float:
    order = np.argsort(-confidence, kind="stable")
    wrong = np.cumsum(~right[order])
    rates = (wrong + 1) / (np.arange(len(order)) + 2)
    last = np.append(confidence[order][1:] < confidence[order][:-1], True)  # equal confidences are hits together
    safe = np.flatnonzero((rates <= most_wrong) & last)
    return float(confidence[order[safe[-1]]]) if len(safe) else 2.0
