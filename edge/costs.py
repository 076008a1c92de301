"""What prefill costs on this machine: seconds T(cached, computed), measured on a grid or learned from every prefill."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from edge.errors import CorruptBlock, InputError
from edge.remembered import recall, remember
from edge.sealed import read_sealed, write_sealed

if TYPE_CHECKING:
    from edge.knowledge.backend import KVBackend

_FORGET = 0.98
"""What earlier prefills count after each further one."""

_TERMS = 3

_UNIT = 512
"""Tokens."""

Sums = npt.NDArray[np.float64]


class PrefillCosts(Protocol):
    """Seconds of computing some tokens after some that are cached."""

    @property
    def fingerprint(self) -> str:
        """The backend they belong to."""
        ...

    def estimate(self, cached: int, computed: int) -> float:
        """Seconds to compute `computed` tokens after `cached`."""
        ...

    def learn(self, cached: int, computed: int, seconds: float) -> None:
        """Takes in one prefill that was not interrupted."""
        ...


class LearnedCosts:
    """Prefill times fitted to the prefills of an application: seconds = a + b * computed + c * computed * position.

    Position is the mean number of tokens before each computed one. The first term is what a call costs, the second the
    matrix products, the third attention. Least squares of relative errors, no term below 0, earlier prefills fading.

    One thread at a time learns.
    """

    def __init__(self, fingerprint: str, path: Path | None = None) -> None:
        """
        Args:
            path: where to keep what is learned; what another backend learned there is not used. None keeps nothing.
        """
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
        """Takes in one prefill that was not interrupted."""
        if computed < 1 or not 0 < seconds < math.inf:
            return
        row = _features(cached, computed) / seconds
        self._products = _FORGET * self._products + np.outer(row, row)
        self._targets = _FORGET * self._targets + row
        self._terms = _fitted(self._products, self._targets)

    def save(self) -> None:
        """Keeps what was learned for the next process."""
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
    """What the terms are multiplied by, in units that make them about equally large."""
    share = computed / _UNIT
    return np.array([1.0, share, share * (cached + computed / 2) / _UNIT])


def _fitted(products: Sums, targets: Sums) -> Sums:
    """Terms of at least 0 with the least sum of squares: of all choices of terms that may be above 0, the best."""
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


@dataclass(frozen=True, slots=True)
class CostTable:
    """Seconds of computing some tokens after some that are cached (RAGCache, section 5.1, the profiler's table).

    Attributes:
        fingerprint: the backend it was measured with.
        cached: grid of tokens in context, ascending.
        computed: grid of tokens to compute, ascending, from 1 upwards.
        seconds: one row per value of `cached`, one column per value of `computed`.
    """

    fingerprint: str
    cached: tuple[int, ...]
    computed: tuple[int, ...]
    seconds: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        rows = {len(self.computed)} | {len(row) for row in self.seconds}
        values = [value for row in self.seconds for value in row]
        if (
            len(self.seconds) != len(self.cached)
            or len(rows) != 1
            or not values
            or list(self.cached) != sorted(set(self.cached))
            or list(self.computed) != sorted(set(self.computed))
            or self.cached[0] < 0
            or self.computed[0] < 1
            or not all(math.isfinite(value) and value >= 0 for value in values)
        ):
            raise InputError(
                f"a cost table needs ascending grids and a non-negative time for each of its points, "
                f"not {len(self.seconds)} rows for {len(self.cached)} cached by {len(self.computed)} computed lengths"
            )

    def estimate(self, cached: int, computed: int) -> float:
        """Seconds to compute `computed` tokens after `cached`: bilinear inside the grid, and outside it the plane of
        the nearest cell goes on; never negative, and 0 for nothing to compute."""
        if computed <= 0:
            return 0.0
        row, across = _cell(self.cached, cached)
        column, along = _cell(self.computed, computed)
        low, high = self.seconds[row], self.seconds[min(row + 1, len(self.cached) - 1)]
        near = _between(low, column, along)
        far = _between(high, column, along)
        return max(0.0, near + across * (far - near))

    def learn(self, cached: int, computed: int, seconds: float) -> None:
        """A table that was measured on an idle machine does not change."""

    @classmethod
    def measure(
        cls,
        backend: KVBackend,
        tokens: Sequence[int],
        *,
        cached: Sequence[int] = (0, 512, 2048),
        computed: Sequence[int] = (16, 128, 512),
        repeats: int = 3,
        clock: Callable[[], float] = time.perf_counter,
    ) -> CostTable:
        """Measures on an idle machine; what is in context is lost. Takes about `repeats` prefills of the largest grid
        values.

        Args:
            tokens: text to compute, at least as many tokens as the largest pair of grid values that fits the context.
            cached, computed: the grid; values that do not fit context or text are left out.
            repeats: the median of so many runs counts.

        Raises:
            InputError: the context or the text is too short for a single point of the grid.
        """
        room = min(backend.capacity, len(tokens))
        lengths = [length for length in sorted(set(computed)) if 0 < length <= room]
        prefixes = [length for length in sorted(set(cached)) if lengths and 0 <= length <= room - lengths[-1]]
        if not prefixes:
            raise InputError(
                f"{room:,} tokens are too few to measure prefill on; at least {min(computed):,} are needed"
            )
        rows = []
        backend.truncate(0)
        backend.prefill(tokens[: lengths[0]])  # the first run also brings the weights in
        backend.truncate(0)
        for prefix in prefixes:
            backend.prefill(tokens[backend.length : prefix])
            rows.append(tuple(_median(backend, tokens[prefix : prefix + n], repeats, clock) for n in lengths))
        backend.truncate(0)
        return cls(backend.fingerprint, tuple(prefixes), tuple(lengths), tuple(rows))

    def save(self, path: str | Path) -> None:
        """Writes the table as JSON with a checksum, in place of what was there.

        Raises:
            StorageError: the disk refuses.
        """
        write_sealed(Path(path), {name: getattr(self, name) for name in self.__dataclass_fields__})

    @classmethod
    def load(cls, path: str | Path) -> CostTable | None:
        """The table that was saved there; None when there is none. Compare its `fingerprint` before use.

        Raises:
            CorruptBlock: the file is damaged or no cost table; measure again.
        """
        try:
            data = read_sealed(Path(path))
            if data is None:
                return None
            rows = tuple(tuple(float(value) for value in row) for row in data["seconds"])
            return cls(str(data["fingerprint"]), _grid(data["cached"]), _grid(data["computed"]), rows)
        except (CorruptBlock, ValueError, TypeError, KeyError, InputError) as error:
            raise CorruptBlock(f"{path} is no cost table ({error}); remove it and it is measured again") from error


def _grid(values: Sequence[int]) -> tuple[int, ...]:
    return tuple(int(value) for value in values)


def _median(backend: KVBackend, tokens: Sequence[int], repeats: int, clock: Callable[[], float]) -> float:
    prefix = backend.length
    times = []
    for _ in range(repeats):
        started = clock()
        backend.prefill(tokens)
        times.append(clock() - started)
        backend.truncate(prefix)
    return statistics.median(times)


def _cell(grid: tuple[int, ...], value: int) -> tuple[int, float]:
    """The cell that `value` lies in or next to, and how far across it: 0 at its start, 1 at its end."""
    if len(grid) == 1:
        return 0, 0.0
    index = next((i for i in range(len(grid) - 2, 0, -1) if value >= grid[i]), 0)
    return index, (value - grid[index]) / (grid[index + 1] - grid[index])


def _between(row: tuple[float, ...], column: int, along: float) -> float:
    return row[column] + along * (row[min(column + 1, len(row) - 1)] - row[column])
