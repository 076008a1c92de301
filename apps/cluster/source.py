"""`ShardSource`: a shard as a source of a search, which asks it once as a rule. `Figures`: the statistics of one
version that were asked for before."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import astuple
from operator import attrgetter
from typing import Any

import numpy as np

from edge.apps.cluster.messages import Call, asked
from edge.apps.collection.catalog import Catalog
from edge.apps.collection.filters import Filters
from edge.apps.collection.hits import Hit
from edge.apps.collection.searching import Floats, Ranking, Within
from edge.apps.documents.base import Mail
from edge.apps.store.lexical import FUNCTION_WORDS, Statistics, shown_terms, unknown_words

_REMEMBERED = 50_000


class Figures:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: Statistics | None = None

    def of(self, terms: Sequence[str]) -> Statistics | None:
        """None if one of the terms is not known."""
        known = self._known
        if known is None or any(term not in known.counts for term in terms):
            return None
        return Statistics(known.rows, known.words, {term: known.counts[term] for term in terms})

    def add(self, found: Statistics) -> None:
        with self._lock:
            kept = {} if self._known is None or len(self._known.counts) > _REMEMBERED else self._known.counts
            self._known = Statistics(found.rows, found.words, {**kept, **found.counts})


class ShardSource:
    """For one search."""

    def __init__(
        self, call: Call, version: int, figures: Figures, k: int, query: str = "", *, resident: bool = False
    ) -> None:
        """`query`: the text that the search will need statistics of. `resident`: let the shard tell which lists it has
        in memory."""
        self._call = call
        self._version = version
        self._figures = figures
        self._k = k
        self._resident = resident
        self._lexical = Catalog().lexical
        words = [term for word in unknown_words(query, FUNCTION_WORDS) for term in self._lexical.terms(word)]
        self._ahead = [*shown_terms(query).values(), *self._lexical.terms(query), *words]
        self._places: dict[int, tuple[str, int]] = {}
        self._hits: dict[int, Hit] = {}
        self.trips = 0

    def view(self) -> AbstractContextManager[object]:
        """All requests name one version."""
        return nullcontext()

    def statistics(self, queries: Sequence[str]) -> Statistics:
        return self._statistics([term for query in queries for term in self._lexical.terms(query)])

    def shown(self, query: str) -> Statistics:
        return self._statistics(list(shown_terms(query).values()))

    def resembling(self, word: str) -> dict[str, int]:
        self.trips += 1
        return dict(asked(self._call, "resembling", version=self._version, word=word)[0])

    def gather(
        self, queries: Sequence[tuple[str, Floats | None]], depth: int, whole: Statistics | None, where: Filters,
        within: Within,
    ) -> list[tuple[Ranking, Ranking]]:  # fmt: skip
        """The figures of a lone shard come with it."""
        began = time.monotonic()
        terms = self._ahead if whole is None and self._figures.of(self._ahead) is None else []
        rows = [np.empty((0, 0), np.float32) if own is None else np.atleast_2d(own) for _, own in queries]
        self.trips += 1
        answer, _ = asked(
            self._call, "gather", b"".join(own.astype(np.float32).tobytes() for own in rows), version=self._version,
            queries=[(words, len(own)) for (words, _), own in zip(queries, rows, strict=True)], depth=depth,
            whole=None if whole is None else figures(whole), terms=terms, where=where.texts,
            within={"seconds": within.share, "exhaustive": within.exhaustive, "embedder": within.embedder}, k=self._k,
            resident=self._resident,
        )  # fmt: skip
        within.took = max(within.took, time.monotonic() - began)
        if terms:
            self._figures.add(Statistics(**answer["statistics"]))
        self._places.update((i, (path, ordinal)) for i, path, ordinal in answer["places"])
        self._take(answer["hits"])
        return [
            ([(i, score) for i, score in words], [(i, score) for i, score in near])
            for words, near in answer["rankings"]
        ]

    def places(self, ids: Sequence[int]) -> dict[int, tuple[str, int]]:
        """Of passages that `gather` found."""
        return {i: self._places[i] for i in ids}

    def hits(self, ids: Sequence[int]) -> dict[int, Hit]:
        """They have their descriptions."""
        if missing := [i for i in ids if i not in self._hits]:
            self.trips += 1
            answer, _ = asked(self._call, "hits", version=self._version, ids=missing)
            self._take(answer)
        return {i: self._hits[i] for i in ids}

    def _take(self, hits: Sequence[list[Any]]) -> None:
        self._hits.update((values[0], _hit(values)) for values in hits)

    def _statistics(self, terms: Sequence[str]) -> Statistics:
        found = self._figures.of(terms)
        if found is None:
            self.trips += 1
            wanted = list(dict.fromkeys([*terms, *self._ahead]))
            answer, _ = asked(self._call, "statistics", version=self._version, terms=wanted)
            found = Statistics(**answer)
            self._figures.add(found)
        return found


def figures(statistics: Statistics) -> dict[str, Any]:
    return {"rows": statistics.rows, "words": statistics.words, "counts": dict(statistics.counts)}


_FIELDS = [name for name in Hit.__dataclass_fields__ if name not in ("marks", "stages", "line", "collection")]
_VALUES = attrgetter(*_FIELDS)
_PAIRS, _MAIL = _FIELDS.index("kinds"), _FIELDS.index("mail")
"""The fields of a passage, but those that a search adds; `dataclasses.asdict` takes fifty times as long."""


def hit_values(hit: Hit) -> list[Any]:
    values = list(_VALUES(hit))
    values[_MAIL] = None if hit.mail is None else astuple(hit.mail)
    return values


def _hit(values: list[Any]) -> Hit:
    values[_PAIRS] = tuple((kind, end) for kind, end in values[_PAIRS])
    values[_MAIL] = values[_MAIL] and Mail(*values[_MAIL])
    named: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in zip(_FIELDS, values, strict=True)
    }
    return Hit(**named)
