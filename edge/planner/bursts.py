"""Time to first token when several requests arrive at once and are served in micro-batches (thesis, section 3.7.2)."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edge.errors import RangeError


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
