"""`CostTable`: the cost of prefill measured on a grid, as the profiler of RAGCache does it."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from edge.errors import CorruptBlock, InputError
from edge.files.sealed import read_sealed, write_sealed
from edge.kv_cache.backend import KVBackend


@dataclass(frozen=True, slots=True)
class CostTable:
    """Seconds to compute some tokens after some cached ones (the profiler's table of RAGCache, section 5.1).

    Attributes:
        fingerprint: that of the backend on which the table was measured.
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
        """Seconds to compute `computed` tokens after `cached`; 0 if there is nothing to compute.

        Inside the grid the value is interpolated bilinearly. Outside, the plane of the nearest cell is extended, but
        never below 0.
        """
        if computed <= 0:
            return 0.0
        row, across = _cell(self.cached, cached)
        column, along = _cell(self.computed, computed)
        low, high = self.seconds[row], self.seconds[min(row + 1, len(self.cached) - 1)]
        near = _between(low, column, along)
        far = _between(high, column, along)
        return max(0.0, near + across * (far - near))

    def learn(self, cached: int, computed: int, seconds: float) -> None:
        """Does nothing: a table that was measured on an idle machine does not change."""

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
        """Measures the table, for about the time of `repeats` prefills of the largest grid values.

        The machine should be idle. The tokens in context are lost.

        Args:
            tokens: text to compute, with at least as many tokens as the largest pair of grid values that fits the
                context.
            cached, computed: the grid. Values that do not fit the context or the text are left out.
            repeats: number of runs for each point, of which the median counts.

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
        backend.prefill(tokens[: lengths[0]])  # the first run also loads the weights
        backend.truncate(0)
        for prefix in prefixes:
            backend.prefill(tokens[backend.length : prefix])
            rows.append(tuple(_median(backend, tokens[prefix : prefix + n], repeats, clock) for n in lengths))
        backend.truncate(0)
        return cls(backend.fingerprint, tuple(prefixes), tuple(lengths), tuple(rows))

    def save(self, path: str | Path) -> None:
        """Writes the table as JSON with a checksum, and replaces an existing file.

        Raises:
            StorageError: the file cannot be written.
        """
        write_sealed(Path(path), {name: getattr(self, name) for name in self.__dataclass_fields__})

    @classmethod
    def load(cls, path: str | Path) -> CostTable | None:
        """The table saved at `path`; None if there is none. Compare its `fingerprint` before use.

        Raises:
            CorruptBlock: the file is damaged or is no cost table. Measure again.
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
    """The cell of `value` or nearest to it, and the position in it: 0 at the cell's start, 1 at its end."""
    if len(grid) == 1:
        return 0, 0.0
    index = next((i for i in range(len(grid) - 2, 0, -1) if value >= grid[i]), 0)
    return index, (value - grid[index]) / (grid[index + 1] - grid[index])


def _between(row: tuple[float, ...], column: int, along: float) -> float:
    return row[column] + along * (row[min(column + 1, len(row) - 1)] - row[column])
