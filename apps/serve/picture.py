"""`Picture`: layers by candidates of one reranking, as the engine room shows it."""

from __future__ import annotations

from typing import Any

from edge.runtimes.scoring import LayerReport, Watch

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
