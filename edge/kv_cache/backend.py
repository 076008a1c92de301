"""`KVBackend`: a generator's contexts, whose KV states can be cut and restored; `LearnedCosts` of its prefills."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from edge.errors import InputError
from edge.files.sealed import recall, remember

State = bytes | bytearray | memoryview
"""KV states of consecutive tokens, in the format of the backend that computed them."""


@dataclass(frozen=True, slots=True)
class StateSegment:
    """A piece of a prompt that may be used again: the system prompt, or a document as it stands there. `tokens`, at
    least one, were tokenized separately; `id` is its name in traces. `home`, of a document whose states may be moved:
    its tokens as number 1. `whole`: it is computed in its place unless such states are stored."""

    id: str
    tokens: tuple[int, ...]
    home: tuple[int, ...] = ()
    whole: bool = False


class KVBackend(Protocol):
    """One context of a language model: tokens at positions 0 ... length-1, with their KV states.

    One thread at a time uses it. `prefill` always gets one whole segment, so the same batches are computed whether
    others are cached or not, and results are equal to the last bit."""

    @property
    def fingerprint(self) -> str:
        """Everything a state depends on but its tokens: model file, context, rope and KV types, library."""

    @property
    def capacity(self) -> int:
        """Tokens the context can hold."""

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one token's state, as `extract` returns it; rounded up."""

    @property
    def length(self) -> int:
        """Tokens in context now."""

    def prefill(self, tokens: Sequence[int], cancelled: Callable[[], bool] | None = None) -> int:
        """Computes states of `tokens` until `cancelled`, called between batches; returns how many are there."""

    def extract(self, start: int, end: int) -> State:
        """Copies the states of positions start ... end-1 into a new buffer; the context does not change."""

    def restore(self, state: State, start: int, end: int) -> None:
        """Appends states that `extract(start, end)` returned; `start` equals `length`. CorruptBlock if they are not
        such; the context does not change."""

    def move(self, state: State, start: int, end: int, skip: int) -> None:
        """Appends states that `extract(start, end)` returned, but the first `skip`, wherever `length` is, with their
        keys rotated to the new positions. CorruptBlock as in `restore`."""

    def share(self, other: KVBackend, start: int, end: int) -> bool:
        """Appends states start ... end-1 of another backend without a copy; False if not in one pool."""

    def truncate(self, length: int) -> None:
        """Removes the positions from `length` on."""


def cached_first(
    scores: Sequence[float], cached: Callable[[Sequence[int]], int | None], *, tolerance: float = 0.0
) -> list[int]:
    """Numbers of the documents in the order for the prompt.

    Documents whose score is at most `tolerance` below their group's first (`scores` do not ascend) are a group; within
    groups the longest cached beginning goes first. `cached`: tokens of a prompt that begins with these documents, if
    all their states are cached, else None."""
    if any(a < b for a, b in pairwise(scores)):
        raise InputError(f"{len(scores)} documents, best first, need scores that do not ascend")
    groups = _groups(scores, tolerance)
    best: list[int] = []
    longest = 0

    def extend(order: list[int], tokens: int) -> None:
        """Extends the order in every allowed way as long as its states are cached."""
        nonlocal best, longest
        if tokens > longest:
            best, longest = order, tokens
        for index in _next(groups, order):
            found = cached([*order, index])
            if found is not None:
                extend([*order, index], found)

    extend([], 0)
    rest = (index for group in groups for index in group if index not in best)
    return [*best, *rest]


def _groups(scores: Sequence[float], tolerance: float) -> list[list[int]]:
    groups: list[list[int]] = []
    for index, score in enumerate(scores):
        if groups and scores[groups[-1][0]] - score <= tolerance:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups


def _next(groups: Sequence[Sequence[int]], order: Sequence[int]) -> list[int]:
    """The documents that may follow those in `order`: the unused ones of the first group that is not used up."""
    for group in groups:
        left = [index for index in group if index not in order]
        if left:
            return left
    return []


_FORGET = 0.98
"""Factor by which the weight of earlier prefills falls with each further one."""

_TERMS = 3

_UNIT = 512
"""Unit of lengths in tokens, which makes the terms about equally large."""

Sums = npt.NDArray[np.float64]


class LearnedCosts:
    """Prefill times: seconds = a + b * computed + c * computed * position (mean number of tokens before).

    The fit minimizes the squared relative errors with terms of at least 0; earlier prefills weigh less. One thread at a
    time may learn."""

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
