"""`Searcher`: fuses BM25 and vector search, then reranks. Memories outside the query's scope are never candidates."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import numpy as np
import numpy.typing as npt

from edge.apps.memory.filters import Condition
from edge.apps.memory.models import REBUILD
from edge.apps.memory.moments import Clock
from edge.apps.memory.ranking import NAME, SIGNALS, Candidate, Weights, first_person, relevance, weigh
from edge.apps.memory.records import SELECT, Record, read_records, visible
from edge.apps.memory.scope import Scope
from edge.apps.memory.store import MemoryStore
from edge.apps.store.fusion import convex_combination
from edge.apps.store.rebuilding import remedy
from edge.ivf.storage.connection import Connection

Ids = npt.NDArray[np.int64]

DEPTH = 100
"""The number of results that each of the two rankings contributes."""

POOL = 40
"""The least number of fused candidates that are reranked."""

BM25_WEIGHT = 0.5
"""The weight of BM25 beside the vectors' 0.5. On short turns of conversations, vectors are much weaker than words:
fusing ranks alone (reciprocal rank fusion) is worse than BM25, while fusing scores is not (the benchmark `memory`)."""

FULL_MATCH = 0.7
"""A memory's BM25 score counts in full from this share of `LexicalIndex.whole_score`. In a store of a few short facts
even "of" is a rare word. Without this share, a fact that has only "of" in common with a question gets all the weight of
BM25, because no fact has a better score."""


@dataclass(frozen=True, slots=True)
class Retrieved:
    """The results of the first stage, by row number.

    Attributes:
        words: the BM25 scores of the full-text results.
        near: the cosines of all results.
        records: the records of all results.
        whole: the query's `LexicalIndex.whole_score`.
    """

    words: Mapping[int, float]
    near: Mapping[int, float]
    records: Mapping[int, Record]
    whole: float = 0.0

    def fused(self) -> list[tuple[int, float]]:
        """The fused scores of all results by id, best first."""
        return convex_combination(self.words, self.near, BM25_WEIGHT, full=FULL_MATCH * self.whole)


class Searcher:
    """Finds memories. Thread-safe."""

    def __init__(self, store: MemoryStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._lock = threading.Lock()
        self._remembered: tuple[object, Ids, bool] | None = None
        self._lease = store.budget.reserve("memory scope", 0)

    def search(
        self,
        query: str,
        scope: Scope,
        condition: Condition,
        top_k: int,
        *,
        rerank: bool,
        threshold: float | None,
        weights: Weights,
        show_expired: bool,
    ) -> list[Candidate]:
        """The best `top_k` memories of `scope` that meet `condition`, best first.

        Args:
            threshold: the lowest relevance; results below it are left out.
        """
        if top_k == 0:
            return []
        self._store.models.check_room("searching", rerank=rerank, candidates=max(DEPTH, top_k))
        found = self.retrieve(query, scope, condition, max(DEPTH, top_k), show_expired=show_expired)
        fused = found.fused()[: max(POOL, top_k)]
        candidates = [
            Candidate(
                found.records[identifier],
                score,
                min(1.0, max(0.0, found.near[identifier])),
                _details(identifier, score, rank, found),
            )
            for rank, (identifier, score) in enumerate(fused, 1)
        ]
        if rerank and candidates:
            # Recency and importance may lift any candidate, so with them all candidates need their final scores.
            candidates = self._rerank(query, candidates, scope, None if weights else min(top_k, len(candidates)))
        if weights:
            candidates = weigh(candidates, weights, self._clock())
        if threshold is not None:
            candidates = [candidate for candidate in candidates if candidate.relevance >= threshold]
        return candidates[:top_k]

    def retrieve(self, query: str, scope: Scope, condition: Condition, depth: int, *, show_expired: bool) -> Retrieved:
        """The best `depth` memories by full text and the best `depth` by vectors, in one consistent view."""
        index = self._store.index
        if index is None:
            return Retrieved({}, {}, {})
        vector = self._store.embed([query], query=True)
        whose = self.condition(scope, condition, self._clock(), show_expired=show_expired)
        with self._store.read() as db, self._store.trace.span("candidates", "memory"):
            allowed, everything = self._allowed(db, whose)
            if len(allowed) == 0:
                return Retrieved({}, {}, {})
            with remedy(REBUILD):
                found = index.search(db, vector, depth, allowed=None if everything else allowed)
            near = {int(i): float(s) for i, s in zip(found.ids[0], found.scores[0], strict=True) if i >= 0}
            words = self._lexical(db, query, depth, whose, everything)
            unknown = [identifier for identifier in words if identifier not in near]
            if unknown:  # the vector search did not return these, or a rebuild has not made their vectors yet
                vectors = index.vectors(db, np.array(unknown, np.int64), absent_as_zero=True)
                near |= zip(unknown, (vectors @ vector[0]).tolist(), strict=True)
            records = read_records(db, near)
            for identifier in near.keys() - records.keys():
                raise self._store.database.damaged(f"is damaged: memory {identifier} is indexed and not there")
            whole = self._store.records_writer.lexical.whole_score(db, query)
            return Retrieved(words, near, records, whole)

    def listed(
        self, scope: Scope, condition: Condition, limit: int | None, *, show_expired: bool, offset: int = 0
    ) -> list[Record]:
        """The memories of `scope` that meet `condition`, newest first, without the first `offset` of them."""
        whose = self.condition(scope, condition, self._clock(), show_expired=show_expired)
        with self._store.read() as db:
            rows = db.execute(
                f"{SELECT} WHERE {whose.sql} ORDER BY memories.created_at DESC, memories.id DESC LIMIT ? OFFSET ?",
                (*whose.params, -1 if limit is None else limit, offset),
            )
            return [Record.of(row) for row in rows]

    def neighbours(self, record: Record, count: int, *, show_expired: bool) -> list[tuple[int, Record]]:
        """The turns around a turn: the `count` memories stored before it and after it under the same ids, with their
        positions relative to it, in the order in which they were stored."""
        sql, params = record.scope.exactly()
        same = self.condition(Scope(), Condition(sql, tuple(params)), self._clock(), show_expired=show_expired)
        around: list[tuple[int, Record]] = []
        with self._store.read() as db:
            for sign, comparison, order in ((-1, "<", "DESC"), (1, ">", "ASC")):
                rows = db.execute(
                    f"{SELECT} INDEXED BY memories_turns WHERE {same.sql} AND memories.id {comparison} ? "
                    f"ORDER BY memories.id {order} LIMIT ?",
                    (*same.params, record.id, count),
                )
                around += [(sign * place, Record.of(row)) for place, row in enumerate(rows, 1)]
        return sorted(around, key=lambda pair: pair[0])

    def condition(self, scope: Scope, condition: Condition, now: datetime, *, show_expired: bool) -> Condition:
        """The condition for a memory to be returned: it is in the scope, passes the filters, and is shown."""
        sql, params = scope.condition()
        parts = [Condition(sql, tuple(params)), condition]
        if not show_expired:
            shown, today = visible(now)
            parts.append(Condition(shown, tuple(today)))
        return Condition.all_of(parts)

    def close(self) -> None:
        """Frees the cached ids."""
        with self._lock:
            self._remembered = None
            self._lease.release()

    def _allowed(self, db: Connection, whose: Condition) -> tuple[Ids, bool]:
        """The ids of the memories that may be returned, ascending, and whether these are all ids of the vector index.
        The result is cached until any process writes."""
        generation = db.execute("SELECT value FROM settings WHERE name = 'generation'").fetchone()[0]
        key = (generation, whose.sql, whose.params)
        with self._lock:
            if self._remembered is not None and self._remembered[0] == key:
                return self._remembered[1], self._remembered[2]
        # The ids are read as one text, because 100,000 rows of one id take three times as long.
        sql = f"SELECT group_concat(memories.id) FROM memories WHERE {whose.sql}"
        text = db.execute(sql, whose.params).fetchone()[0]
        allowed = np.sort(np.fromstring(text, np.int64, sep=",")) if text else np.empty(0, np.int64)
        total = db.execute("SELECT count(*) FROM memories").fetchone()[0]
        total += db.execute("SELECT count(*) FROM actions").fetchone()[0]
        with self._lock:
            self._lease.resize(allowed.nbytes)
            self._remembered = (key, allowed, len(allowed) == total)
        return allowed, len(allowed) == total

    def _lexical(self, db: Connection, query: str, depth: int, whose: Condition, everything: bool) -> dict[int, float]:
        """The BM25 scores of the best `depth` memories that may be returned."""
        lexical = self._store.records_writer.lexical
        # The plus sign keeps SQLite from running the whole full-text query once for every id of the set.
        inside = f"+rowid IN (SELECT memories.id FROM memories WHERE {whose.sql})"
        where, params = ("", ()) if everything else (inside, whose.params)
        return dict(lexical.search(db, query, depth, where=where, params=params)[:depth])

    def _rerank(self, query: str, candidates: Sequence[Candidate], scope: Scope, top_k: int | None) -> list[Candidate]:
        """The best `top_k` candidates (all if None) in the reranker's order, blended with the order of retrieval.

        The reranker reads a turn together with the turn before it, because few answers name their subject.
        """
        answered = {c.record.follows for c in candidates if c.record.follows is not None}
        with self._store.read() as db:
            before = read_records(db, answered)
        docs = []
        for record in (candidate.record for candidate in candidates):
            turn = before.get(record.follows) if record.follows is not None else None
            docs.append(record.indexed_text if turn is None else f"{turn.text}\n{record.indexed_text}")
        with self._store.trace.span("rerank", "memory"):
            ranked = self._store.models.rank(query, docs, top_k, retrieved=[c.score for c in candidates])
        fitted = self._store.models.evidence(NAME, SIGNALS)
        personal = [0.0] * len(candidates) if fitted is None else self._personal(query, candidates, scope)
        found = []
        for r in ranked:
            candidate = candidates[r.index]
            value = relevance(fitted, r.relevance, candidate.details["semantic"], personal[r.index])
            details = {**candidate.details, "reranker": r.relevance}
            found.append(replace(candidate, score=r.score, relevance=value, details=details))
        return found

    def _personal(self, query: str, candidates: Sequence[Candidate], scope: Scope) -> list[float]:
        """The cosines of candidates with the question rewritten in the first person."""
        asked = first_person(query, scope)
        index = self._store.index
        if asked == query or index is None:
            return [candidate.details["semantic"] for candidate in candidates]
        vector = self._store.embed([asked], query=True)[0]
        with self._store.read() as db:
            ids = np.array([candidate.record.id for candidate in candidates], np.int64)
            near: list[float] = (index.vectors(db, ids, absent_as_zero=True) @ vector).tolist()
        return near


def _details(identifier: int, score: float, rank: int, found: Retrieved) -> dict[str, float | int]:
    """The figures of the first stages for one candidate."""
    details: dict[str, float | int] = {"semantic": found.near[identifier], "fused": score, "fused_rank": rank}
    return details | ({"bm25": found.words[identifier]} if identifier in found.words else {})
