"""Test pools: the fused top 30 of BM25 and the bi-encoder for a sample of a set's test queries, kept on disk."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from .corpora import Corpus, load
from .mining import BM25, Floats, fused


@dataclass(frozen=True)
class TestQuery:
    """A query, its passages in fused order with grades, all judged grades, and single-retriever ranks.

    ``lexical`` and ``dense`` hold the grades of the first ten documents by that retriever alone.
    """

    __test__ = False  # a data class; pytest would take it for a test by its name

    query: str
    passages: list[str]
    grades: list[int]
    ideal: list[int]
    lexical: list[int]
    dense: list[int]


def build(
    corpus: Corpus, encode: Callable[[Sequence[str]], Floats], limit: int, depth: int = 30, seed: int = 0
) -> list[TestQuery]:
    """Pools of at most ``limit`` test queries, drawn with ``seed``. Ids "a/b" are searched within "a" only."""
    chosen = sorted(corpus.test)
    random.Random(seed).shuffle(chosen)
    chosen = chosen[:limit]
    passages = corpus.passages()
    vectors, asked = encode(passages), encode([corpus.queries[q] for q in chosen])
    scopes: dict[str, list[int]] = {}
    for n, identifier in enumerate(corpus.ids):
        scopes.setdefault(corpus.scope(identifier), []).append(n)
    indexes = {scope: BM25([passages[n] for n in rows]) for scope, rows in scopes.items()}
    found = []
    for query, vector in zip(chosen, asked, strict=True):
        scope = corpus.scope(query)
        rows = scopes[scope]
        sparse, dense = indexes[scope].scores(corpus.queries[query]), vectors[rows] @ vector
        grades = corpus.test[query]

        by_row = np.array([grades.get(corpus.ids[n], 0) for n in rows])
        pool = fused(sparse, dense)[:depth]
        found.append(
            TestQuery(
                corpus.queries[query],
                [passages[rows[int(n)]] for n in pool],
                by_row[pool].tolist(),
                sorted(grades.values(), reverse=True),
                by_row[np.argsort(-sparse, kind="stable")[:10]].tolist(),
                by_row[np.argsort(-dense, kind="stable")[:10]].tolist(),
            )
        )
    return found


def cached(
    directory: Path, encode: Callable[[Sequence[str]], Floats], limit: int, cache: Path | None
) -> list[TestQuery]:
    """Like `build`, for the set in a directory. With a folder ``cache`` the pools are kept there."""
    path = cache / f"{directory.name}.{limit}.json.gz" if cache else None
    if path is not None and path.exists():
        with gzip.open(path, "rt", encoding="utf-8") as source:
            return [TestQuery(**row) for row in json.load(source)]
    pools = build(load(directory), encode, limit)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with gzip.open(path, "wt", encoding="utf-8") as out:
            json.dump([asdict(row) for row in pools], out)
    return pools
