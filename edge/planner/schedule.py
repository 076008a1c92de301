"""`Schedule`: the assignment of stages to devices, with batch sizes; its cost; and the search for the schedules that no
other one dominates.

Costs are sums and maxima of stages' costs, so dominated choices are dropped early. The result equals that of trying all
(`tests/naive/planning.py`)."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, pairwise, product

import numpy as np
import numpy.typing as npt

from edge.errors import InputError, RangeError
from edge.planner.tables import Costs, Point, RagSchema, Stage, StageTable, frontier

_SEQUENCES = 4000
"""Smallest number of sequences that are measured; it is two for each place in the batch if that is more."""


@lru_cache(maxsize=4096)
def stall_factor(
    batch: int, retrieval_batch: int, *, retrievals: int = 3, tokens: int = 256, sequences: int = _SEQUENCES
) -> float:
    """Ratio of the time to write a sequence to the time without retrievals, if retrieving itself takes no time.

    `batch` sequences are written at a time; each stops at `retrievals` random tokens until `retrieval_batch` have
    stopped (Jiang's thesis, section 3.5.3). Three fit the published figure 3.8b best."""
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


Placement = tuple[tuple[str, ...], ...]
"""Groups of stages by name. The stages of a group take turns on the same devices."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The way one stage runs: its cost, and its cost when the decoder starts it while writing (`loop`)."""

    stage: str
    point: Point
    loop: Point | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """Stages that take turns on the same devices."""

    choices: tuple[Choice, ...]
    devices: int
    retrieves: bool = False


@dataclass(frozen=True, slots=True)
class Schedule:
    """Groups, and the number of sequences that retrieve together while they are written (0 if none retrieves)."""

    groups: tuple[Group, ...]
    loop_batch: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """The cost of a schedule: seconds to the first token and per token (with all waiting), seconds between requests at
    the highest rate, accelerators with those of retrieval servers, and peak memory."""

    ttft: float
    tpot: float
    interval: float
    devices: int
    nbytes: float

    @property
    def throughput(self) -> float:
        return 1 / self.interval

    @property
    def throughput_per_device(self) -> float:
        return 1 / (self.interval * self.devices)

    @property
    def objectives(self) -> tuple[float, float, float, float]:
        """The values to minimize: TTFT, time per token, device seconds per request, and bytes; rounded to 12 digits."""
        ttft, tpot, seconds, nbytes = (
            float(f"{value:.12g}") for value in (self.ttft, self.tpot, self.interval * self.devices, self.nbytes)
        )
        return ttft, tpot, seconds, nbytes


@dataclass(frozen=True, slots=True)
class Problem:
    """A pipeline, stages' costs, placements, and most accelerators, `per_server` of which belong to a server."""

    schema: RagSchema
    tables: Mapping[str, StageTable]
    placements: Sequence[Placement]
    accelerators: int
    device_memory: float
    memory: float | None = None
    per_server: int = 4
    stalls: Callable[..., float] = stall_factor


def cluster_placements(schema: RagSchema) -> list[Placement]:
    """All ways to place the stages on a cluster (Jiang's thesis, section 3.6.1): retrieval and each decoder of the
    answer's model by itself, the others in groups in their order."""
    stages = schema.stages()
    runs: list[list[tuple[str, ...]]] = [[]]
    alone: list[tuple[str, ...]] = []
    for stage in stages:
        if stage.kind == "decode" and stage.model == schema.llm:
            alone.append((stage.name,))
            runs.append([])
        elif stage.kind != "retrieve":
            runs[-1].append((stage.name,))
    cut = [_cuts(run) for run in runs if run]
    return [(("retrieve",), *chain.from_iterable(groups), *alone) for groups in product(*cut)]


def _cuts(run: Sequence[tuple[str, ...]]) -> list[list[tuple[str, ...]]]:
    if len(run) == 1:
        return [[run[0]]]
    rest = _cuts(run[1:])
    return [[run[0], *groups] for groups in rest] + [[run[0] + groups[0], *groups[1:]] for groups in rest]


def group_weights(stages: Mapping[str, Stage], choices: Sequence[Choice]) -> float:
    """Bytes of the models of a group. A model that several stages use is counted once."""
    held: dict[str, float] = {}
    for choice in choices:
        model = stages[choice.stage].model
        key = choice.stage if model is None else model.name
        held[key] = max(held.get(key, 0.0), choice.point.weights)
    return sum(held.values())


def stage_costs(problem: Problem, stage: Stage, choice: Choice, loop_batch: int) -> tuple[float, float, float, float]:
    """What a stage adds: seconds to first token, device seconds a request, seconds a token, bytes."""
    point, loop = choice.point, choice.loop
    per_request = stage.calls * point.interval / point.batch
    ttft = stage.calls * point.latency if stage.before else 0.0
    working, tpot = point.working, 0.0
    if not stage.before:
        tpot = point.latency / stage.tokens
        if loop_batch and not problem.schema.overlapped:
            looping = round(problem.schema.looping)
            tpot *= problem.stalls(point.batch, loop_batch, retrievals=looping, tokens=stage.tokens)
    if loop is not None:
        per_request += stage.looping * loop.interval / loop.batch
        working = max(working, loop.working)
        if not problem.schema.overlapped:
            tpot += stage.looping * loop.latency / problem.schema.decode_tokens
    return ttft, per_request, tpot, working


def bottleneck(problem: Problem, plan: Plan) -> tuple[Group, str]:
    """The group that limits the throughput, and its slowest stage."""
    stages = {stage.name: stage for stage in problem.schema.stages()}

    def each(group: Group) -> dict[str, float]:
        return {c.stage: stage_costs(problem, stages[c.stage], c, plan.schedule.loop_batch)[1] for c in group.choices}

    slowest = max(plan.schedule.groups, key=lambda group: sum(each(group).values()))
    shares = each(slowest)
    return slowest, max(shares, key=lambda name: shares[name])


def choices(problem: Problem, stage: Stage, devices: int, loop_batch: int) -> list[Choice]:
    table = problem.tables[stage.name]
    if not stage.before and loop_batch and not problem.schema.overlapped:
        return [Choice(stage.name, point) for point in table.at(devices) if point.batch >= loop_batch]
    loops: Sequence[Point | None] = table.batched(devices, loop_batch) if stage.looping and loop_batch else [None]
    return [Choice(stage.name, point, loop) for point in table.at(devices) for loop in loops]


def loop_batches(problem: Problem) -> list[int]:
    """Batch sizes of the retrievals that the decoder starts; only 0 if it starts none."""
    if not problem.schema.looping:
        return [0]
    table = problem.tables["retrieve"]
    return sorted({point.batch for point in table.points})


@dataclass(frozen=True, slots=True)
class Plan:
    schedule: Schedule
    outcome: Outcome


@dataclass(slots=True)
class _Some:
    """Ways to run some groups: the groups of each way, and the costs [n, 6]: seconds to the first token, the slowest
    group's seconds per request, seconds per token, accelerators, bytes, and servers' accelerators."""

    costs: Costs
    groups: list[tuple[Group, ...]]


def plans(problem: Problem) -> list[Plan]:
    """The schedules that no other dominates in TTFT, time per token, throughput per device and memory, by TTFT."""
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
        ttft, interval, tpot, chips, nbytes, servers, loops = costs[row].tolist()
        outcome = Outcome(ttft, tpot, interval, int(max(chips, servers)), nbytes)
        chosen.append(Plan(Schedule(groups[row], int(loops)), outcome))
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
    """Every way of `some` with every undominated way of `more`, after the `last` group in the objectives alone."""
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
    """Ways to run a group, without the dominated ones. Only beside other groups (`apart`) retrieval runs on servers."""
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
