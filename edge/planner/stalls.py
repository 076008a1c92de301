"""Slowdown of writing by retrievals that the decoder starts and that are done in batches.

A sequence writes nothing while it waits for its batch to fill (Jiang's thesis, section 3.5.3).
"""

from __future__ import annotations

import heapq
from functools import lru_cache

import numpy as np

from edge.errors import RangeError

_SEQUENCES = 4000
"""Smallest number of sequences that are measured; it is two for each place in the batch if that is more."""


@lru_cache(maxsize=4096)
def stall_factor(
    batch: int, retrieval_batch: int, *, retrievals: int = 3, tokens: int = 256, sequences: int = _SEQUENCES
) -> float:
    """Ratio of the time to write a sequence to the time without retrievals, if retrieving itself takes no time.

    `batch` sequences are written at a time, and a finished one is replaced at once. Each sequence stops at `retrievals`
    random tokens, and waits until `retrieval_batch` sequences have stopped. Those then go on together. The first
    sequence in each place is not measured.

    Args:
        retrievals: number of retrievals of a sequence while it is written. Three fit the published figure 3.8b best.
            Its caption says four, but the first of them comes before the sequence begins.

    Raises:
        RangeError: the retrieval batch never fills, or the tokens have too few gaps for the retrievals.
    """
    if not 1 <= retrieval_batch <= batch:
        raise RangeError(f"a retrieval batch of {retrieval_batch} never fills with {batch} sequences at a time")
    if not 0 <= retrievals < tokens:
        raise RangeError(f"{tokens} tokens have no room for {retrievals} retrievals between them")
    if retrievals == 0 or retrieval_batch == 1:
        return 1.0
    random = np.random.default_rng(0)

    def stops() -> list[int]:
        """The lengths of the pieces between the stops, with the first piece at the end."""
        points = np.sort(random.choice(tokens - 1, retrievals, replace=False) + 1)
        return [int(piece) for piece in np.diff(points, prepend=0, append=tokens)[::-1]]

    pieces = [stops() for _ in range(batch)]
    begun, first = [0] * batch, [True] * batch
    events = [(pieces[place].pop(), place) for place in range(batch)]
    heapq.heapify(events)
    waiting: list[int] = []
    total = counted = 0
    wanted = max(sequences, 2 * batch)
    while counted < wanted:
        now, place = heapq.heappop(events)
        if pieces[place]:
            waiting.append(place)
            if len(waiting) == retrieval_batch:
                for resumed in waiting:
                    heapq.heappush(events, (now + pieces[resumed].pop(), resumed))
                waiting = []
            continue
        if not first[place]:
            total += now - begun[place]
            counted += 1
        first[place], begun[place], pieces[place] = False, now, stops()
        heapq.heappush(events, (now + pieces[place].pop(), place))
    return total / counted / tokens
