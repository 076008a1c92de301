"""`Advance`: the progress of an indexing run, in passages, with an estimate of the total."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from edge.apps.store.rebuilding import Progress
from edge.trace import Trace

_PRIOR_BYTES = 20_000
_PRIOR_PASSAGES = 25.0
"""Assumed bytes and passages of each kind of file before any was read: a passage of plain text has about 800 bytes."""

_EVALUATIONS = "forward.evaluations"
"""The counter of texts that have passed through a layer."""


class Advance:
    """Reports the progress of a run after each batch, and within a batch after each layer of the embedder.

    The total is estimated from the bytes of the unread files, by suffix, and from the passages per byte of the files
    read so far.
    """

    def __init__(self, tell: Progress, files: Iterable[str], trace: Trace, layers: int) -> None:
        """Looks up the sizes of the files that will be read.

        Args:
            tell: the total that it gets is an estimate until all files are read.
            layers: number of the embedder's layers.
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
        """Records that a file has been read and how many passages it has."""
        suffix = _suffix(path)
        self._left[suffix] = max(0, self._left[suffix] - nbytes)
        self._read[suffix] += nbytes
        self._given[suffix] += passages
        self._say()

    @contextmanager
    def embedding(self, passages: int) -> Iterator[None]:
        """While the embedder runs in the block, each layer it finishes counts as a fraction of these passages."""
        passed = 0.0

        def heard(texts: float) -> None:
            nonlocal passed
            passed += texts / self._layers
            self._say(min(int(passed), passages))

        with self._trace.listening(_EVALUATIONS, heard):
            yield

    def committed(self, passages: int) -> None:
        """Records that passages have been stored."""
        self._done += passages
        self._say()

    @property
    def total(self) -> int:
        """The estimated number of passages in the whole run."""
        left = sum(nbytes * self._rate(suffix) for suffix, nbytes in self._left.items())
        return max(self._given.total() + round(left), self._done)

    def _rate(self, suffix: str) -> float:
        """Passages per byte."""
        return (self._given[suffix] + _PRIOR_PASSAGES) / (self._read[suffix] + _PRIOR_BYTES)

    def _say(self, within: int = 0) -> None:
        self._tell(self._done + within, self.total)


def _suffix(path: str) -> str:
    return os.path.splitext(path)[1].lower()
