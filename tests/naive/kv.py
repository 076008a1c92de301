"""A language model's context without a model: each token's state is a digest of all tokens up to it.

The "generated" text depends on every state in context, so a state that was restored in the wrong place, after the wrong
prefix or damaged changes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from edge.errors import CorruptBlock, ModelError
from edge.kv_cache.backend import StateSegment

CELL = 12
"""Bytes of one token's state."""


class FakeContext:
    """A `KVBackend`. It trusts states as a real one does: only their size is looked at. `fixed` bytes of a state belong
    to no token."""

    def __init__(self, *, capacity: int = 10_000, batch: int = 4, fingerprint: str = "fake", fixed: int = 0) -> None:
        self.fingerprint = fingerprint
        self.capacity = capacity
        self.bytes_per_token = CELL
        self.batch = batch
        self.fixed = fixed
        self.cells: list[bytes] = []
        self.prefilled = 0
        self.clock = 0.0
        self.failures: list[int] = []
        """Prefills to come, counted from now, that fail halfway."""
        self._chain: list[bytes] = [b""]

    @property
    def length(self) -> int:
        return len(self.cells)

    def prefill(self, tokens: Sequence[int], cancelled: Callable[[], bool] | None = None) -> int:
        self.failures = [left - 1 for left in self.failures]
        for done, token in enumerate(tokens):
            if done % self.batch == 0 and cancelled is not None and cancelled():
                return done
            if -1 in self.failures and done >= len(tokens) // 2:
                self.failures.remove(-1)
                raise ModelError("the fake context was told to fail")
            self._append(token)
        return len(tokens)

    def extract(self, start: int, end: int) -> bytes:
        assert 0 <= start < end <= len(self.cells)
        return bytes(self.fixed) + b"".join(self.cells[start:end])

    def restore(self, state: bytes | bytearray | memoryview, start: int, end: int) -> None:
        assert start == len(self.cells)
        state = bytes(state)
        if len(state) != self.fixed + (end - start) * CELL:
            raise CorruptBlock(f"a state of {len(state)} bytes is not one of {end - start} tokens")
        self.cells += [state[i : i + CELL] for i in range(self.fixed, len(state), CELL)]

    def move(self, state: bytes | bytearray | memoryview, start: int, end: int, skip: int) -> None:
        state = bytes(state)
        if len(state) != self.fixed + (end - start) * CELL:
            raise CorruptBlock(f"a state of {len(state)} bytes is not one of {end - start} tokens")
        self.cells += [state[i : i + CELL] for i in range(self.fixed + skip * CELL, len(state), CELL)]

    def share(self, other: object, start: int, end: int) -> bool:
        return False

    def truncate(self, length: int) -> None:
        assert length <= len(self.cells)
        del self.cells[length:]

    def output(self) -> bytes:
        """The output that would be generated now."""
        return blake2b(b"".join(self.cells)).digest()

    def _append(self, token: int) -> None:
        self.prefilled += 1
        self.clock += 1.0 + len(self.cells) / 100
        self.cells.append(cell(self.cells[-1] if self.cells else b"", token))


def cell(before: bytes, token: int) -> bytes:
    """The state of a token after a state that stands for everything before it."""
    return blake2b(before + token.to_bytes(4, "little"), digest_size=CELL).digest()


def chained(tokens: Sequence[int], cells: Sequence[bytes] = ()) -> list[bytes]:
    """The states of tokens after other states."""
    found = list(cells)
    for token in tokens:
        found.append(cell(found[-1] if found else b"", token))
    return found[len(cells) :]


def composed(path: Sequence[StateSegment], again: int, best: int) -> list[bytes]:
    """The states of a path whose documents with a home are moved from behind the common beginning, but those that are
    computed whole, and the first `again` tokens (`best` of number 1), or those that differ."""
    cells: list[bytes] = []
    start = next((place for place, segment in enumerate(path) if segment.home), len(path))
    begin = [token for other in path[:start] for token in other.tokens]
    for segment in path:
        moved = chained([*begin, *segment.home])[len(begin) :]
        first = best if segment.tokens == segment.home else again
        while segment.tokens[first:] != segment.home[len(segment.home) - len(segment.tokens) + first :]:
            first += 1
        first = first if segment.home and not segment.whole else len(segment.tokens)
        cells += chained(segment.tokens[:first], cells)
        cells += moved[len(moved) - len(segment.tokens) + first :] if first < len(segment.tokens) else []
    return cells


def uncached(tokens: Sequence[int]) -> bytes:
    """The output of a context that never reuses anything, after these tokens."""
    context = FakeContext()
    context.prefill(tokens)
    return context.output()


@dataclass(frozen=True)
class GridCosts:
    """`LearnedCosts` of a table: a row of seconds for each number of cached tokens, a column for each of computed ones.
    Between them they are interpolated."""

    fingerprint: str
    cached: tuple[int, ...]
    computed: tuple[int, ...]
    seconds: tuple[tuple[float, ...], ...]

    def estimate(self, cached: int, computed: int) -> float:
        columns = [np.interp(cached, self.cached, column) for column in zip(*self.seconds, strict=True)]
        return float(np.interp(computed, self.computed, columns))

    def learn(self, cached: int, computed: int, seconds: float) -> None:
        """Does nothing: the table does not change."""

    def save(self) -> None:
        """Does nothing, likewise."""
