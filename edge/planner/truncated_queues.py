"""Truncated priority queues: the shortest result queues that several searchers need (Chameleon; thesis, 4.3)."""

from __future__ import annotations

import math

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
