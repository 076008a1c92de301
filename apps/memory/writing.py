"""`Writer`: changes memories in all tables and indexes, with their history, each change one transaction after
embedding. `Eraser`: erases memories with their histories, so that no file holds a byte of them."""

from __future__ import annotations

import json
import uuid as uuids
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.apps.memory.arguments import Clock, Scope, stamp
from edge.apps.memory.records import (
    GIVEN,
    SELECT,
    TEXT_INDEX,
    Record,
    advance,
    erase_history,
    expect_record,
    find_record,
    held_records,
    insert_record,
    no_memory,
    note_changes,
    read_records,
    replace_record,
    text_hash,
    visible,
)
from edge.apps.memory.store import REBUILD, MadeFrom, MemoryStore, Vectors
from edge.apps.memory.validity import ENDS, read, successors
from edge.apps.store.erasure import Erasure, erasing, erasure
from edge.apps.store.rebuilding import remedy
from edge.budget import MemoryBudget
from edge.errors import InputError
from edge.ivf.base import Connection
from edge.ivf.index import VectorIndex

NEAR = 0.93
"""The cosine from which two memories are linked: with the default embedder they differ by wording or typing errors
only."""

_TOLD = ("role", "actor_id", *GIVEN)
MOST_LINKS = 3
"""The most earlier memories that a memory is linked to. A frequent statement would otherwise have very many links."""

CANDIDATES = 12
"""The most earlier memories that a new one may end: the nearest of its scope."""

_TOGETHER = 32
"""The most statements of the same call that a new one may end."""


@dataclass(frozen=True, slots=True)
class Similar:
    id: int
    similarity: float


@dataclass(frozen=True, slots=True)
class Added:
    """The result of adding an entry: the record, new (ADD) or known (NONE); the memories that it was linked to; and
    those that were `judged`, each with the probability that the newer one ends the older."""

    record: Record
    event: str
    similar: tuple[tuple[Record, float], ...] = ()
    judged: tuple[tuple[Record, float], ...] = ()

    def to_json(self, *, explain: bool = False) -> dict[str, Any]:
        record = self.record
        document: dict[str, Any] = {"id": record.uuid, "memory": record.text, "event": self.event}
        if record.role is not None:
            document |= {"actor_id": record.actor_id, "role": record.role}
        if self.similar:
            document["similar"] = [
                {"id": other.uuid, "memory": other.text, "similarity": similarity} for other, similarity in self.similar
            ]
        ended = [other for other, _ in self.judged if other.superseded_by == record.uuid]
        if ended:
            document["supersedes"] = [
                {"id": other.uuid, "memory": other.text, "valid_until": other.valid_until} for other in ended
            ]
        if record.superseded_by is not None:
            document |= {"superseded_by": record.superseded_by, "valid_until": record.valid_until}
        if explain:
            document["judged"] = [
                {"id": other.uuid, "memory": other.text, "ends": chance >= ENDS, "probability": round(chance, 3)}
                for other, chance in self.judged
            ]
        return document


_FEW = 2_000
"""A scope of at most this many memories is searched by itself, a larger one in the whole index."""

_BEYOND = 16
_BLOCK = 256
_COLUMNS = 2_048
"""The number of earlier vectors that a block of 256 vectors is compared with at a time: 2 MB of cosines."""


def find_similar(
    db: Connection,
    index: VectorIndex,
    vectors: Vectors,
    scope: Scope,
    budget: MemoryBudget,
    judged: Sequence[bool] | None = None,
) -> list[list[Similar]]:
    """The memories most similar to each of `vectors`, at most 3 with a cosine of at least `NEAR`; for rows that are
    `judged`, the nearest `CANDIDATES`. They are stored under exactly the ids of `scope`, or earlier rows of `vectors`,
    given as `-1 - row`."""
    found: list[list[Similar]] = []
    most = [CANDIDATES if judged is not None and judged[row] else MOST_LINKS for row in range(len(vectors))]
    sql, params = scope.exactly()
    # Without those that ended: the nearest of a long chain would all be earlier values.
    own = f"SELECT id FROM memories WHERE {sql} AND id NOT IN (SELECT id FROM memories WHERE valid_until IS NOT NULL)"
    rows = db.execute(f"{own} LIMIT ?", (*params, _FEW + 1)).fetchall()
    allowed = np.sort(np.array([row[0] for row in rows], np.int64)) if len(rows) <= _FEW else None
    for start in range(0, len(vectors), _BLOCK):
        block = vectors[start : start + _BLOCK]
        near = _in_index(db, index, block, scope, allowed) if rows else [[] for _ in block]
        for row, similar in enumerate(near, start):
            found.append([one for one in similar if most[row] == CANDIDATES or one.similarity >= NEAR])
    if len(vectors) > 1:
        with budget.reserve("memory duplicates", 4 * min(_BLOCK, len(vectors)) * min(_COLUMNS, len(vectors))):
            for start in range(0, len(vectors), _BLOCK):
                _add_earlier(found, vectors, start, most)
    return [_most_similar(similar, count) for similar, count in zip(found, most, strict=True)]


def _most_similar(similar: list[Similar], most: int) -> list[Similar]:
    return sorted(similar, key=lambda one: -one.similarity)[:most]


def _add_earlier(found: list[list[Similar]], vectors: Vectors, start: int, most: Sequence[int]) -> None:
    block = vectors[start : start + _BLOCK]
    for first in range(0, start + len(block), _COLUMNS):
        cosines = block @ vectors[first : min(first + _COLUMNS, start + len(block))].T
        for row in range(len(block)):  # leave out the row itself and the rows after it
            cosines[row, max(0, start + row - first) :] = -1
        for _ in range(MOST_LINKS):
            best = cosines.argmax(axis=1)
            for row in np.flatnonzero(cosines[np.arange(len(block)), best] >= NEAR).tolist():
                found[start + row].append(Similar(-1 - first - int(best[row]), float(cosines[row, best[row]])))
                cosines[row, best[row]] = -1
        # Cut after each block of columns: if a text is repeated often, nearly all rows are near.
        ends = slice(start, start + _BLOCK)
        found[ends] = [_most_similar(similar, count) for similar, count in zip(found[ends], most[ends], strict=True)]


def _in_index(
    db: Connection, index: VectorIndex, block: Vectors, scope: Scope, allowed: npt.NDArray[np.int64] | None
) -> list[list[Similar]]:
    with remedy(REBUILD):
        result = index.search(db, block, CANDIDATES if allowed is not None else _BEYOND, allowed=allowed)
    near = [
        [Similar(int(i), float(s)) for i, s in zip(ids, scores, strict=True) if i >= 0]
        for ids, scores in zip(result.ids, result.scores, strict=True)
    ]
    if allowed is not None:
        return near
    sql, params = scope.exactly()
    # NOT INDEXED makes SQLite look up the row numbers. It would otherwise scan the whole scope.
    inside = f"SELECT id FROM memories NOT INDEXED WHERE id IN (SELECT value FROM json_each(?)) AND {sql}"
    some = json.dumps(sorted({one.id for similar in near for one in similar}))
    ours = {row[0] for row in db.execute(inside, (some, *params))}
    return [[one for one in similar if one.id in ours] for similar in near]


_DELETED_TOGETHER = 1_000
"""The memories deleted in one transaction, which bounds the time that other writers wait."""


class Writer:
    def __init__(self, store: MemoryStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def add(self, entries: Sequence[Record], scope: Scope, *, supersede: bool = True) -> list[Added]:
        """Stores entries under exactly the ids of `scope`: all of them or none."""
        if not entries:
            return []
        store = self._store
        index = store.claimed_index()
        with store.read() as db:
            before = self._turn_before(db, entries[0], scope)
        follows = [
            -number if number and _same_conversation(entries[number - 1], entry) else None
            for number, entry in enumerate(entries)
        ]
        made = [
            MadeFrom(entry.text, None if place is None else entries[-1 - place].text)
            for entry, place in zip(entries, follows, strict=True)
        ]
        if before is not None:
            follows[0], made[0] = before.id, MadeFrom(entries[0].text, before.text)
        vectors = store.source.vectors(made)
        judged = [supersede and bool(read(entry.text).sentences) for entry in entries]
        with store.read() as db:
            similar = find_similar(db, index, vectors, scope, store.budget, judged)
        with store.write() as db:
            added = self._insert(db, entries, vectors, similar, follows, scope)
            if supersede:
                added = self._judge(db, added, similar, judged, vectors)
        store.upkeep.wrote(len(added))
        return added

    def update(self, uuid: str, scope: Scope, changes: dict[str, Any]) -> Record:
        """Sets fields of a memory; `metadata` are merged into the existing ones."""
        store = self._store
        vector, similar = None, []
        if "text" in changes:
            with store.read() as db:
                old = expect_record(db, uuid, scope)
                before = read_records(db, [old.follows])[old.follows].text if old.follows is not None else None
            vector = store.source.vectors([MadeFrom(changes["text"], before)])
            changes = {**changes, "hash": text_hash(changes["text"])}
            with store.read() as db:
                old = expect_record(db, uuid, scope)
                similar = find_similar(db, store.claimed_index(), vector, old.scope, store.budget)[0]
        with store.write() as db:
            old = expect_record(db, uuid, scope)
            merged = {**old.metadata, **changes.get("metadata", {})}
            new = replace(old, **{**changes, "metadata": merged, "updated_at": stamp(self._clock())})
            if new.valid_until is None:
                new = replace(new, superseded_by=None)
            check_validity(new.valid_from, new.valid_until)
            if vector is not None and new.text != old.text:
                with remedy(REBUILD):
                    store.claimed_index().add(db, np.array([new.id], np.int64), vector)
                db.execute("DELETE FROM links WHERE memory = ? OR earlier = ?", (new.id, new.id))
                _link(db, Added(new, "UPDATE"), similar, [])
            self._replace(db, old, new, "UPDATE")
        store.upkeep.wrote(1)
        return new

    def mark(
        self, uuid: str, scope: Scope, event: str, *, pinned: bool | None = None, forgotten: bool | None = None
    ) -> None:
        """Pins or hides a memory, or neither any longer. Nothing is written where nothing changes."""
        now = stamp(self._clock())
        with self._store.write() as db:
            old = expect_record(db, uuid, scope)
            hidden = old.forgotten_at if forgotten is None else (old.forgotten_at or now) if forgotten else None
            new = replace(old, forgotten_at=hidden, pinned=old.pinned if pinned is None else pinned)
            if new != old:
                self._replace(db, old, replace(new, updated_at=now), event)

    def supersede(self, uuid: str, by: str | None, scope: Scope) -> None:
        """Ends a memory when the memory `by` begins to hold; None lets it hold again."""
        with self._store.write() as db:
            old = expect_record(db, uuid, scope)
            if by is None:
                if old.valid_until is not None:
                    new = replace(old, valid_until=None, superseded_by=None, updated_at=stamp(self._clock()))
                    self._replace(db, old, new, "REINSTATE")
                return
            other = expect_record(db, by, scope)
            if (old.user_id, old.agent_id) != (other.user_id, other.agent_id):
                raise InputError("a memory is superseded by one of the same user and agent")
            if old.superseded_by != by:
                if uuid in successors(db, by):
                    raise InputError(f"{by!r} was superseded by {uuid!r}, or is the same; let it hold again first")
                self._end(db, old, other)

    def _end(self, db: Connection, old: Record, by: Record) -> Record:
        """Ends a memory where `by` begins to hold. Returns it as it is stored now."""
        until = max(by.since, old.since)
        new = replace(old, valid_until=until, superseded_by=by.uuid, updated_at=stamp(self._clock()))
        self._replace(db, old, new, "SUPERSEDE")
        return new

    def delete(self, uuid: str, scope: Scope) -> None:
        with self._store.write() as db:
            self.delete_records(db, [expect_record(db, uuid, scope)])
        self._store.upkeep.wrote(1)

    def delete_all(self, scope: Scope, *, purge: bool = False) -> tuple[int, int]:
        """Deletes every memory of a scope that exists at the start; with `purge` without a note in its history, which
        is erased. Returns the numbers of memories, and of erased lines of history."""
        store = self._store
        sql, params = scope.condition()
        with store.read() as db:
            last = db.execute("SELECT coalesce(max(id), 0) FROM memories").fetchone()[0]
        deleted = lines = 0
        while True:
            with erasing(store.database) if purge else store.write() as db:
                chosen = f"{SELECT} WHERE {sql} AND memories.id <= ? LIMIT ?"
                records = held_records(db, db.execute(chosen, (*params, last, _DELETED_TOGETHER)))
                if not records:
                    break
                self.delete_records(db, records, noted=not purge)
                if purge:
                    lines += erase_history(db, scope, [record.uuid for record in records])
            deleted += len(records)
            store.upkeep.wrote(len(records))
        return deleted, lines

    def _insert(
        self,
        db: Connection,
        entries: Sequence[Record],
        vectors: Vectors,
        similar: Sequence[Sequence[Similar]],
        follows: Sequence[int | None],
        scope: Scope,
    ) -> list[Added]:
        """Stores entries under exactly the ids of `scope`. One that equals a shown memory there in all fields is not
        stored twice; entries of one call are never compared, because a conversation may repeat itself. `similar` names
        the memories that each resembles, `follows` the turn before, or `-1 - n` for the n-th entry of this call."""
        now = self._clock()
        known = [_known(db, entry, scope, now) for entry in entries]
        twins = {text: _twins(db, text, scope, now) for text in {entry.text for entry in entries}}
        outcomes: list[Added] = []
        for entry, same, before in zip(entries, known, follows, strict=True):
            if same is not None:
                outcomes.append(Added(same, "NONE"))
                continue
            if before is not None and before < 0:
                before = outcomes[-1 - before].record.id
            elif before is not None and not db.execute("SELECT 1 FROM memories WHERE id = ?", (before,)).fetchone():
                before = None  # another process has deleted it since
            whose: dict[str, Any] = dict(scope.items())
            new = replace(
                entry, uuid=str(uuids.uuid4()), hash=text_hash(entry.text), follows=before, created_at=stamp(now),
                updated_at=stamp(now), **whose,
            )  # fmt: skip
            record = insert_record(db, new)
            outcomes.append(Added(record, "ADD", tuple((twin, 1.0) for twin in twins[entry.text])))
        added = [(number, outcome) for number, outcome in enumerate(outcomes) if outcome.event == "ADD"]
        records = [outcome.record for _, outcome in added]
        index_records(db, self._store, records, vectors[[number for number, _ in added]])
        note_changes(db, ((None, record, "ADD") for record in records), stamp(now))
        for number, outcome in added:
            outcomes[number] = _link(db, outcome, similar[number], outcomes)
        advance(db)
        return outcomes

    def _judge(
        self,
        db: Connection,
        outcomes: list[Added],
        similar: Sequence[Sequence[Similar]],
        judged: Sequence[bool],
        vectors: Vectors,
    ) -> list[Added]:
        """Ends the memories that new ones supersede. A new one that was said before another is itself ended by it."""
        before: list[tuple[int, int]] = []
        for number, outcome in enumerate(outcomes):
            if not judged[number] or outcome.event != "ADD":
                continue
            record = outcome.record
            near = {one.id: one.similarity for one in similar[number] if one.id >= 0}
            near |= {known: float(vectors[place] @ vectors[number]) for known, place in before[-_TOGETHER:]}
            verdicts: list[tuple[Record, float]] = []
            # One after the other, and without what is not judged, so that the limit of one is enough for all.
            others = [
                replace(other, metadata={})
                for identifier in near
                for other in read_records(db, [identifier]).values()
                if other.of_the_same(record) and other.valid_until is None and other.forgotten_at is None
            ]
            pairs = [(other, record) if record.since >= other.since else (record, other) for other in others]
            chances = self._store.judge.compare(
                [(old.text, new.text, near[other.id]) for (old, new), other in zip(pairs, others, strict=True)]
            )
            for other, chance in zip(others, chances, strict=True):
                if record.valid_until is not None:
                    break
                if chance >= ENDS:
                    later = record.since >= other.since
                    old, new = (read_records(db, [other.id])[other.id], record) if later else (record, other)
                    ended = self._end(db, old, new)
                    record, other = (record, ended) if later else (ended, other)
                verdicts.append((other, chance))
            before.append((record.id, number))
            outcomes[number] = replace(outcome, record=record, judged=tuple(verdicts))
        return outcomes

    def _replace(self, db: Connection, old: Record, new: Record, event: str) -> None:
        if new.indexed_text != old.indexed_text:
            self._store.lexical.delete(db, [old.id], [old.indexed_text])
            self._store.lexical.add(db, [new.id], [new.indexed_text])
        replace_record(db, new)
        note_changes(db, [(old, new, event)], new.updated_at)
        advance(db)

    def delete_records(self, db: Connection, records: Sequence[Record], *, noted: bool = True) -> None:
        ids = [record.id for record in records]
        self._store.lexical.delete(db, ids, [record.indexed_text for record in records])
        with remedy(REBUILD):
            self._store.claimed_index().delete(db, np.array(ids, np.int64))
        db.execute("DELETE FROM memories WHERE id IN (SELECT value FROM json_each(?))", (json.dumps(ids),))
        if noted:
            note_changes(db, ((record, None, "DELETE") for record in records), stamp(self._clock()))
        advance(db)

    @staticmethod
    def _turn_before(db: Connection, entry: Record, scope: Scope) -> Record | None:
        if scope.run_id is None or entry.follows is None:
            return None
        sql, params = scope.exactly()
        rows = db.execute(
            f"{SELECT} INDEXED BY memories_turns WHERE {sql} AND memories.role IS NOT NULL "
            "ORDER BY memories.id DESC LIMIT 1",
            params,
        )
        return next((record for record in held_records(db, rows) if entry.goes_on(record)), None)


def _same_conversation(earlier: Record, later: Record) -> bool:
    return None not in (earlier.follows, later.follows) and later.goes_on(earlier)


def index_records(db: Connection, store: MemoryStore, records: Sequence[Record], vectors: Vectors) -> None:
    if records:
        ids = [record.id for record in records]
        store.lexical.add(db, ids, [record.indexed_text for record in records])
        with remedy(REBUILD):
            store.claimed_index().add(db, np.array(ids, np.int64), vectors)


def _known(db: Connection, entry: Record, scope: Scope, now: datetime) -> Record | None:
    """The oldest shown memory of exactly these ids that equals an entry in all fields."""
    same, params = _same_text(entry.text, scope, now)
    told = " AND ".join(f"memories.{name} IS ?" for name in _TOLD)
    values = [getattr(entry, name) for name in _TOLD]
    rows = db.execute(f"{SELECT} {same} AND {told} ORDER BY memories.id", (*params, *values))
    return next((one for row in rows for one in held_records(db, [row]) if one.metadata == dict(entry.metadata)), None)


def _twins(db: Connection, text: str, scope: Scope, now: datetime) -> list[Record]:
    """The latest shown memories of exactly these ids with this text, at most `MOST_LINKS`."""
    same, params = _same_text(text, scope, now)
    latest = "ORDER BY memories.timestamp DESC, memories.id DESC LIMIT ?"
    return held_records(db, db.execute(f"{SELECT} {same} {latest}", (*params, MOST_LINKS)))


def _link(db: Connection, outcome: Added, similar: Sequence[Similar], outcomes: Sequence[Added]) -> Added:
    record = outcome.record
    found = {twin.id: (twin, similarity) for twin, similarity in outcome.similar}
    exactly, ids = record.scope.exactly()
    near: dict[int, float] = {}
    for one in (one for one in similar if one.similarity >= NEAR):
        near.setdefault(outcomes[-1 - one.id].record.id if one.id < 0 else one.id, one.similarity)
    sql = f"{SELECT} WHERE memories.id = ? AND {exactly}"
    others = [number for number in near if number not in found and number != record.id]
    rows = (row for number in others for row in db.execute(sql, (number, *ids)))
    found |= {other.id: (other, near[other.id]) for other in held_records(db, rows)}
    linked = sorted(found.values(), key=lambda pair: -pair[1])[:MOST_LINKS]
    db.executemany(
        "INSERT INTO links VALUES (?, ?, ?)", [(record.id, other.id, similarity) for other, similarity in linked]
    )
    return replace(outcome, similar=tuple(linked))


def check_validity(start: str | None, end: str | None) -> None:
    if start is not None and end is not None and end < start:
        raise InputError(f"valid_until {end!r} lies before valid_from {start!r}")


def _same_text(text: str, scope: Scope, now: datetime) -> tuple[str, tuple[Any, ...]]:
    exactly, ids = scope.exactly()
    shown, day = visible(now)
    sql = f"INDEXED BY memories_hash WHERE memories.hash = ? AND {exactly} AND memories.text = ? AND {shown}"
    return sql, (text_hash(text), *ids, text, *day)


class Eraser:
    """Each method deletes in transactions, and then writes the files anew; after a kill the next opening ends it.
    Raises `StorageError` if another process reads an older state, which keeps the log."""

    def __init__(self, store: MemoryStore, writer: Writer) -> None:
        self._store = store
        self._writer = writer

    def erase(self, uuid: str, scope: Scope) -> Erasure:
        """Erases a memory, also one that was deleted. The turns that follow it get vectors without its share."""
        store = self._store
        while True:
            with store.read() as db:
                turns = _following(db, uuid)
            vectors = store.embed([text for _, text in turns]) if turns else None
            with erasing(store.database) as db:
                if _following(db, uuid) != turns:
                    continue  # another process has changed them
                record = find_record(db, uuid, scope)
                lines = erase_history(db, scope, [uuid])
                if record is not None:
                    self._writer.delete_records(db, [record], noted=False)
                    if vectors is not None:
                        store.claimed_index().add(db, np.array([turn for turn, _ in turns], np.int64), vectors)
                elif not lines:
                    raise no_memory(uuid)
            return self._ended({"memories": int(record is not None), "lines of history": lines})

    def erase_all(self, scope: Scope) -> Erasure:
        memories, lines = self._writer.delete_all(scope, purge=True)
        with erasing(self._store.database) as db:
            lines += erase_history(db, scope)
        return self._ended({"memories": memories, "lines of history": lines})

    def reset(self) -> None:
        index = self._store.index
        with erasing(self._store.database) as db:
            if index is not None:
                index.clear(db)
            db.execute(f"INSERT INTO {TEXT_INDEX}({TEXT_INDEX}) VALUES ('delete-all')")
            for table in ("links", "history", "memories"):
                db.execute(f"DELETE FROM {table}")
            advance(db)
        self._ended({})

    def _ended(self, erased: dict[str, int]) -> Erasure:
        self._store.end_erasure()
        return erasure(self._store.database.path, erased)


def _following(db: Connection, uuid: str) -> list[tuple[int, str]]:
    sql = f"{SELECT} WHERE memories.follows = (SELECT id FROM memories WHERE uuid = ?)"
    return [(record.id, record.text) for record in held_records(db, db.execute(sql, (uuid,)))]
