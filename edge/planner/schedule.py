"""`Schedule`: the assignment of stages to devices, with batch sizes; and its cost.

Two simulations of batches that fill slowly belong to it. `stall_factor`: retrievals that the decoder starts are done in
batches, and a sequence writes nothing while it waits for its batch to fill (Jiang's thesis, section 3.5.3).
`burst_times`: several requests arrive at once and are served in micro-batches (section 3.7.2).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, pairwise, product

import numpy as np

from edge.errors import RangeError
from edge.planner.schema import RagSchema, Stage
from edge.planner.tables import ORIGINS, Origin, Point, StageTable

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


Placement = tuple[tuple[str, ...], ...]
"""Groups of stages by name. The stages of a group take turns on the same devices."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The way one stage runs.

    Attributes:
        point: its cost.
        loop: its cost when the decoder starts it while writing; None if the decoder never does.
    """

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
    """The devices of each stage, their number, and the batch sizes.

    Attributes:
        loop_batch: number of sequences that retrieve together while they are written; 0 if none retrieves.
    """

    groups: tuple[Group, ...]
    loop_batch: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """The cost of a schedule.

    Attributes:
        ttft: seconds to the first token of one batch.
        tpot: seconds per token of the answer, measured at its last token and including all waiting.
        interval: seconds between two requests at the highest rate, which the slowest group determines.
        devices: number of accelerators in use, including those that belong to the retrieval servers.
        nbytes: peak memory of all devices together.
    """

    ttft: float
    tpot: float
    interval: float
    devices: int
    nbytes: float

    @property
    def throughput(self) -> float:
        """Requests per second."""
        return 1 / self.interval

    @property
    def throughput_per_device(self) -> float:
        """Requests per second and accelerator."""
        return 1 / (self.interval * self.devices)

    @property
    def objectives(self) -> tuple[float, float, float, float]:
        """The values to minimize: TTFT, time per token, device seconds per request, and bytes.

        They are rounded to 12 digits, so that two schedules do not differ only by the order of adding equal times.
        """
        ttft, tpot, seconds, nbytes = (
            float(f"{value:.12g}") for value in (self.ttft, self.tpot, self.interval * self.devices, self.nbytes)
        )
        return ttft, tpot, seconds, nbytes


@dataclass(frozen=True, slots=True)
class Problem:
    """A pipeline and its available resources.

    Attributes:
        tables: the costs of each stage.
        placements: the placements to choose from.
        accelerators: largest number of accelerators that all groups together may use.
        device_memory: bytes of memory of one accelerator.
        memory: bytes that all devices together may hold; None if only each device's memory is limited.
        per_server: number of accelerators that belong to a server.
    """

    schema: RagSchema
    tables: Mapping[str, StageTable]
    placements: Sequence[Placement]
    accelerators: int
    device_memory: float
    memory: float | None = None
    per_server: int = 4
    stalls: Callable[..., float] = stall_factor

    @property
    def origins(self) -> list[Origin]:
        """The origins of the costs."""
        used = {table.origin for table in self.tables.values()}
        return [origin for origin in ORIGINS if origin in used]


def cluster_placements(schema: RagSchema) -> list[Placement]:
    """All ways to place the stages on a cluster (Jiang's thesis, section 3.6.1).

    Retrieval has its own servers, and each decoder of the answer's model has its own accelerators. The other stages are
    cut into groups in their order, in every possible way.
    """
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
    """All ways to cut a run of stages into groups."""
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
    """The cost that one stage adds.

    Returns:
        Seconds to the first token, device seconds per request, seconds per token, and bytes in addition to the weights.
    """
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


def evaluate(problem: Problem, schedule: Schedule) -> Outcome | None:
    """The cost of a schedule; None if it does not fit."""
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


def choices(problem: Problem, stage: Stage, devices: int, loop_batch: int) -> list[Choice]:
    """All ways to run a stage on `devices` devices."""
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
