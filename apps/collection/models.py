"""`CollectionModels`: a collection's embedder and reranker, which open on first use. `Searchable`: what they do for a
collection, or for one in shards."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.apps.collection.hits import Hit, reranked
from edge.apps.collection.paths import contains
from edge.apps.collection.query import checked_query
from edge.apps.collection.registry import PROJECT
from edge.apps.collection.searching import Floats
from edge.apps.pool import Held
from edge.apps.store.database import Database, get_setting, set_setting
from edge.apps.store.models import StoreModels
from edge.apps.store.rebuilding import EMBEDDER, EmbedderIdentity
from edge.apps.verbs.requests import POOL
from edge.budget import MemoryBudget, OperationStage
from edge.config import Config
from edge.errors import ModelError
from edge.ivf.base import Connection
from edge.models.blending import Retrieved
from edge.models.evidence import (
    ANSWER_SIGNALS,
    CHOICE,
    RESULT_SIGNALS,
    UNIT,
    WINDOW,
    Evidence,
    load,
    result_signals,
    results_name,
)
from edge.models.registry import KNOWN, installed, language_gap, models_dir
from edge.public_calls import checked_arguments
from edge.resident import Closing
from edge.runtimes.embedder import Embedder
from edge.runtimes.reader import Span, Units
from edge.runtimes.reranker import Ranked, Reranker
from edge.runtimes.scoring import Watch
from edge.text.languages import language_of
from edge.trace import Trace

_SOME = 8  # Tokens of a word that are counted at most.


class CollectionModels(StoreModels[Embedder, Reranker]):
    def __init__(
        self,
        database: Database,
        config: Config,
        budget: MemoryBudget,
        trace: Trace,
        *,
        embedder: str | Embedder | Held[Embedder] | None,
        reranker: str | Reranker | Held[Reranker] | None,
        holds_passages: Callable[[Connection], bool] | None = None,
    ) -> None:
        """`holds_passages`: whether there are passages, so that the embedder cannot change; None asks the database."""
        super().__init__(database, config, budget, trace, embedder=embedder, reranker=reranker)
        self._holds_passages = holds_passages or _has_passages

    def claim(self) -> None:
        """Records the embedder in the collection. Once there are passages, it can only be the same model again."""
        identity = self._use_embedder(self._identity_of)
        with self._database.write() as db:
            # A repair may have lost the setting. The passages that it saved are then embedded again.
            if not self._holds_passages(db) or get_setting(db, EMBEDDER) is None:
                set_setting(db, EMBEDDER, identity.to_json())

    def embedder(self) -> Embedder:
        """Opened if necessary. `ModelError` if it is missing, or did not make the collection's vectors."""
        return self._use_embedder(lambda embedder: embedder)

    def reranker(self) -> Reranker:
        return self._reranker.run(lambda reranker: reranker)

    def embedder_name(self) -> str:
        identity = self.identity()
        return "" if identity is None else identity.name

    def whole_words(self, words: Sequence[str]) -> set[str]:
        """The words that the embedder's vocabulary holds as one token."""

        def one_token(embedder: Embedder) -> set[str]:
            length = embedder.engine.vocabulary.length
            return {word for word in words if length(word, _SOME) <= length("a", _SOME)}

        return self._use_embedder(one_token)

    def embed_parts(self, questions: Sequence[str], passages: Sequence[str]) -> npt.NDArray[np.float32]:
        """Of the questions, then of the passages, [n, dim] float32."""
        made = [self.embed(questions, query=True)] if questions else []
        return np.concatenate([*made, self.embed(passages)] if passages else made)

    def rank(
        self,
        query: str,
        passages: Sequence[str],
        top_k: int,
        retrieved: Retrieved,
        enough: Callable[[Sequence[Ranked]], bool] | None = None,
        watch: Watch | None = None,
    ) -> list[Ranked]:
        """The best `top_k` of the passages, with their `retrieved` scores. Beside an embedder of many languages,
        retrieval alone decides in a language that the reranker does not know."""
        many = retrieved is not False and language_gap(self.embedder_name()) > 0

        def judged(reranker: Reranker) -> list[Ranked]:
            unread = unreadable(reranker.model.name, query, passages) if many else None
            options: dict[str, Any] = {"enough": enough, "watch": watch, "unread": unread, "remember": True}
            return reranker.explain(query, passages, top_k, retrieved=retrieved, **options).results

        return self._reranker.run(judged)

    def readable(self, query: str, passages: Sequence[str]) -> list[bool] | None:
        """Whether each passage and the query are in a language that the reranker knows; None without a reader."""

        def known(reranker: Reranker) -> list[bool] | None:
            unread = unreadable(reranker.model.name, query, passages) or [False] * len(passages)
            return [not foreign for foreign in unread] if reranker.reads else None

        return self._reranker.run(known)

    def read(self, query: str, texts: Sequence[str], units: Sequence[Units]) -> list[list[Span]]:
        """The most probable answer in each unit of each text, by the reranker's reader."""
        return self._reranker.run(lambda reranker: reranker.read(query, texts, units)) if texts else []

    def answering(self, signals: Sequence[Sequence[float]]) -> list[tuple[float, float, float]]:
        """For each window, by its values of `ANSWER_SIGNALS`: how well it is worth showing, and the probabilities that
        its best unit and the window hold the answer. Without fitted models the reader's probability stands for all."""
        packed = self.reranker().model
        fitted = [load(packed, name, ANSWER_SIGNALS) for name in (CHOICE, UNIT, WINDOW)]
        reader = ANSWER_SIGNALS.index("reader")

        def chance(model: Evidence | None, values: Sequence[float]) -> float:
            return 1 / (1 + math.exp(-values[reader])) if model is None else model.probability(tuple(values))

        choice, unit, window = fitted if None not in fitted else [None] * len(fitted)
        return [(chance(choice, each), chance(unit, each), chance(window, each)) for each in signals]

    def confidence(self, blended: Sequence[float]) -> Sequence[float]:
        """The probability that each result answers the query, from the blended scores, best first; their order stays.
        They are the blended scores themselves if nothing was fitted (`edge models calibrate` does it)."""
        fitted = load(self.reranker().model, results_name(self.embedder_name()), RESULT_SIGNALS)
        if fitted is None or not blended:
            return blended
        return list(map(float, fitted.model.probability(result_signals(blended))))

    def working(self) -> int:
        """Bytes that a pass of the embedder needs; 0 for an embedder that the caller passed open."""
        embedder = self.embedder()
        return embedder.engine.working if isinstance(self.named_embedder(), str) else 0

    def _source(self, identity: EmbedderIdentity) -> str:
        """A project's collection may have come with a cloned folder, so it must not choose a path."""
        source, folder = identity.source, self._database.path.parent
        ours = contains(str(models_dir(self._config.models_dir).resolve()), str(Path(source).resolve()))
        if folder.name == PROJECT and not self._is_name(source) and not ours:
            raise ModelError(
                f"the collection in {folder} names the embedder {identity.name} by a path, {source!a}, and may have "
                f"come with the folder: name it with --embedder, or as `embedder` in your own settings, if you trust it"
            )
        return source

    def _is_name(self, source: str) -> bool:
        if source in KNOWN or any(name == source for name, _ in installed(self._config.models_dir)):
            return True
        return source == Path(source).name and not os.path.lexists(os.path.expanduser(source))

    def _compare(self, embedder: Embedder) -> None:
        identity, opened = self.identity(), embedder.model
        if identity is None or identity.fingerprint == opened.fingerprint:
            return
        with self._database.read() as db:
            if not self._holds_passages(db):
                return
        path = self._database.path.parent
        if identity.name == opened.name:
            raise ModelError(
                f"the collection in {path} was embedded with another build of {identity.name} "
                f"({identity.fingerprint[:12]}, the one here is {opened.fingerprint[:12]}), and vectors of two models "
                f"cannot be compared: get that build back, or index into a new collection"
            )
        raise ModelError(
            f"the collection in {path} was embedded with {identity.name}, not with {opened.name}, and vectors of two "
            f"models cannot be compared: search it with {identity.name}, or index into a new collection"
        )

    def _identity_of(self, embedder: Embedder) -> EmbedderIdentity:
        model, chosen = embedder.model, self._chosen
        named = "" if isinstance(chosen, Embedder | Held) else str(chosen or self._config.embedder)
        path = model.path.resolve()
        # A path may be relative to the working directory, which can differ next time.
        by_path = isinstance(chosen, Embedder | Held) or (named and Path(os.path.expanduser(named)).resolve() == path)
        source = path if by_path else named or model.name
        return EmbedderIdentity(model.name, str(source), model.fingerprint, embedder.dim)


@checked_arguments
class Searchable(Closing):
    models: CollectionModels
    trace: Trace

    @property
    def embedder(self) -> Embedder:
        """The embedder; it is opened if necessary. Raises as `search` does."""
        return self.models.embedder()

    @property
    def reranker(self) -> Reranker:
        """The reranker; it is opened if necessary. Raises as `search` does."""
        return self.models.reranker()

    @property
    def identity(self) -> EmbedderIdentity | None:
        """The model that makes the collection's vectors; None if it is not decided yet."""
        return self.models.identity()

    def check_room(
        self, operation: str, *, rerank: bool = True, candidates: int = POOL, extra: Sequence[OperationStage] = ()
    ) -> None:
        self.models.check_room(operation, rerank=rerank, candidates=candidates, writes=bool(extra), extra=extra)

    def rerank(
        self, query: str, hits: Sequence[Hit], top_k: int | None = None, *, watch: Watch | None = None,
        judged: int | None = None, files: bool = False,
    ) -> list[Hit]:  # fmt: skip
        with self.trace.timed("search.rerank_s", "rerank", "search"):
            return reranked(self.models, query, hits, top_k, watch, judged, files)

    def relevance(self, query: str, texts: Sequence[str]) -> list[float]:
        """The reranker's probability, for each of `texts`, that it answers the query."""
        found = [0.0] * len(texts)
        for ranked in self.models.rank(query, texts, len(texts), False) if texts else ():
            found[ranked.index] = ranked.relevance
        return found

    def embed_queries(self, queries: Sequence[str]) -> Floats:
        with self.trace.timed("search.embed_s", "embed", "search"):
            return self.models.embed([checked_query(query) for query in queries], query=True)


def unreadable(reranker: str, query: str, passages: Sequence[str]) -> list[bool] | None:
    """Whether each passage or the query is in a language that the reranker does not know; None if that is unknown."""
    if reranker not in KNOWN or not KNOWN[reranker].languages:
        return None
    known = {*KNOWN[reranker].languages, ""}
    return [not {language_of(query), language_of(passage)} <= known for passage in passages]


def _has_passages(db: Connection) -> bool:
    return db.execute("SELECT 1 FROM chunks LIMIT 1").fetchone() is not None
