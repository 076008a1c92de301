"""Near-duplicates: finds earlier memories that a new one repeats in other words. They are linked, never merged."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from edge.apps.memory.memory_rebuild import REBUILD
from edge.apps.memory.records import batches
from edge.apps.memory.records_writer import MOST_LINKS, Similar
from edge.apps.memory.scope import Scope
from edge.apps.store.rebuilding import remedy
from edge.budget import MemoryBudget
from edge.connection import Connection
from edge.ivf.index import VectorIndex

Vectors = npt.NDArray[np.float32]

NEAR = 0.93
"""The cosine from which two memories are linked. With the default embedder, such texts differ by wording or typing
errors only."""

_FEW = 2_000
"""A scope of at most this many memories is searched by itself. The memories of a larger scope are found in a search of
the whole index often enough."""

_BEYOND = 16
_BLOCK = 256
_COLUMNS = 2_048
"""The number of earlier vectors that a block of 256 vectors is compared with at a time: 2 MB of cosines."""


def find_similar(
    db: Connection, index: VectorIndex, vectors: Vectors, scope: Scope, budget: MemoryBudget
) -> list[list[Similar]]:
    """The memories most similar to each of `vectors`, with a cosine of at least `NEAR`; at most 3, most similar first.

    They are memories stored under exactly the ids of `scope`, and earlier rows of `vectors`, given as `-1 - row`.

    Args:
        vectors: the vectors of the new memories, [n, dim].

    Raises:
        BudgetExceeded: there is no room for the cosines.
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
    """Adds the most similar earlier rows of `vectors` to the results of the block that begins at `start`."""
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
        # NOT INDEXED makes SQLite look up the row numbers. It would otherwise scan the whole scope.
        inside = f"SELECT id FROM memories NOT INDEXED WHERE id IN ({', '.join('?' * len(group))}) AND {sql}"
        ours.update(row[0] for row in db.execute(inside, (*group, *params)))
    return [[one for one in similar if one.id in ours] for similar in near]
