"""Pruning by the error of provisional scores: a candidate is dropped once it is too far behind to catch up.

GRATING (section 4.1) prunes when the scores have separated into clusters. That rule needs a threshold of dispersion for
each number of results and each pool size. The rule here uses the standard deviation between each layer's provisional
scores and the final ones, which calibration measures. With it, one margin holds for any number of results and
candidates. docs/decisions/streaming-and-pruning.md compares both rules.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from edge.errors import InputError
from edge.streaming.pruning import Decision, Mode, dispersion, log_odds

_NONE = np.empty(0, np.int64)


class BoundedPruning:
    """The state of one request's pruning. It compares log-odds, since the errors are measured on that scale."""

    def __init__(
        self, k: int, *, mode: Mode = "ranked", errors: Sequence[float], margin: float, candidates: int
    ) -> None:
        """Prepares pruning of a pool of `candidates`.

        Args:
            k: number of results wanted.
            mode: `ranked` drops only hopeless candidates; with `top-k`, certain winners stop early, too.
            errors: standard deviation of the difference between predicted and final log-odds after each layer [layers +
                1]. The first entry is that of the scores known before the first layer. Infinite where the predictions
                are useless.
            margin: a candidate is hopeless if its distance from the K-th exceeds this many standard deviations of the
                difference of two errors.

        Raises:
            InputError: k is not positive.
        """
        if k <= 0:
            raise InputError(f"the number of results must be at least 1, not {k}")
        self.k = min(k, candidates)
        # If every candidate is a result, only the order remains to be found.
        self.mode: Mode = "ranked" if k >= candidates else mode
        self.remaining = self.k
        self._everybody = k >= candidates
        self._errors = errors
        self.margin = margin

    def wants(self, layer: int) -> bool:
        """Whether `decide` would use the scores after `layer` layers; if not, computing them is wasted.

        Layer 0 means the scores known before the first layer.
        """
        return not self._everybody and math.isfinite(self._errors[layer] * self.margin)

    def reach(self, layer: int) -> float:
        """The largest change of the difference of two log-odds after `layer` layers that the margin allows for."""
        return self.margin * math.sqrt(2) * self._errors[layer]

    def decide(self, layer: int, ids: npt.NDArray[np.int64], scores: npt.NDArray[np.float64]) -> Decision:
        """Judges the active candidates after `layer` layers.

        Before the first layer no candidate is selected, so that every result has been read by at least one layer.

        Args:
            ids: candidate numbers [active].
            scores: their provisional scores [active], probabilities, in the order of `ids`.
        """
        cv = dispersion(scores)
        if not self.wants(layer) or (self.mode == "ranked" and len(ids) <= self.k):
            return Decision(layer, cv, _NONE, _NONE, _NONE, ids, finished=False)
        odds, reach = log_odds(scores), self.reach(layer)
        # Among equal scores the smaller number comes first, as in the final ranking.
        order = np.lexsort((ids, -odds))
        last = odds[order[min(self.remaining, len(ids)) - 1]]
        below = odds < last - reach
        if self.mode == "ranked" or layer == 0:
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
