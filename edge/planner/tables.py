"""The cost of a stage: a table of points, each for a number of devices and a batch, with the origin of its numbers.

Accelerators, which this machine does not have, are modelled by rooflines, and retrieval by the bytes scanned (Jiang's
thesis, sections 3.3.3 and 3.4).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from edge.errors import InputError
from edge.planner.schema import Model, RagSchema, Stage

Origin = Literal["measured", "predicted", "calibrated", "circular"]
"""The origin of a number: measured on this machine; computed from published constants alone; computed with a constant
that was chosen to fit published results; or fitted to the very result with which it is compared."""

ORIGINS: Sequence[Origin] = ("measured", "predicted", "calibrated", "circular")


@dataclass(frozen=True, slots=True)
class Point:
    """A stage on some devices (accelerators, or servers for retrieval) with some calls done together.

    Attributes:
        latency: seconds until the batch is done.
        interval: seconds until the next batch can begin. It is less than `latency` if parts of the model follow one
            another on several devices.
        weights: bytes of the stage's model on all its devices together.
        working: additional bytes while a batch runs, on all devices together.
        how: description of the division of the work, for people.
    """

    devices: int
    batch: int
    latency: float
    interval: float
    weights: float = 0.0
    working: float = 0.0
    how: str = ""


@dataclass(frozen=True, slots=True)
class StageTable:
    """The points of one stage."""

    stage: str
    points: tuple[Point, ...]
    origin: Origin

    def __post_init__(self) -> None:
        if not self.points:
            raise InputError(f"nothing is known about the stage {self.stage}: it fits no number of devices")

    def devices(self) -> list[int]:
        """The numbers of devices for which there are points, ascending."""
        return sorted({point.devices for point in self.points})

    def at(self, devices: int) -> list[Point]:
        """The points for this number of devices."""
        return [point for point in self.points if point.devices == devices]

    def batched(self, devices: int, batch: int) -> list[Point]:
        """The points for this number of devices and this batch."""
        return [point for point in self.points if point.devices == devices and point.batch == batch]


def unbeaten(points: Iterable[Point]) -> list[Point]:
    """The points that no other one with the same devices and batch dominates in latency, interval and bytes."""
    kept: list[Point] = []
    for point in sorted(points, key=lambda p: (p.devices, p.batch, p.latency, p.interval, p.weights + p.working)):
        rivals = (p for p in kept if (p.devices, p.batch) == (point.devices, point.batch))
        if not any(
            p.latency <= point.latency
            and p.interval <= point.interval
            and p.weights + p.working <= point.weights + point.working
            for p in rivals
        ):
            kept.append(point)
    return kept


Costs = npt.NDArray[np.float64]
"""One row for each choice, one column for each cost; lower is better."""

_BLOCK = 256

_STRONGEST = 64
"""Rows that all others are compared with first."""


def frontier(costs: Costs) -> npt.NDArray[np.intp]:
    """The rows of `costs` [n, d] that no other row dominates, ascending by the first column; of equal rows one is kept.

    A row dominates another if it is larger in no column and smaller in at least one.
    """
    hopeful = _hopeful(costs)
    order = hopeful[np.lexsort(costs[hopeful].T[::-1])]
    # In this order no row is dominated by a later one.
    kept_rows = np.empty((0, costs.shape[1]))
    kept: list[npt.NDArray[np.intp]] = []
    for start in range(0, len(order), _BLOCK):
        block = order[start : start + _BLOCK]
        rows = costs[block]
        left = ~_beaten(rows, kept_rows)
        block, rows = block[left], rows[left]
        within = (rows[None, :, :] <= rows[:, None, :]).all(axis=2)  # within[i, j]: row j is nowhere larger than row i
        earlier = np.tril(np.ones((len(block), len(block)), bool), -1)
        stays = ~(within & earlier).any(axis=1)
        kept.append(block[stays])
        kept_rows = np.concatenate((kept_rows, rows[stays]))
    return np.concatenate(kept) if kept else np.empty(0, np.intp)


def _hopeful(costs: Costs) -> npt.NDArray[np.intp]:
    """The rows that are left after a comparison with the few whose ranks in all columns have the smallest sum. Of many
    rows these dominate most."""
    if len(costs) <= 2 * _STRONGEST:
        return np.arange(len(costs))
    ranks = costs.argsort(axis=0).argsort(axis=0).sum(axis=1)
    strongest = ranks.argpartition(_STRONGEST)[:_STRONGEST]
    left = ~_beaten(costs, costs[strongest])
    left[strongest] = True
    return np.flatnonzero(left)


def _beaten(rows: Costs, by: Costs) -> npt.NDArray[np.bool_]:
    """Whether each row is dominated by, or equal to, a row of `by`: [n]."""
    beaten = np.zeros(len(rows), bool)
    for start in range(0, len(by), 2048):
        part = by[start : start + 2048]
        left = np.flatnonzero(~beaten)
        smaller = np.ones((len(left), len(part)), bool)
        for column in range(rows.shape[1]):
            smaller &= part[None, :, column] <= rows[left, None, column]
        beaten[left] = smaller.any(axis=1)
    return beaten


EFFICIENCY = 0.9
"""Share of an accelerator's peak that models reach. Calibrated: of 1.0, 0.9 and 0.7, it fits figure 3.5c best."""


@dataclass(frozen=True, slots=True)
class Accelerator:
    """An accelerator: operations per second, bytes of memory, and bytes per second of its memory and its network.
    Models reach the share `efficiency` of the operations and of the memory bandwidth."""

    name: str
    flops: float
    memory: float
    bandwidth: float
    network: float
    efficiency: float = EFFICIENCY


@dataclass(frozen=True, slots=True)
class Host:
    """A retrieval server, with so many accelerators. One core scans `scan_rate` bytes of codes per second, and a query
    runs on one core. Scanning reaches the share `utilisation` of the memory bandwidth."""

    name: str = "EPYC Milan"
    cores: int = 96
    memory: float = 384e9
    bandwidth: float = 460e9
    scan_rate: float = 18e9
    utilisation: float = 0.8
    accelerators: int = 4


ACCELERATORS: Mapping[str, Accelerator] = {
    "xpu-a": Accelerator("xpu-a", 197e12, 16e9, 819e9, 200e9),
    "xpu-b": Accelerator("xpu-b", 275e12, 32e9, 1200e9, 300e9),
    "xpu-c": Accelerator("xpu-c", 459e12, 96e9, 2765e9, 600e9),
}
"""Published constants (Jiang's thesis, table 3.2). They resemble TPU v5e, v4 and v5p."""

HOST = Host()
"""Published constants (Jiang's thesis, section 3.4). The scan rate was measured there for ScaNN on an EPYC 7R13."""

BATCHES: Sequence[int] = tuple(2**i for i in range(11))
"""Batch sizes from 1 to 1,024, in powers of two as in the source."""


def roofline(flops: float, nbytes: float, comm: float, chips: int, device: Accelerator) -> float:
    """Seconds of an operator that is divided over `chips`: the longest of computing, reading memory, and sending `comm`
    bytes from each chip."""
    peak = device.efficiency * chips
    return max(flops / (device.flops * peak), nbytes / (device.bandwidth * peak), comm / device.network)


def _sent(model: Model, tokens: float, chips: int) -> float:
    """Bytes that a chip sends for `tokens` tokens if every matrix is divided over `chips`: each layer has two
    all-reduces, and each sends twice the hidden states, in 16 bits."""
    return 8.0 * model.layers * model.hidden * tokens * (chips - 1) / chips


def forward_seconds(model: Model, tokens: float, chips: int, device: Accelerator) -> float:
    """Seconds to read `tokens` tokens of all requests together, with every matrix divided over `chips`. Attention is
    left out, because it is small up to about 1,000 tokens per request."""
    return roofline(2 * model.params * tokens, model.nbytes, _sent(model, tokens, chips), chips, device)


def step_seconds(model: Model, batch: int, context: float, chips: int, device: Accelerator) -> float:
    """Seconds to write one token for each of `batch` requests whose KV states hold `context` tokens."""
    nbytes = model.nbytes + batch * model.kv_nbytes * context
    return roofline(2 * model.params * batch, nbytes, _sent(model, batch, chips), chips, device)


def retrieval_seconds(queries: int, nbytes: float, servers: int, host: Host = HOST) -> float:
    """Seconds to search a batch of queries on `servers` servers that each hold an equal part of the index. A query
    scans `nbytes` on all of them together. It runs on one core, so a batch runs in waves of as many queries as there
    are cores."""
    active = min(queries, host.cores)
    rate = min(active * host.scan_rate, host.utilisation * host.bandwidth)
    return math.ceil(queries / host.cores) * active * nbytes / servers / rate


def retrieval_points(stage: Stage, servers: Iterable[int], batches: Iterable[int], host: Host = HOST) -> list[Point]:
    """The table of a retrieval stage. Numbers of servers that cannot hold the database are left out."""
    batches = tuple(batches)
    points = []
    for count in servers:
        if stage.database <= count * host.memory:
            for batch in batches:
                seconds = retrieval_seconds(batch * stage.queries, stage.nbytes, count, host)
                points.append(Point(count, batch, seconds, seconds, weights=stage.database))
    return points


def accelerator_points(stage: Stage, chips: Iterable[int], batches: Iterable[int], device: Accelerator) -> list[Point]:
    """The table of a stage that runs a model. Points that do not fit the devices' memory are left out. Each chip holds
    a whole encoder or reranker, and the chips share the texts. A generator is divided over the chips by its matrices,
    by its layers, or by both."""
    assert stage.model is not None
    batches = tuple(batches)
    alone = stage.kind in ("encode", "rerank")
    points = [
        point
        for count in chips
        for batch in batches
        for point in (_replicated(stage, count, batch, device) if alone else _divided(stage, count, batch, device))
        if point.weights + point.working <= count * device.memory
    ]
    return unbeaten(points)


def _replicated(stage: Stage, chips: int, batch: int, device: Accelerator) -> Iterator[Point]:
    assert stage.model is not None
    share = batch * stage.tokens / chips
    seconds = roofline(2 * stage.model.params * share, stage.model.nbytes, 0.0, 1, device)
    yield Point(chips, batch, seconds, seconds, weights=chips * stage.model.nbytes, how=f"{chips} copies")


def _divided(stage: Stage, chips: int, batch: int, device: Accelerator) -> Iterator[Point]:
    model = stage.model
    assert model is not None
    wide = chips
    while wide >= 1:
        deep = chips // wide
        if deep <= model.layers:
            if stage.kind == "decode":
                token = step_seconds(model, batch, stage.context, wide, device)
                latency, kept = stage.tokens * token, stage.context
            else:
                latency, kept = forward_seconds(model, batch * stage.tokens, wide, device), stage.tokens
            states = deep * batch * kept * model.kv_nbytes
            yield Point(chips, batch, latency, latency / deep, model.nbytes, states, f"{wide} wide, {deep} deep")
        wide //= 2


def modelled_tables(
    schema: RagSchema,
    device: Accelerator,
    *,
    chips: Sequence[int],
    servers: Sequence[int],
    batches: Sequence[int] = BATCHES,
) -> dict[str, StageTable]:
    """Tables for the stages of a pipeline, by stage name."""
    tables = {}
    for stage in schema.stages():
        origin: Origin = "calibrated"  # because of the accelerators' efficiency
        if stage.kind == "retrieve":
            points, origin = retrieval_points(stage, servers, batches), "predicted"
        else:
            points = accelerator_points(stage, chips, batches, device)
        tables[stage.name] = StageTable(stage.name, tuple(points), origin)
    return tables
