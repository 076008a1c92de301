"""Near-duplicates: which earlier memories a new one repeats in other words. They are linked, never merged."""

from __future__ import annotations

import sqlite3

import numpy as np
import numpy.typing as npt

from edge.apps.memory.ledger import Similar
from edge.apps.memory.records import batches
from edge.apps.memory.scope import Scope
from edge.ivf.index import VectorIndex

Vectors = npt.NDArray[np.float32]

NEAR = 0.93
"""Cosine from which two memories are linked. With the default embedder, above it lie rewordings and typing errors."""

_MOST_LINKS = 3
_FEW = 2_000
"""Memories up to which a scope is searched alone; a larger one is found in the whole index often enough."""

_BEYOND = 16
_BLOCK = 256


def find_similar(db: sqlite3.Connection, index: VectorIndex, vectors: Vectors, scope: Scope) -> list[list[Similar]]:
    """For each of `vectors` [n, dim], the most similar memories stored under exactly these ids, and those before it in
    `vectors` itself (as `-1 - row`), with a cosine of at least `NEAR`; at most 3, most similar first."""
    found: list[list[Similar]] = []
    sql, params = scope.exactly()
    rows = db.execute(f"SELECT id FROM memories WHERE {sql} LIMIT ?", (*params, _FEW + 1)).fetchall()
    allowed = np.sort(np.array([row[0] for row in rows], np.int64)) if len(rows) <= _FEW else None
    for start in range(0, len(vectors), _BLOCK):
        block = vectors[start : start + _BLOCK]
        found += _in_index(db, index, block, scope, allowed) if rows else [[] for _ in block]
        within = block @ vectors[: start + len(block)].T
        for row, column in np.argwhere(np.tril(within, start - 1) >= NEAR).tolist():
            found[start + row].append(Similar(-1 - column, float(within[row, column])))
    return [sorted(similar, key=lambda one: -one.similarity)[:_MOST_LINKS] for similar in found]


def _in_index(
    db: sqlite3.Connection, index: VectorIndex, block: Vectors, scope: Scope, allowed: npt.NDArray[np.int64] | None
) -> list[list[Similar]]:
    result = index.search(db, block, _MOST_LINKS if allowed is not None else _BEYOND, allowed=allowed)
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
