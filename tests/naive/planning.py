"""The planner's search without any pruning."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from edge.planner.schedule import Group, Outcome, Placement, Problem, Schedule, choices, evaluate, loop_batches
from edge.planner.tables import RagSchema


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
