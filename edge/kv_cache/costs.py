"""The cost of prefill on this machine: seconds T(cached, computed), learned from prefills."""

from __future__ import annotations

import math
from itertools import combinations
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edge.files.sealed import recall, remember

_FORGET = 0.98
"""Factor by which the weight of earlier prefills falls with each further one."""

_TERMS = 3

_UNIT = 512
"""Unit of lengths in tokens, which makes the terms about equally large."""

Sums = npt.NDArray[np.float64]


class LearnedCosts:
    """Prefill times fitted to an application's prefills: seconds = a + b * computed + c * computed * position.

    Position is the mean number of tokens before each computed one. The fit minimizes the squared relative errors with
    terms of at least 0, and gives earlier prefills less weight. Only one thread at a time may learn.
    """

    def __init__(self, fingerprint: str, path: Path | None = None) -> None:
        """Takes up the costs in a file, if there is one and they are of this backend; None stores nothing."""
        self.fingerprint = fingerprint
        self._path = path
        self._products: Sums = np.zeros((_TERMS, _TERMS))
        self._targets: Sums = np.zeros(_TERMS)
        self._terms: Sums = np.zeros(_TERMS)
        state = recall(path, "the costs of prefill") if path is not None else {}
        if state.get("fingerprint") == fingerprint:
            self._take_up(state)

    @property
    def known(self) -> bool:
        """Whether there was a prefill to learn from."""
        return bool(self._targets.any())

    def estimate(self, cached: int, computed: int) -> float:
        """Seconds to compute `computed` tokens after `cached`; 0 before the first prefill."""
        return float(self._terms @ _features(cached, computed)) if computed > 0 else 0.0

    def learn(self, cached: int, computed: int, seconds: float) -> None:
        """Learns from one prefill that was not interrupted."""
        if computed < 1 or not 0 < seconds < math.inf:
            return
        row = _features(cached, computed) / seconds
        self._products = _FORGET * self._products + np.outer(row, row)
        self._targets = _FORGET * self._targets + row
        self._terms = _fitted(self._products, self._targets)

    def save(self) -> None:
        """Stores the learned costs for the next process."""
        if self._path is not None and self.known:
            remember(
                self._path,
                {
                    "fingerprint": self.fingerprint,
                    "products": self._products.tolist(),
                    "targets": self._targets.tolist(),
                },
            )

    def _take_up(self, state: dict[str, object]) -> None:
        try:
            products = np.asarray(state["products"], np.float64)
            targets = np.asarray(state["targets"], np.float64)
        except (KeyError, TypeError, ValueError):
            return
        if products.shape != (_TERMS, _TERMS) or targets.shape != (_TERMS,):
            return
        if np.isfinite(products).all() and np.isfinite(targets).all() and (targets >= 0).all():
            self._products, self._targets = products, targets
            self._terms = _fitted(products, targets)


def _features(cached: int, computed: int) -> Sums:
    """The factors of the terms, in units that make the terms about equally large."""
    share = computed / _UNIT
    return np.array([1.0, share, share * (cached + computed / 2) / _UNIT])


def _fitted(products: Sums, targets: Sums) -> Sums:
    """The terms of at least 0 with the least sum of squares, found by trying each subset of nonzero terms."""
    best, least = np.zeros(_TERMS), math.inf
    for count in range(1, _TERMS + 1):
        for chosen in combinations(range(_TERMS), count):
            inside = np.ix_(chosen, chosen)
            terms = np.zeros(_TERMS)
            terms[list(chosen)] = np.linalg.lstsq(products[inside], targets[list(chosen)], rcond=1e-12)[0]
            error = float(terms @ products @ terms - 2 * terms @ targets)
            if (terms >= 0).all() and error < least - 1e-12:
                best, least = terms, error
    return best
