"""Retrieval on several searchers (Chameleon; Jiang's thesis, chapter 4).

Truncated priority queues are the shortest result queues that the searchers need (section 4.3). `Alternation` divides
devices into those that generate and those that retrieve (section 4.6.3).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from edge.errors import InputError, RangeError


def tail(results: int, queues: int, length: int) -> float:
    """Probability that a given one of `queues` queues gets more than `length` of the best `results`.

    Each result is in each queue with the same probability, independently of the others.
    """
    return math.fsum(_exactly(results, queues, count) for count in range(length + 1, results + 1))


def _exactly(results: int, queues: int, count: int) -> float:
    """Probability that a given queue gets exactly `count` of the best `results`."""
    if queues == 1:
        return float(count == results)
    ways = math.lgamma(results + 1) - math.lgamma(count + 1) - math.lgamma(results - count + 1)
    return math.exp(ways - count * math.log(queues) + (results - count) * math.log1p(-1 / queues))


def queue_length(results: int, queues: int, *, confidence: float = 0.99, striped: bool = True) -> int:
    """The shortest length of the queues at which a share `confidence` of all queries loses none of the best `results`.

    It follows from the union bound, which adds the probabilities of the single queues to drop a result.

    Args:
        striped: whether each list is spread evenly over the searchers. If a list is in one place, near results are
            together, and nothing bounds their number in one queue.

    Raises:
        InputError: the lists are not striped.
        RangeError: there are no results or queues, or the confidence is not between 0 and 1.
    """
    if not striped:
        raise InputError(
            f"queues may be shorter than the {results} results only where every list is dealt evenly over the "
            f"searchers: results of a list that lies in one place all go to one queue"
        )
    if results < 1 or queues < 1 or not 0 < confidence < 1:
        raise RangeError(f"{results} results, {queues} queues and a confidence of {confidence} have no queue length")
    more = 0.0
    for count in range(results, 1, -1):  # the smallest probabilities are added first, so the sum is exact
        more += _exactly(results, queues, count)
        if queues * more > 1 - confidence:
            return count
    return 1


@dataclass(frozen=True, slots=True)
class Alternation:
    """Generation that waits for a retrieval every `interval` tokens.

    Attributes:
        batch: number of sequences generated at a time.
        step: seconds to write one token for the batch on one device.
        retrieval: seconds to retrieve for the batch on one device.
    """

    interval: int
    batch: int
    step: float
    retrieval: float

    def __post_init__(self) -> None:
        if min(self.interval, self.batch, self.step, self.retrieval) <= 0:
            raise RangeError("interval, batch and both times are above 0")

    def throughput(self, generating: int, retrieving: int) -> float:
        """Tokens per second. A generating device waits while it retrieves, and the slower side sets the rate."""
        tokens = self.interval * self.batch
        write = tokens * generating / (self.interval * self.step + self.retrieval)
        return min(write, tokens * retrieving / self.retrieval)

    @property
    def generating_share(self) -> float:
        """The best share of generating devices, between a half and one."""
        generation = self.interval * self.step
        return (generation + self.retrieval) / (generation + 2 * self.retrieval)

    def efficiency(self, share: float) -> float:
        """Throughput if this share of many devices generates, as a part of the highest throughput.

        Raises:
            RangeError: the share is not between 0 and 1.
        """
        if not 0 <= share <= 1:
            raise RangeError(f"a share of devices is between 0 and 1, not {share}")
        generation = self.interval * self.step
        rate = min(share / (generation + self.retrieval), (1 - share) / self.retrieval)
        return rate * (generation + 2 * self.retrieval)

    def divided(self, devices: int) -> tuple[int, int]:
        """The best numbers of generating and of retrieving devices.

        Raises:
            RangeError: there are fewer than two devices.
        """
        if devices < 2:
            raise RangeError(f"two devices at least are needed to divide them, not {devices}")
        near = int(self.generating_share * devices)
        candidates = {min(max(1, count), devices - 1) for count in (near, near + 1)}
        best = max(sorted(candidates), key=lambda count: self.throughput(count, devices - count))
        return best, devices - best
