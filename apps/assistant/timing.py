"""`GeneratorClock`: measures the time that a generator itself takes."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import cast

from edge.runtimes.generation.base import Piece


@dataclass(slots=True)
class GeneratorClock:
    """Times one answer. The time that the reader spends between two tokens does not count.

    Attributes:
        first: seconds to the first token.
        seconds: seconds to the last token.
        count: the number of tokens.
    """

    first: float = 0.0
    seconds: float = 0.0
    count: int = 0

    def timed(self, answer: Iterator[Piece]) -> Iterator[Piece]:
        """Yields the answer's tokens. Closing this iterator closes the answer."""
        with closing(cast("Generator[Piece, None, None]", answer)):
            while True:
                asked = time.perf_counter()
                token = next(answer, None)
                self.seconds += time.perf_counter() - asked
                if token is None:
                    return
                self.count += 1
                self.first = self.first or self.seconds
                yield token
