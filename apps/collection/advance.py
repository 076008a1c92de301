"""`Advance`: how far a run of indexing has come, in passages, and how many there will be."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from edge.trace import Trace

Progress = Callable[[int, int], None]
"""Called with the passages that are done and the passages there will be, an estimate until all files are read."""

_PRIOR_BYTES = 20_000
_PRIOR_PASSAGES = 25.0
"""What is assumed of a kind of file before much of it was read: plain text has about 800 bytes a passage."""

_EVALUATIONS = "forward.evaluations"
"""The counter of texts that have passed a layer."""


class Advance:
    """Tells a progress bar how far a run has come: after each batch, and after each layer of the embedder within one.

    How many passages there will be is estimated from the bytes of the files that are not read yet, by their suffixes
    and by what the files read so far gave per byte.
    """

    def __init__(self, tell: Progress, files: Iterable[str], trace: Trace, layers: int) -> None:
        """Looks up the sizes of the files that are due.

        Args:
            layers: of the embedder.
        """
        self._tell = tell
        self._trace = trace
        self._layers = layers
        self._left: Counter[str] = Counter()
        self._read: Counter[str] = Counter()
        self._given: Counter[str] = Counter()
        self._done = 0
        for path in files:
            with contextlib.suppress(OSError):
                self._left[_suffix(path)] += os.stat(path).st_size
        self._say()

    def read(self, path: str, nbytes: int, passages: int) -> None:
        """A file has been read: what it gave."""
        suffix = _suffix(path)
        self._left[suffix] = max(0, self._left[suffix] - nbytes)
        self._read[suffix] += nbytes
        self._given[suffix] += passages
        self._say()

    @contextmanager
    def embedding(self, passages: int) -> Iterator[None]:
        """While the embedder computes, its layers count as parts of these passages."""
        passed = 0.0

        def heard(texts: float) -> None:
            nonlocal passed
            passed += texts / self._layers
            self._say(min(int(passed), passages))

        with self._trace.listening(_EVALUATIONS, heard):
            yield

    def committed(self, passages: int) -> None:
        """Passages have been taken in."""
        self._done += passages
        self._say()

    @property
    def total(self) -> int:
        """The passages there will be."""
        left = sum(nbytes * self._rate(suffix) for suffix, nbytes in self._left.items())
        return max(self._given.total() + round(left), self._done)

    def _rate(self, suffix: str) -> float:
        """Passages of a byte."""
        return (self._given[suffix] + _PRIOR_PASSAGES) / (self._read[suffix] + _PRIOR_BYTES)

    def _say(self, within: int = 0) -> None:
        self._tell(self._done + within, self.total)


def _suffix(path: str) -> str:
    return os.path.splitext(path)[1].lower()
