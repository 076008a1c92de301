"""Pruning by the error of provisional scores: a candidate leaves once it is too far behind to come back.

GRATING (section 4.1) prunes where scores have separated into clusters. That asks for a threshold of dispersion for each
number of results and each size of the pool. Calibration knows the deviation of each layer's provisional scores from the
final ones, and with it one margin holds for any number of results out of any number of candidates. ARCHITECTURE.md
compares both rules.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from edge.errors import InputError
from edge.pruning import Decision, Mode, dispersion, log_odds

_NONE = np.empty(0, np.int64)


class BoundedPruning:
    """The state of one request's pruning. Compares log-odds, on whose scale the errors are measured."""

    def __init__(
        self, k: int, *, mode: Mode = "ranked", errors: Sequence[float], margin: float, candidates: int
    ) -> None:
        """Prepares for a pool of `candidates`.

        Args:
            k: winners wanted.
            mode: `ranked` drops the hopeless only; `top-k` lets certain winners stop early too.
            errors: standard deviation of the difference between provisional and final log-odds after each layer
                [layers]; infinite where the provisional scores say nothing.
            margin: a candidate is hopeless once it is this many standard deviations of the difference of two errors
                behind the K-th.

        Raises:
            InputError: k is not positive.
        """
        if k <= 0:
            raise InputError(f"the number of results must be at least 1, not {k}")
        self.k = min(k, candidates)
        # When everybody wins, only the order is left to ask for.
        self.mode: Mode = "ranked" if k >= candidates else mode
        self.remaining = self.k
        self._everybody = k >= candidates
        self._errors = errors
        self.margin = margin

    def wants(self, layer: int) -> bool:
        """Whether scores after `layer` layers would be looked at: computing them is wasted otherwise."""
        return not self._everybody and math.isfinite(self._errors[layer - 1] * self.margin)

    def reach(self, layer: int) -> float:
        """How far the difference of two log-odds may still move after `layer` layers, by the margin."""
        return self.margin * math.sqrt(2) * self._errors[layer - 1]

    def decide(self, layer: int, ids: npt.NDArray[np.int64], scores: npt.NDArray[np.float64]) -> Decision:
        """Judges the active candidates after `layer` layers.

        Args:
            ids: candidate numbers [active].
            scores: their provisional scores [active], probabilities, in the order of `ids`.
        """
        cv = dispersion(scores)
        if not self.wants(layer) or (self.mode == "ranked" and len(ids) <= self.k):
            return Decision(layer, cv, _NONE, _NONE, _NONE, ids, finished=False)
        odds, reach = log_odds(scores), self.reach(layer)
        # Ties go to the smaller number, as in the final ranking.
        order = np.lexsort((ids, -odds))
        last = odds[order[min(self.remaining, len(ids)) - 1]]
        below = odds < last - reach
        if self.mode == "ranked":
            return Decision(layer, cv, _NONE, _NONE, ids[below], ids[~below], finished=False)
        above = np.zeros(len(ids), bool)
        if self.remaining < len(ids):
            above = odds > odds[order[self.remaining]] + reach
        selected = ids[order[above[order]]]
        inside = ~above & ~below
        self.remaining -= len(selected)
        if int(inside.sum()) <= self.remaining:
            selected = np.concatenate((selected, ids[order[inside[order]]]))
            self.remaining = 0
            return Decision(layer, cv, _NONE, selected, ids[below], _NONE, finished=True)
        return Decision(layer, cv, _NONE, selected, ids[below], ids[inside], finished=False)
