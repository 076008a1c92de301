"""The planner's search without any pruning, and the cost of one schedule; None if it does not fit."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from edge.planner.schedule import (
    Group,
    Outcome,
    Placement,
    Problem,
    Schedule,
    choices,
    group_weights,
    loop_batches,
    stage_costs,
)
from edge.planner.tables import RagSchema


def evaluate(problem: Problem, schedule: Schedule) -> Outcome | None:
    stages = {stage.name: stage for stage in problem.schema.stages()}
    ttft = tpot = interval = nbytes = 0.0
    chips = servers = 0
    for group in schedule.groups:
        seconds = working = 0.0
        for choice in group.choices:
            first, each, token, held = stage_costs(problem, stages[choice.stage], choice, schedule.loop_batch)
            ttft, tpot, seconds, working = ttft + first, tpot + token, seconds + each, max(working, held)
        held = group_weights(stages, group.choices) + working
        if not group.retrieves and held > group.devices * problem.device_memory:
            return None
        interval, nbytes = max(interval, seconds), nbytes + held
        chips += 0 if group.retrieves else group.devices
        servers += group.devices if group.retrieves else 0
    if chips > problem.accelerators or (problem.memory is not None and nbytes > problem.memory):
        return None
    devices = max(chips, problem.per_server * servers)
    return Outcome(ttft, tpot, interval, devices, nbytes) if devices <= problem.accelerators else None


def every_schedule(problem: Problem) -> Iterator[Schedule]:
    """Every schedule, whether it fits or not."""
    stages = {stage.name: stage for stage in problem.schema.stages()}
    for placement, loop_batch in product(problem.placements, loop_batches(problem)):
        groups = []
        for names in placement:
            retrieves = len(placement) > 1 and names == ("retrieve",)
            groups.append(
                [
                    Group(ways, devices, retrieves)
                    for devices in problem.tables[names[0]].devices()
                    for ways in product(*(choices(problem, stages[name], devices, loop_batch) for name in names))
                ]
            )
        yield from (Schedule(chosen, loop_batch) for chosen in product(*groups))


def exhaustive(problem: Problem) -> list[tuple[Schedule, Outcome]]:
    """The schedules that no other one beats; of equal ones the first."""
    found = [(s, o) for s in every_schedule(problem) if (o := evaluate(problem, s)) is not None]
    found.sort(key=lambda entry: entry[1].objectives)
    kept: list[tuple[Schedule, Outcome]] = []
    for schedule, outcome in found:
        costs = outcome.objectives
        if not any(all(a <= b for a, b in zip(k.objectives, costs, strict=True)) for _, k in kept):
            kept.append((schedule, outcome))
    return kept


def one_device(schema: RagSchema) -> list[Placement]:
    """All stages take turns on one device."""
    return [(tuple(stage.name for stage in schema.stages()),)]
