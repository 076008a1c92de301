"""`QueryVectors`: the vectors of one answer's queries. Each text is embedded once."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from edge.apps.assistant.base import Vectors
from edge.apps.assistant.prefetching import LOOKAHEAD, Query
from edge.scheduling.predictor import Seconds, TimePredictor

_EMBEDDING = "embedding"
"""The predictor's name for embedding work, which is counted in texts."""


class QueryVectors:
    """Embeds queries, and predicts how long embedding takes."""

    def __init__(self, embed: Callable[[Sequence[str]], Vectors], predictor: TimePredictor) -> None:
        """
        Args:
            embed: maps texts to vectors [n, dim] of unit length.
            predictor: learns how long embedding takes.
        """
        self._embed = embed
        self._predictor = predictor
        self._rows: dict[str, Vectors] = {}

    def of(self, queries: Sequence[Query]) -> Vectors:
        """The mean of each query's text vectors, scaled to unit length; [n, dim] float32."""
        if new := self._unknown(queries):
            started = time.perf_counter()
            rows = self._embed(new)
            self._predictor.learn(_EMBEDDING, len(new), time.perf_counter() - started)
            self._rows.update(zip(new, rows, strict=True))
        means = np.stack([np.sum([self._rows[text] for text in query.near], axis=0) for query in queries])
        lengths = np.maximum(np.linalg.norm(means, axis=1, keepdims=True), 1e-12)
        return np.asarray(means / lengths, np.float32)

    def cost(self, queries: Sequence[Query]) -> Seconds | None:
        """The expected duration of a prediction from some queries; None before the first prediction."""
        new = len(self._unknown(queries))
        embedding = self._predictor.seconds(_EMBEDDING, new) if new else Seconds(0.0)
        starting = self._predictor.seconds(LOOKAHEAD)
        return None if embedding is None or starting is None else embedding + starting

    def _unknown(self, queries: Sequence[Query]) -> list[str]:
        """The texts of queries that have no vector yet."""
        texts = dict.fromkeys(text for query in queries for text in query.near)
        return [text for text in texts if text not in self._rows]
