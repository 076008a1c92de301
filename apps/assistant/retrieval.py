"""`Retrieval`: one search of an answer. `CollectionLibrary`: the collections that are searched. `Prefetcher`: index
clusters near the next query are fetched while a reply is written (TeleRAG, section 4.1). The paper predicts the query
once, before the writing; here the prediction may also follow the text as it grows, in a thread of its own, where that
saves more seconds than it costs (`edge.scheduling.predictor`)."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from edge.apps.assistant.answer import Cancelled
from edge.apps.assistant.question import judged_question
from edge.apps.assistant.reading import PassageReader, Reading, document_of
from edge.apps.collection.collection import Collection, Together
from edge.apps.collection.filters import Filters
from edge.apps.collection.hits import Hit, merge
from edge.apps.collection.searching import Within
from edge.cache.lookahead import Lookahead
from edge.errors import EdgeError
from edge.scheduling.background import Background
from edge.scheduling.predictor import BenefitGate, RunningMean, Seconds, TimePredictor

Vectors = npt.NDArray[np.float32]

LOOKAHEAD = "lookahead"
FOLLOWING = "following"
_LEAST_S = 0.05
_PATIENCE = 3
"""The pause after a prediction, as a multiple of the time that it took: predictions take at most a quarter of the
time."""

_SURE_TOKENS = 20
"""A reply of this many tokens is used alone for a prediction; a shorter one is mixed with the texts known before. Of
10, 20 and 40, 20 saved most."""

_ALONE = "token alone"
_SLOWED = "slowed"
"""The predictor's names for writing a token while no prediction runs, and for the delay that a second of predicting
adds."""

_EMBEDDING = "embedding"
"""The predictor's name for embedding, counted in texts."""


@dataclass(frozen=True, slots=True)
class Retrieval:
    """One search: words for the full-text index, and texts, near the mean of whose vectors the vector index is
    searched."""

    words: str
    near: tuple[str, ...]

    @classmethod
    def of(cls, text: str) -> Retrieval:
        return cls(text, (text,))

    @classmethod
    def asked(cls, question: str) -> Retrieval:
        """A query for a question's words, near the question and its asking sentence, which the vector of a long text
        represents little."""
        return cls(question, tuple(dict.fromkeys((judged_question(question), question))))


Becoming = Callable[[str], Sequence[Retrieval]]
"""The queries that a reply would lead to if it ended here; empty while the reply allows no prediction."""

Left = Callable[[int], Seconds | None]
"""The remaining duration of a reply of which the given number of tokens is written; None if it is unknown."""


class CollectionLibrary:
    """The stages of a search of one or several collections as separate calls. Thread-safe; every call sees one
    committed state."""

    def __init__(self, collections: Together, *, working: int = 0, reader: PassageReader | None = None) -> None:
        """`working`: bytes to free before a model runs, since an engine does not ask other caches to shrink."""
        self._collections = collections
        self._first = collections.first
        self._working = working
        self._reader = reader or PassageReader(self._first)
        self._beside = RunningMean()
        """Seconds that a search takes outside the vector index: full text, fusion, reading the passages."""
        self.budget = self._first.budget
        self.trace = self._first.trace

    def embed_queries(self, queries: Sequence[str]) -> Vectors:
        """The vectors of questions by the first collection's embedder, [n, dim] float32, of unit length."""
        self._make_room()
        return self._first.embed_queries(queries)

    def spelled(self, question: str) -> dict[str, str]:
        self._make_room()
        return self._collections.spelled(question)

    def candidates(
        self, queries: Sequence[Retrieval], vectors: Vectors, k: int, *, where: Filters | None = None,
        seconds: float | None = None, window: Lookahead | None = None,
    ) -> list[list[Hit]]:  # fmt: skip
        """The best `k` passages for each query, best first, before reranking; one search of each index, so that a list
        is read once. `vectors`: [n, dim]; `seconds`: as many lists are searched as fit in; `window`: the lookahead made
        for this search, which ends now."""
        own = [self._own_vectors(each, queries, vectors) for each in self._collections.collections.values()]
        started = time.perf_counter()
        left = None if seconds is None else max(0.0, seconds - self._beside.upper)
        within = Within(left, window, embedder=self._first.models.embedder_name())
        words = [query.words for query in queries]
        found = self._collections.candidates(words, own, k, where=where or Filters(), within=within)
        self._beside.add(time.perf_counter() - started - within.took)
        return found

    def _own_vectors(
        self, collection: Collection, queries: Sequence[Retrieval], vectors: Vectors
    ) -> Sequence[Vectors | None]:
        identity, first = collection.identity, self._first.identity
        if identity is None:
            return [None] * len(queries)
        if first is None or identity.fingerprint == first.fingerprint:
            return list(vectors)
        texts = list(dict.fromkeys(text for query in queries for text in query.near))
        return list(mean_vectors(dict(zip(texts, collection.embed_queries(texts), strict=True)), queries))

    def rerank(self, query: str, hits: Sequence[Hit], top_k: int, judged: int) -> list[Hit]:
        """The best of the first `judged` of `hits`, which are given in retrieval order."""
        self._make_room()
        return merge(self._first.rerank(query, hits, top_k, judged=judged), top_k)

    def read(self, question: str, hits: Sequence[Hit]) -> Reading:
        self._make_room()
        relevance = [hit.stages.reranker for hit in hits if hit.stages.reranker is not None]
        return self._reader.read(question, [document_of(hit) for hit in hits], relevance)

    def best_unit(self, question: str, hits: Sequence[Hit]) -> tuple[int, str] | None:
        """The number of a hit, from 1, and its unit that answers a question best; None if the hits have no units."""
        order = sorted(range(len(hits)), key=lambda number: -hits[number].score)
        found = self.read(question, [hits[number] for number in order]).answers
        return (order[found[0].passage] + 1, found[0].unit.text) if found else None

    def related(self, statement: str, texts: Sequence[str]) -> list[float]:
        """The reranker's probability, for each of `texts`, that it is related to a statement."""
        self._make_room()
        return self._first.relevance(statement, texts)

    def lookahead(
        self, queries: Vectors, *, seconds: float | None = None, lost: Callable[[float], object] | None = None
    ) -> Lookahead | None:
        """Starts fetching the clusters nearest to `queries` [n, dim], for `seconds` or until memory is full; None for
        several collections. `lost` gets the seconds that later searches wait for displaced clusters."""
        if len(self._collections.collections) > 1:
            return None
        return self._first.lookahead(queries, seconds=seconds, lost=lost)

    def _make_room(self) -> None:
        self.budget.make_room(self._working)


def mean_vectors(rows: Mapping[str, Vectors], queries: Sequence[Retrieval]) -> Vectors:
    """The mean of the vectors of each query's texts, scaled to unit length; [n, dim] float32."""
    means = np.stack([np.sum([rows[text] for text in query.near], axis=0) for query in queries])
    lengths = np.maximum(np.linalg.norm(means, axis=1, keepdims=True), 1e-12)
    return np.asarray(means / lengths, np.float32)


class QueryVectors:
    """The vectors of one answer's queries, and how long embedding takes. Each text is embedded once."""

    def __init__(self, embed: Callable[[Sequence[str]], Vectors], predictor: TimePredictor) -> None:
        self._embed = embed
        self._predictor = predictor
        self._rows: dict[str, Vectors] = {}

    def of(self, queries: Sequence[Retrieval]) -> Vectors:
        """The mean of each query's text vectors, scaled to unit length; [n, dim] float32."""
        if new := self._unknown(queries):
            started = time.perf_counter()
            rows = self._embed(new)
            self._predictor.learn(_EMBEDDING, len(new), time.perf_counter() - started)
            self._rows.update(zip(new, rows, strict=True))
        return mean_vectors(self._rows, queries)

    def cost(self, queries: Sequence[Retrieval]) -> Seconds | None:
        """The expected duration of a prediction from some queries; None before the first prediction."""
        new = len(self._unknown(queries))
        embedding = self._predictor.seconds(_EMBEDDING, new) if new else Seconds(0.0)
        starting = self._predictor.seconds(LOOKAHEAD)
        return None if embedding is None or starting is None else embedding + starting

    def _unknown(self, queries: Sequence[Retrieval]) -> list[str]:
        texts = dict.fromkeys(text for query in queries for text in query.near)
        return [text for text in texts if text not in self._rows]


class Prefetcher:
    """Fetches index clusters for the next search of one answer. All calls come from the answer's thread."""

    def __init__(self, library: CollectionLibrary, vectors: QueryVectors, gate: BenefitGate) -> None:
        self._library = library
        self._vectors = vectors
        self._gate = gate
        self._behind = Background("edge-prediction")
        self._window: Lookahead | None = None
        self._labels: list[tuple[str, str]] = []
        self._where = ""
        self._left: Left | None = None
        self._begun: Sequence[Retrieval] = ()
        self._predicted: Vectors | None = None
        self._end: float | None = None
        self._next = 0.0
        self._following: bool | None = None
        self._slowness = Slowness(gate.predictor, self._behind)

    def begin(self, where: str, near: Sequence[str], left: Left) -> None:
        """Starts fetching clusters near the mean of the vectors of some texts, as many as arrive while the reply is
        written (`left`). Where the gate (its key: `where`) expects no benefit, an earlier fetch continues."""
        self._behind.settle()
        queries = [Retrieval("", tuple(near))]
        self._where, self._left, self._following = where, left, None
        self._predicted = self._end = None
        self._slowness.begin(where)
        self._next = 0.0
        self._begun = queries
        if self._gate.opens(LOOKAHEAD, where, self._cost(queries)):
            self._behind.submit(lambda: self._predict(queries, LOOKAHEAD, 0))

    def follow(self, becoming: Becoming | None, written: str, tokens: int) -> None:
        """After each token: predicts again from the text so far, once the pause is over and if the gate expects a
        benefit. When a reply takes longer than expected, fetching continues for the previous prediction."""
        now = time.perf_counter()
        self._slowness.learn()
        if self._left is None or self._behind.busy or now < self._next:
            return
        queries = becoming(written) if becoming is not None and self._following is not False else ()
        if queries and self._following is None:
            self._following = self._gate.opens(FOLLOWING, self._where, self._cost(queries))
        if queries and self._following:
            cost, left = self._vectors.cost(queries), self._left(tokens)
            if cost is None or left is None or left.upper > cost.mean:  # else the search would wait for the prediction
                self._behind.submit(lambda: self._predict(queries, FOLLOWING, tokens))
        elif self._end is not None and now >= self._end and (predicted := self._predicted) is not None:
            self._behind.submit(lambda: self._fetch(predicted, LOOKAHEAD, tokens))

    def ready(self) -> Lookahead | None:
        """The fetch under way for the next search, or None; called when the search begins. Raises the errors of
        predictions."""
        self._left = None
        self._behind.settle()
        return self._window

    def close(self) -> None:
        with suppress(EdgeError, Cancelled):  # a failed prediction is not needed any more
            self.ready()
        window, self._window = self._window, None
        labels, self._labels = self._labels, []
        if window is None:
            return
        saved: dict[tuple[str, str], list[float]] = defaultdict(list)
        for label, outcome in zip(labels, window.cancel(), strict=False):
            saved[label].append(outcome.saved_s if outcome.added_s is None else outcome.added_s)
        for (kind, where), seconds in saved.items():
            # Each followed prediction has a cost of its own, so its savings are averaged. Continuing costs nothing.
            self._gate.learn(kind, where, sum(seconds) / (len(seconds) if kind == FOLLOWING else 1))

    def _predict(self, queries: Sequence[Retrieval], kind: str, tokens: int) -> None:
        started = time.perf_counter()
        vectors = self._vectors.of(queries)
        if kind == FOLLOWING and tokens < _SURE_TOKENS:
            vectors = self._mixed(vectors, tokens / _SURE_TOKENS)
        self._fetch(vectors, kind, tokens)
        self._next = time.perf_counter() + max(_LEAST_S, _PATIENCE * (time.perf_counter() - started))

    def _mixed(self, vectors: Vectors, share: float) -> Vectors:
        """Vectors of the queries of a short reply: that of the last one, still being written, is mixed with that of the
        texts before."""
        last = share * vectors[-1] + (1 - share) * self._vectors.of(self._begun)[0]
        last = last / max(float(np.linalg.norm(last)), 1e-12)
        return np.concatenate([vectors[:-1], last[None]]).astype(np.float32)

    def _fetch(self, vectors: Vectors, kind: str, tokens: int) -> None:
        started = time.perf_counter()
        remaining = self._left
        left = None if remaining is None else remaining(tokens)
        seconds = None if left is None else left.upper  # reads that have not begun by the search's start are withdrawn
        window = self._library.lookahead(vectors, seconds=seconds, lost=partial(self._gate.charge, kind, self._where))
        self._gate.predictor.learn(LOOKAHEAD, 1, time.perf_counter() - started)
        self._end = None if seconds is None else started + seconds
        self._predicted = vectors
        if window is None:
            return
        if not window.nbytes:  # this window can fetch nothing, so the previous one is kept
            window.cancel()
            return
        if self._window is not None:
            window.supersede(self._window, follows=kind == FOLLOWING)
        self._window = window
        self._labels.append((kind, self._where))

    def _cost(self, queries: Sequence[Retrieval]) -> Seconds | None:
        cost = self._vectors.cost(queries)
        return None if cost is None else self._slowness.share(cost)


class Slowness:
    """Learns how much later tokens come while work runs `behind` them. All calls come from one thread."""

    def __init__(self, predictor: TimePredictor, behind: Background) -> None:
        self._predictor = predictor
        self._behind = behind
        self._alone = ""
        self._last: tuple[float, float] | None = None

    def begin(self, where: str) -> None:
        self._alone, self._last = f"{_ALONE}/{where}", None

    def learn(self) -> None:
        """Called after each token."""
        now, spent = time.perf_counter(), self._behind.seconds
        last, self._last = self._last, (now, spent)
        if last is None:
            return
        seconds, beside = now - last[0], spent - last[1]
        alone = self._predictor.seconds(self._alone)
        if not beside:
            self._predictor.learn(self._alone, 1, seconds)
        elif alone is not None:
            self._predictor.learn(_SLOWED, beside, max(0.0, seconds - alone.mean))

    def share(self, cost: Seconds) -> Seconds:
        """The part of the work's time by which a reply gets longer; all of it while that is unknown."""
        slowed = self._predictor.seconds(_SLOWED)
        share = 1.0 if slowed is None else min(1.0, slowed.mean)
        return Seconds(share * cost.mean, share * cost.deviation)
