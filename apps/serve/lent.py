"""`ServedModels`: the models of one server, opened on first use and closed when others need their room."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edge.apps.pool import Held, ModelPool
from edge.budget import MemoryBudget
from edge.config import Config
from edge.runtimes.embedder import Embedder
from edge.runtimes.engine import Tuning
from edge.runtimes.reranker import Ranking, Reranker
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


class ServedModels(ModelPool):
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

    def reranker(self, name: str) -> Held[Reranker]:
        """The reranker of a name or path; nothing is opened yet."""
        return self.held("reranker", name, lambda: _DrawnReranker(name, self))

    def embedder(self, name: str) -> Held[Embedder]:
        """The embedder of a name or path; nothing is opened yet."""
        return self.held("embedder", name, lambda: Embedder(name, **self.settings))

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments with which every model is opened."""
        return {"budget": self.budget, "config": self.config, "trace": self.trace, "tuning": self.tuning}


class _DrawnReranker(Reranker):
    """A reranker whose last ranking the server can draw."""

    def __init__(self, name: str, pool: ServedModels) -> None:
        super().__init__(name, **pool.settings)
        self._name = name
        self._drawn_in = pool

    def explain(
        self, query: str, docs: Sequence[str], *args: Any, watch: Watch | None = None, **kwargs: Any
    ) -> Ranking:
        """As `Reranker.explain`."""
        picture = Picture(self._name, len(docs), watch)
        ranking = super().explain(query, docs, *args, watch=picture.see, **kwargs)
        self._drawn_in.picture = picture
        return ranking
