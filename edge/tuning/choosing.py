"""The search for the parameters that reach a goal in the least time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from edge.errors import InputError
from edge.ivf.base import CHECKSUM_NBYTES, ID_NBYTES, Goal, Parameters
from edge.tuning.sampled import Expected, Sampled
from edge.tuning.stage_costs import Load, StageCosts, queue_places

DEPTHS = (1, 2, 4, 8, 16)
"""Exact scores per result that are tried where codes are not exact."""

_STEP = 1.04
"""Ratio of neighbouring numbers of lists probed."""

_TINY = 1e-9

_TABLE = 256
"""Entries of a table of pq."""


@dataclass(frozen=True, slots=True)
class ParameterChoice:
    """Parameters, the number of lists to probe, and what they are expected to do: the time per query, the work of a
    query, and bytes of the lists of so many rows."""

    parameters: Parameters
    nprobe: int
    expected: Expected
    seconds: float
    nbytes: int
    load: Load
    rows: int


def numbers_of_lists(rows: int, standard: int) -> list[int]:
    """The numbers of lists that are tried for `rows` vectors: one, powers of two around the square root, and the
    number of an index that was not tuned (`standard`)."""
    root = max(1.0, rows**0.5)
    powers = [2**power for power in range(1, 24) if root / 6 <= 2**power <= 4 * root and 2**power * 8 <= rows]
    return sorted({1, standard, *powers})


def codecs_of(dim: int, sample: int) -> list[tuple[str, int]]:
    """The codecs that can be tried for vectors of this width, with the bytes of their codes. Each entry of a table of
    pq needs a vector of the sample."""
    tables = [("pq", 4), ("opq", 4), ("opq", 8)]
    coded = [(name, dim // width) for name, width in tables if dim % width == 0 and sample >= _TABLE]
    return [("flat", 4 * dim), ("sq8", dim), *coded]


def lists_nbytes(rows: int, code_size: int) -> int:
    """Bytes of all lists: codes, ids and checksums."""
    return rows * (code_size + ID_NBYTES + CHECKSUM_NBYTES)


def grid(sampled: Sampled, lists: Sequence[int]) -> Iterator[Parameters]:
    """All parameters that are tried, except for the numbers of lists probed. A single list is never coded."""
    for name, code_size in sampled.codecs:
        if name == "flat":
            yield from (Parameters(number, name, code_size, 1) for number in lists)
        else:
            yield from (Parameters(n, name, code_size, depth) for n in lists if n > 1 for depth in DEPTHS)


def probes(lists: int) -> Iterator[int]:
    """The numbers of lists probed that are tried, ascending."""
    number = 1
    while number < lists:
        yield number
        number = max(number + 1, int(number * _STEP))
    yield lists


def load_of(sampled: Sampled, dim: int, parameters: Parameters, nprobe: int, rescored: float) -> Load:
    """The work of a query with these parameters."""
    queue = queue_places(parameters.rescore, exact=parameters.codec == "flat")
    codec = (parameters.codec, parameters.code_size)
    rows = sampled.scanned(parameters.lists, nprobe)
    return Load(codec, dim, parameters.lists, nprobe, rows, queue, rescored)


def evaluated(sampled: Sampled, costs: StageCosts, dim: int, parameters: Parameters, nprobe: int) -> ParameterChoice:
    """What a search with these parameters is expected to find and to take."""
    expected = sampled.expected(parameters, nprobe)
    load = load_of(sampled, dim, parameters, nprobe, expected.rescored)
    nbytes = lists_nbytes(sampled.rows, parameters.code_size)
    return ParameterChoice(parameters, nprobe, expected, costs.seconds(load), nbytes, load, sampled.rows)


def better(one: ParameterChoice, other: ParameterChoice | None, goal: Goal) -> bool:
    """Whether a choice that keeps the goal is better than another one that does: faster, or without a wanted recall
    the one of higher recall."""
    if other is None:
        return True
    if goal.recall is None:
        return (-one.expected.sure, one.seconds) < (-other.expected.sure, other.seconds)
    return (one.seconds, one.nbytes) < (other.seconds, other.nbytes)


def keeps(choice: ParameterChoice, goal: Goal) -> bool:
    """Whether a choice keeps the recall and the time of a goal."""
    reaches = goal.recall is None or choice.expected.sure >= goal.recall - _TINY
    return reaches and (goal.seconds is None or choice.seconds <= goal.seconds)


def choose(
    sampled: Sampled, costs: StageCosts, dim: int, lists: Sequence[int], goal: Goal, room: int
) -> ParameterChoice:
    """The best parameters whose lists have at most `room` bytes; if none has so few, among those with the fewest.

    With a wanted recall, parameters are judged by the fewest lists that reach it, and the fastest are best. Recall is
    computed only where exact codes would reach the goal and where the stages before rescoring are not too slow already,
    since neither can change with the codec or with more lists.
    """
    tried = within(list(grid(sampled, lists)), sampled.rows, room, strict=goal.nbytes is not None)
    best: ParameterChoice | None = None
    nearest: ParameterChoice | None = None
    for parameters in tried:
        for nprobe in probes(parameters.lists):
            if goal.recall is not None and sampled.bound(parameters.lists, nprobe) < goal.recall - _TINY:
                continue
            least = costs.seconds(load_of(sampled, dim, parameters, nprobe, 0.0))
            if goal.seconds is not None and least > goal.seconds:
                break
            if goal.recall is not None and best is not None and least > best.seconds:
                break
            choice = evaluated(sampled, costs, dim, parameters, nprobe)
            if nearest is None or choice.expected.sure > nearest.expected.sure:
                nearest = choice
            if keeps(choice, goal):
                best = choice if better(choice, best, goal) else best
            if goal.recall is not None and choice.expected.sure >= goal.recall - _TINY:
                break
    if best is None:
        raise InputError(_refusal(goal, nearest))
    return best


def least_probed(
    sampled: Sampled, costs: StageCosts, dim: int, parameters: Parameters, recall: float
) -> ParameterChoice | None:
    """The fewest lists with which these parameters surely reach a recall; None if no number of lists does."""
    for nprobe in probes(parameters.lists):
        if sampled.bound(parameters.lists, nprobe) >= recall - _TINY:
            choice = evaluated(sampled, costs, dim, parameters, nprobe)
            if choice.expected.sure >= recall - _TINY:
                return choice
    return None


def within(tried: list[Parameters], rows: int, room: int, *, strict: bool) -> list[Parameters]:
    """Those of the parameters whose lists have at most `room` bytes."""
    fitting = [p for p in tried if lists_nbytes(rows, p.code_size) <= room]
    if fitting:
        return fitting
    least = min(p.code_size for p in tried)
    if strict:
        raise InputError(
            f"no codec keeps the lists of {rows:,} vectors in {room:,} bytes: the smallest needs "
            f"{lists_nbytes(rows, least):,}"
        )
    return [p for p in tried if p.code_size == least]


def _refusal(goal: Goal, nearest: ParameterChoice | None) -> str:
    if nearest is None or goal.recall is None:
        return f"no parameters answer a query so well within {(goal.seconds or 0) * 1e3:g} ms: allow more time"
    wanted = f"a recall of {goal.recall:g}"
    limits = [f"{goal.seconds * 1e3:g} ms" if goal.seconds else "", f"{goal.nbytes:,} bytes" if goal.nbytes else ""]
    inside = " and ".join(filter(None, limits))
    return (
        f"no parameters surely reach {wanted}{f' within {inside}' if inside else ''}: the best reach "
        f"{nearest.expected.sure:.3f}; ask for less, or allow more"
    )
