"""Simulations of batches that fill slowly (Jiang's thesis, chapter 3).

`stall_factor`: retrievals that the decoder starts are done in batches. A sequence writes nothing while it waits for its
batch to fill (section 3.5.3). `burst_times`: several requests arrive at once and are served in micro-batches
(section 3.7.2).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

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
        points = sorted((random.choice(tokens - 1, retrievals, replace=False) + 1).tolist())
        return [after - before for before, after in pairwise([0, *points, tokens])][::-1]

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


@dataclass(frozen=True, slots=True)
class BurstStage:
    """A stage that a burst passes through.

    Attributes:
        seconds: returns the seconds until a batch of a given size is done.
        devices: number of the group of devices. Stages of one group take turns.
    """

    seconds: Callable[[int], float]
    devices: int


def burst_times(
    stages: Sequence[BurstStage], burst: int, batches: Sequence[int], *, deepest_first: bool = True
) -> list[float]:
    """Seconds until each request of a burst leaves the last stage, ascending.

    A stage begins when its batch is complete, or when fewer requests than a batch are still to come. If several stages
    could begin on the same devices, the deepest one does, since that minimizes the mean time of the last stage.

    Args:
        batches: size of the micro-batch of each stage.
        deepest_first: False for the opposite order, for comparison.

    Raises:
        RangeError: the burst or a batch is empty.
    """
    if burst < 1 or len(batches) != len(stages) or min(batches, default=0) < 1:
        raise RangeError(f"a burst has at least 1 request and each stage a batch of at least 1, not {burst}, {batches}")
    waiting = [burst] + [0] * (len(stages) - 1)
    to_come = [burst] * len(stages)  # requests that a stage has yet to begin
    busy: set[int] = set()
    done: list[tuple[float, int, int]] = []
    finished: list[float] = []
    now = 0.0
    order = range(len(stages) - 1, -1, -1) if deepest_first else range(len(stages))
    while len(finished) < burst:
        for index in order:
            size = min(batches[index], to_come[index])
            if size and waiting[index] >= size and stages[index].devices not in busy:
                waiting[index] -= size
                to_come[index] -= size
                busy.add(stages[index].devices)
                heapq.heappush(done, (now + stages[index].seconds(size), index, size))
        now, index, size = heapq.heappop(done)
        busy.discard(stages[index].devices)
        if index + 1 < len(stages):
            waiting[index + 1] += size
        else:
            finished += [now] * size
    return finished


def best_micro_batch(stages: Sequence[BurstStage], burst: int) -> tuple[int, float, float]:
    """The micro-batch, a power of two, that minimizes a burst's mean time to first token.

    Returns:
        The micro-batch, the mean seconds with it, and the mean seconds of the whole burst as one batch.
    """
    whole = sum(burst_times(stages, burst, [burst] * len(stages))) / burst
    best, seconds = burst, whole
    size = 1
    while size < burst:
        mean = sum(burst_times(stages, burst, [size] * len(stages))) / burst
        if mean < seconds:
            best, seconds = size, mean
        size *= 2
    return best, seconds, whole
