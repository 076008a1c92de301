"""The search for the schedules that no other schedule dominates.

A schedule's costs are sums and maxima of the costs of its stages, and none of them falls when a stage's cost rises. So
the search drops a dominated choice for one stage, one group or some groups before it combines the choice with the next
one. The result equals that of trying all schedules (`tests/edge/planner/exhaustive.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edge.errors import InputError
from edge.planner.schedule import (
    Choice,
    Group,
    Outcome,
    Placement,
    Problem,
    Schedule,
    choices,
    evaluate,
    group_weights,
    loop_batches,
    stage_costs,
)
from edge.planner.schema import Stage
from edge.planner.tables import Costs, frontier


@dataclass(frozen=True, slots=True)
class Plan:
    """A schedule and its cost."""

    schedule: Schedule
    outcome: Outcome


@dataclass(slots=True)
class _Some:
    """Ways to run some groups: the costs [n, 6], and the groups of each way.

    The columns are seconds to the first token, the slowest group's seconds per request, seconds per token,
    accelerators, bytes, and accelerators that belong to servers.
    """

    costs: Costs
    groups: list[tuple[Group, ...]]


def plans(problem: Problem) -> list[Plan]:
    """The schedules that no other one dominates in the four objectives together, ascending by TTFT.

    The objectives are TTFT, time per token, throughput per device and peak memory.

    Raises:
        InputError: no schedule fits.
    """
    found: list[_Some] = []
    for loop_batch in loop_batches(problem):
        options: dict[tuple[tuple[str, ...], bool], _Some] = {}
        for placement in problem.placements:
            some = _placed(problem, placement, loop_batch, options)
            if len(some.costs):
                loops = np.full((len(some.costs), 1), float(loop_batch))
                found.append(_Some(np.concatenate((some.costs, loops), axis=1), some.groups))
    if not found:
        raise InputError(_refusal(problem))
    costs = np.concatenate([some.costs for some in found])
    groups = [entry for some in found for entry in some.groups]
    chosen = []
    for row in frontier(_objectives(costs)):
        schedule = Schedule(groups[row], int(costs[row, 6]))
        outcome = evaluate(problem, schedule)
        assert outcome is not None
        chosen.append(Plan(schedule, outcome))
    return [chosen[row] for row in frontier(np.array([plan.outcome.objectives for plan in chosen]))]


def _refusal(problem: Problem) -> str:
    limit = "" if problem.memory is None else f" and {problem.memory / 1e6:,.0f} MB in all"
    return (
        f"no schedule of {problem.schema.name} fits {problem.accelerators} devices of "
        f"{problem.device_memory / 1e9:.3g} GB{limit}; give more devices or more memory"
    )


def _objectives(costs: Costs) -> Costs:
    devices = np.maximum(costs[:, 3], costs[:, 5])
    return np.stack([costs[:, 0], costs[:, 2], costs[:, 1] * devices, costs[:, 4]], axis=1)


def _placed(
    problem: Problem, placement: Placement, loop_batch: int, known: dict[tuple[tuple[str, ...], bool], _Some]
) -> _Some:
    """All groups of a placement combined: the ways that no other one dominates in the objectives."""
    some = _Some(np.zeros((1, 6)), [()])
    for names in placement:
        key = (names, len(placement) > 1)
        if key not in known:
            known[key] = _group(problem, names, loop_batch, apart=key[1])
        some = _joined(problem, some, known[key], last=names == placement[-1])
    return some


def _joined(problem: Problem, some: _Some, more: _Some, *, last: bool) -> _Some:
    """Every way of `some` combined with every way of `more`, without the dominated ones.

    Args:
        last: whether no further group is joined. Then the objectives alone tell what is dominated.
    """
    a, b = some.costs[:, None, :], more.costs[None, :, :]
    costs = a + b
    costs[:, :, 1] = np.maximum(a[:, :, 1], b[:, :, 1])
    costs = costs.reshape(-1, costs.shape[2])
    fits = np.flatnonzero(_within(problem, costs))
    rows = fits[frontier(_objectives(costs[fits]) if last else costs[fits])]
    width = len(more.groups)
    return _Some(costs[rows], [some.groups[row // width] + more.groups[row % width] for row in rows])


def _within(problem: Problem, costs: Costs) -> npt.NDArray[np.bool_]:
    memory = np.inf if problem.memory is None else problem.memory
    devices = np.maximum(costs[:, 3], costs[:, 5])
    fits: npt.NDArray[np.bool_] = (devices <= problem.accelerators) & (costs[:, 4] <= memory)
    return fits


def _group(problem: Problem, names: Sequence[str], loop_batch: int, *, apart: bool) -> _Some:
    """Ways to run the stages of one group, without the dominated ones.

    Args:
        apart: whether there are other groups. Only then does retrieval alone run on servers.
    """
    stages = {stage.name: stage for stage in problem.schema.stages()}
    members = [stages[name] for name in names]
    retrieves = apart and all(stage.kind == "retrieve" for stage in members)
    found: list[_Some] = []
    for devices in problem.tables[names[0]].devices():
        rows, ways = _taking_turns(problem, members, devices, loop_batch)
        if not ways:
            continue
        weights = group_weights(stages, ways[0])
        nbytes = rows[:, 3] + weights
        chips, brought = (0, problem.per_server * devices) if retrieves else (devices, 0)
        count = np.ones(len(rows))
        costs = np.stack([rows[:, 0], rows[:, 1], rows[:, 2], chips * count, nbytes, brought * count], axis=1)
        fits = _within(problem, costs)
        if not retrieves:
            fits &= nbytes <= devices * problem.device_memory
        kept = np.flatnonzero(fits)
        found.append(_Some(costs[kept], [(Group(ways[row], devices, retrieves),) for row in kept]))
    if not found:
        return _Some(np.empty((0, 6)), [])
    costs = np.concatenate([some.costs for some in found])
    groups = [entry for some in found for entry in some.groups]
    rows_kept = frontier(costs)
    return _Some(costs[rows_kept], [groups[row] for row in rows_kept])


def _taking_turns(
    problem: Problem, members: Sequence[Stage], devices: int, loop_batch: int
) -> tuple[Costs, list[tuple[Choice, ...]]]:
    """Ways to run stages one after the other on the same devices: costs [n, 4], with the columns of `stage_costs`."""
    rows = np.zeros((1, 4))
    ways: list[tuple[Choice, ...]] = [()]
    for stage in members:
        offered = choices(problem, stage, devices, loop_batch)
        if not offered:
            return np.empty((0, 4)), []
        added = np.array([stage_costs(problem, stage, choice, loop_batch) for choice in offered])
        best = frontier(added)
        a, b = rows[:, None, :], added[best][None, :, :]
        joined = a + b
        joined[:, :, 3] = np.maximum(a[:, :, 3], b[:, :, 3])
        joined = joined.reshape(-1, 4)
        kept = frontier(joined)
        ways = [(*ways[row // len(best)], offered[best[row % len(best)]]) for row in kept]
        rows = joined[kept]
    return rows, ways
