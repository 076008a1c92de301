"""Near-duplicates: which earlier memories a new one repeats in other words. They are linked, never merged."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from edge.apps.memory.ledger import MOST_LINKS, Similar
from edge.apps.memory.records import batches
from edge.apps.memory.remembered import REBUILD
from edge.apps.memory.scope import Scope
from edge.apps.store.rebuilding import remedy
from edge.budget import MemoryBudget
from edge.connection import Connection
from edge.ivf.index import VectorIndex

Vectors = npt.NDArray[np.float32]

NEAR = 0.93
"""Cosine from which two memories are linked. With the default embedder, above it lie rewordings and typing errors."""

_FEW = 2_000
"""Memories up to which a scope is searched alone; a larger one is found in the whole index often enough."""

_BEYOND = 16
_BLOCK = 256
_COLUMNS = 2_048
"""Earlier vectors that a block of 256 is compared with at a time: 2 MB of cosines."""


def find_similar(
    db: Connection, index: VectorIndex, vectors: Vectors, scope: Scope, budget: MemoryBudget
) -> list[list[Similar]]:
    """For each of `vectors` [n, dim], the most similar memories stored under exactly these ids, and those before it in
    `vectors` itself (as `-1 - row`), with a cosine of at least `NEAR`; at most 3, most similar first.

    Raises:
        BudgetExceeded: there is no room to compare them.
    """
    found: list[list[Similar]] = []
    sql, params = scope.exactly()
    rows = db.execute(f"SELECT id FROM memories WHERE {sql} LIMIT ?", (*params, _FEW + 1)).fetchall()
    allowed = np.sort(np.array([row[0] for row in rows], np.int64)) if len(rows) <= _FEW else None
    for start in range(0, len(vectors), _BLOCK):
        block = vectors[start : start + _BLOCK]
        found += _in_index(db, index, block, scope, allowed) if rows else [[] for _ in block]
    if len(vectors) > 1:
        with budget.reserve("memory duplicates", 4 * min(_BLOCK, len(vectors)) * min(_COLUMNS, len(vectors))):
            for start in range(0, len(vectors), _BLOCK):
                _add_earlier(found, vectors, start)
    return [_most_similar(similar) for similar in found]


def _most_similar(similar: list[Similar]) -> list[Similar]:
    return sorted(similar, key=lambda one: -one.similarity)[:MOST_LINKS]


def _add_earlier(found: list[list[Similar]], vectors: Vectors, start: int) -> None:
    """Adds to what was found for the block of `vectors` from `start` on the most similar ones before each of them."""
    block = vectors[start : start + _BLOCK]
    for first in range(0, start + len(block), _COLUMNS):
        cosines = block @ vectors[first : min(first + _COLUMNS, start + len(block))].T
        for row in range(len(block)):  # neither itself nor what comes after it
            cosines[row, max(0, start + row - first) :] = -1
        for _ in range(MOST_LINKS):
            best = cosines.argmax(axis=1)
            for row in np.flatnonzero(cosines[np.arange(len(block)), best] >= NEAR).tolist():
                found[start + row].append(Similar(-1 - first - int(best[row]), float(cosines[row, best[row]])))
                cosines[row, best[row]] = -1
        # Cut after each block of columns: of a text that is said again and again nearly all are near.
        found[start : start + _BLOCK] = [_most_similar(similar) for similar in found[start : start + _BLOCK]]


def _in_index(
    db: Connection, index: VectorIndex, block: Vectors, scope: Scope, allowed: npt.NDArray[np.int64] | None
) -> list[list[Similar]]:
    with remedy(REBUILD):
        result = index.search(db, block, MOST_LINKS if allowed is not None else _BEYOND, allowed=allowed)
    near = [
        [Similar(int(i), float(s)) for i, s in zip(ids, scores, strict=True) if i >= 0 and s >= NEAR]
        for ids, scores in zip(result.ids, result.scores, strict=True)
    ]
    if allowed is not None:
        return near
    sql, params = scope.exactly()
    ours: set[int] = set()
    for group in batches(sorted({one.id for similar in near for one in similar})):
        # Without an index: by row number. SQLite would rather go through the whole scope.
        inside = f"SELECT id FROM memories NOT INDEXED WHERE id IN ({', '.join('?' * len(group))}) AND {sql}"
        ours.update(row[0] for row in db.execute(inside, (*group, *params)))
    return [[one for one in similar if one.id in ours] for similar in near]
