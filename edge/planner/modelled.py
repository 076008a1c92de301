"""Stage tables for devices that this machine does not have.

Accelerators are modelled by rooflines, and retrieval by the bytes scanned (Jiang's thesis, sections 3.3.3 and 3.4).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from edge.planner.schema import Model, RagSchema, Stage
from edge.planner.tables import Origin, Point, StageTable, unbeaten

EFFICIENCY = 0.9
"""Share of an accelerator's peak that models reach. Calibrated: of 1.0, 0.9 and 0.7, it fits figure 3.5c best."""


@dataclass(frozen=True, slots=True)
class Accelerator:
    """An accelerator: operations per second, bytes of memory, and bytes per second of its memory and its network.

    Models reach the share `efficiency` of the operations and of the memory bandwidth.
    """

    name: str
    flops: float
    memory: float
    bandwidth: float
    network: float
    efficiency: float = EFFICIENCY


@dataclass(frozen=True, slots=True)
class Host:
    """A retrieval server.

    Attributes:
        scan_rate: bytes of codes that one core scans per second. A query runs on one core.
        utilisation: share of the memory bandwidth that scanning reaches.
        accelerators: number of accelerators per server.
    """

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
    """Seconds of an operator that is divided over `chips`: the longest of computing, reading memory, and sending.

    Args:
        comm: bytes that each chip sends.
    """
    peak = device.efficiency * chips
    return max(flops / (device.flops * peak), nbytes / (device.bandwidth * peak), comm / device.network)


def _sent(model: Model, tokens: float, chips: int) -> float:
    """Bytes that a chip sends for `tokens` tokens if every matrix is divided over `chips`.

    Each layer has two all-reduces, and each sends twice the hidden states, in 16 bits.
    """
    return 8.0 * model.layers * model.hidden * tokens * (chips - 1) / chips


def forward_seconds(model: Model, tokens: float, chips: int, device: Accelerator) -> float:
    """Seconds to read `tokens` tokens of all requests together, with every matrix divided over `chips`.

    Attention is left out, because it is small up to about 1,000 tokens per request.
    """
    return roofline(2 * model.params * tokens, model.nbytes, _sent(model, tokens, chips), chips, device)


def step_seconds(model: Model, batch: int, context: float, chips: int, device: Accelerator) -> float:
    """Seconds to write one token for each of `batch` requests whose KV states hold `context` tokens."""
    nbytes = model.nbytes + batch * model.kv_nbytes * context
    return roofline(2 * model.params * batch, nbytes, _sent(model, batch, chips), chips, device)


def retrieval_seconds(queries: int, nbytes: float, servers: int, host: Host = HOST) -> float:
    """Seconds to search a batch of queries on `servers` servers that each hold an equal part of the index.

    A query runs on one core. So a batch runs in waves of as many queries as there are cores.

    Args:
        nbytes: bytes scanned for one query on all servers together.
    """
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
    """The table of a stage that runs a model. Points that do not fit the devices' memory are left out.

    Each chip holds a whole encoder or reranker, and the chips share the texts. A generator is divided over the chips by
    its matrices, by its layers, or by both.
    """
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
    """Tables for the stages of a pipeline, by stage name.

    Raises:
        InputError: a stage does not fit the largest number of devices.
    """
    tables = {}
    for stage in schema.stages():
        origin: Origin = "calibrated"  # because of the accelerators' efficiency
        if stage.kind == "retrieve":
            points, origin = retrieval_points(stage, servers, batches), "predicted"
        else:
            points = accelerator_points(stage, chips, batches, device)
        tables[stage.name] = StageTable(stage.name, tuple(points), origin)
    return tables
