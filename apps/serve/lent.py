"""Models that the server holds: opened when they are first asked for, closed when others need their room.

`LentReranker` and `LentEmbedder` stand for such a model wherever an open one may be handed over, to a collection or a
memory for example. They are there from the start, whether the model is open or not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.apps.pool import Held, Pool
from edge.budget import MemoryBudget
from edge.config import Config
from edge.errors import InputError
from edge.models.packed import PackedModel
from edge.runtimes.embedder import Embedder
from edge.runtimes.engine import Engine, Tuning
from edge.runtimes.reranker import Ranked, Ranking, Reranker
from edge.runtimes.scoring import LayerReport, Watch
from edge.trace import Trace

_MOST = 300
"""Candidates that are drawn, those with the first numbers; more are only counted."""


class Picture:
    """Collects what a reranking saw after each layer whose scores it looked at."""

    def __init__(self, model: str, candidates: int, watch: Watch | None = None) -> None:
        """`watch`: sees every report as well."""
        self.model = model
        self.candidates = candidates
        self._watch = watch
        self._layers: list[dict[str, Any]] = []

    def see(self, report: LayerReport) -> None:
        """Takes a report. A pass that begins anew begins the picture anew."""
        if self._layers and report.layer <= self._layers[-1]["layer"]:
            self._layers = []
        decision = report.decision
        self._layers.append({
            "layer": report.layer,
            "active": len(report.ids),
            "scores": {str(i): round(s, 5) for i, s in zip(report.ids.tolist(), report.scores.tolist(), strict=True)
                       if i < _MOST},
            "dropped": [i for i in decision.dropped.tolist() if i < _MOST],
            "selected": [i for i in decision.selected.tolist() if i < _MOST],
        })  # fmt: skip
        if self._watch is not None:
            self._watch(report)

    def to_json(self) -> dict[str, Any]:
        """`layers` in their order: the provisional score of each active candidate, and who left."""
        return {"model": self.model, "candidates": self.candidates, "layers": list(self._layers)}


class ServedModels(Pool):
    """The models of one server.

    Attributes:
        picture: what the last reranking saw and decided; None before the first.
    """

    def __init__(self, budget: MemoryBudget, config: Config, trace: Trace, tuning: Tuning | None = None) -> None:
        super().__init__(budget)
        self.config = config
        self.trace = trace
        self.tuning = tuning
        self.picture: Picture | None = None

    def reranker(self, name: str) -> LentReranker:
        """The reranker of a name or path; nothing is opened yet."""
        return LentReranker(self.held("reranker", name, lambda: self._open(Reranker, name)), self)

    def embedder(self, name: str) -> LentEmbedder:
        """The embedder of a name or path; nothing is opened yet."""
        return LentEmbedder(self.held("embedder", name, lambda: self._open(Embedder, name)))

    def _open(self, kind: type[Any], name: str) -> Any:
        return kind(name, budget=self.budget, config=self.config, trace=self.trace, tuning=self.tuning)


class LentReranker(Reranker):
    """A reranker that the server holds. `close` does nothing: the server closes it."""

    shares_requests = True

    def __init__(self, held: Held[Reranker], pool: ServedModels) -> None:
        self.held = held
        self._pool = pool

    @property
    def model(self) -> PackedModel:  # type: ignore[override]
        """The model's files; it is opened if it is not."""
        return self.held.run(lambda reranker: reranker.model)

    @property
    def engine(self) -> Engine:  # type: ignore[override]
        """The engine of the model, which is opened if it is not. It may be closed at any moment."""
        return self.held.run(lambda reranker: reranker.engine)

    def rank(self, query: str, docs: Sequence[str], *args: Any, **kwargs: Any) -> list[Ranked]:
        """As `Reranker.rank`."""
        return self.explain(query, docs, *args, **kwargs).results

    def explain(
        self, query: str, docs: Sequence[str], *args: Any, watch: Watch | None = None, **kwargs: Any
    ) -> Ranking:
        """As `Reranker.explain`."""
        picture = Picture(self.held.name, len(docs), watch)
        ranking = self.held.run(lambda reranker: reranker.explain(query, docs, *args, watch=picture.see, **kwargs))
        self._pool.picture = picture
        return ranking

    def close(self) -> None:
        """Does nothing."""


class LentEmbedder(Embedder):
    """An embedder that the server holds. `close` does nothing: the server closes it."""

    shares_requests = True

    def __init__(self, held: Held[Embedder]) -> None:
        self.held = held

    @property
    def model(self) -> PackedModel:  # type: ignore[override]
        """The model's files; it is opened if it is not."""
        return self.held.run(lambda embedder: embedder.model)

    @property
    def engine(self) -> Engine:  # type: ignore[override]
        """The engine of the model, which is opened if it is not. It may be closed at any moment."""
        return self.held.run(lambda embedder: embedder.engine)

    def embed(self, texts: Sequence[str], **options: Any) -> npt.NDArray[np.float32]:
        """As `Embedder.embed`."""
        return self.held.run(lambda embedder: embedder.embed(texts, **options))

    def embed_iter(self, texts: Sequence[str], **options: Any) -> Iterator[npt.NDArray[np.float32]]:
        """As `Embedder.embed_iter`, but all at once: a model that is lent cannot wait for its caller."""
        if isinstance(texts, str):
            raise InputError("embed takes a list of texts, not a single string")
        yield self.embed(texts, **options)

    def close(self) -> None:
        """Does nothing."""
