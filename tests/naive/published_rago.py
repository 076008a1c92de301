"""Published figures of RAGO, computed again (Jiang's thesis, chapter 3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from edge.planner.schedule import Problem, cluster_placements, plans, stall_factor
from edge.planner.tables import (
    ACCELERATORS,
    BATCHES,
    HOST,
    MODELS,
    Point,
    RagSchema,
    StageTable,
    modelled_tables,
)


def _published() -> dict[str, RagSchema]:
    small, large = MODELS["llama-8b"], MODELS["llama-70b"]
    encoder = MODELS["encoder-120m"]
    rewriter = replace(small, name="rewriter-8b")
    return {
        "case-1": RagSchema("case-1", small),
        "case-1-70b": RagSchema("case-1-70b", large),
        "case-2": RagSchema(
            "case-2", large, vectors=1e4, vector_nbytes=768 * 2, scanned=1.0, encoder=encoder, encoder_tokens=10**6
        ),
        "case-3": RagSchema("case-3", large, retrieval_frequency=4),
        "case-4": RagSchema("case-4", large, rewriter=rewriter, reranker=encoder),
    }


PUBLISHED: Mapping[str, RagSchema] = _published()
"""The workloads of Jiang's thesis (table 3.3): hyperscale, long context, iterative, rewriting and reranking."""

PREFIXES = (128, 256, 512, 1024, 2048)
DECODES = (128, 256, 512)
RETRIEVAL_SHARES: Sequence[Sequence[float]] = (
    (86.3, 81.2, 72.5, 59.5, 43.2),
    (79.4, 74.3, 65.7, 53.2, 38.1),
    (68.4, 63.5, 55.3, 44.0, 30.9),
)
"""Percentage of the time spent on retrieval, by tokens read (columns) and written (rows): figure 3.5c."""

DECODE_BATCHES = (4, 8, 16, 64, 128, 256)
STALLS: dict[int, tuple[float | None, ...]] = {
    256: (None, None, None, None, None, 3.08),
    128: (None, None, None, None, 2.94, 1.38),
    64: (None, None, None, 2.77, 1.38, 1.15),
    16: (None, None, 2.34, 1.14, 1.06, 1.03),
    8: (None, 2.05, 1.32, 1.06, 1.03, 1.01),
    4: (1.71, 1.26, 1.11, 1.02, 1.01, 1.01),
    2: (1.16, 1.07, 1.03, 1.01, 1.00, 1.00),
    1: (1.00, 1.00, 1.00, 1.00, 1.00, 1.00),
}
"""Normalized decode latency by batch size of retrievals (rows) and of decoding (columns): figure 3.8b."""

ENCODE_SECONDS, PREFILL_SECONDS, DECODE_SECONDS = 0.615, 0.154, 0.12
"""Accelerator seconds of a request of the long-context workload. The first two solve two cells of table 3.4, so those
cells are circular. The third may be any value between 0.104 and 0.154, since the same schedule is best for all of
them."""


def device_seconds(schema: RagSchema, tables: Mapping[str, StageTable], per_server: int = 4) -> dict[str, float]:
    """The smallest number of accelerator seconds per request for each stage, which is run as cheaply as possible, if
    each retrieval server blocks `per_server` accelerators."""
    seconds = {}
    for stage in schema.stages():
        each = per_server if stage.kind == "retrieve" else 1
        points = tables[stage.name].points
        least = min(each * point.devices * point.interval / point.batch for point in points)
        seconds[stage.name] = (stage.calls + stage.looping) * least
    return seconds


def shares(seconds: Mapping[str, float]) -> dict[str, float]:
    total = sum(seconds.values())
    return {name: value / total for name, value in seconds.items()}


def retrieval_share(prefix: int, decode: int) -> float:
    """Share of the accelerator time that hyperscale retrieval takes, beside a model with 8 billion weights."""
    schema = replace(PUBLISHED["case-1"], prefix_tokens=prefix, decode_tokens=decode)
    chips = [2**i for i in range(5)]
    tables = modelled_tables(schema, ACCELERATORS["xpu-c"], chips=chips, servers=[16], batches=BATCHES)
    return shares(device_seconds(schema, tables, HOST.accelerators))["retrieve"]


def retrieval_share_errors() -> list[float]:
    """Differences from figure 3.5c in percentage points, row by row."""
    return [
        100 * retrieval_share(prefix, decode) - published
        for decode, row in zip(DECODES, RETRIEVAL_SHARES, strict=True)
        for prefix, published in zip(PREFIXES, row, strict=True)
    ]


def stall_errors() -> list[float]:
    """Relative differences from the printed cells of figure 3.8b."""
    return [
        stall_factor(batch, retrieval_batch) / published - 1
        for retrieval_batch, row in STALLS.items()
        for batch, published in zip(DECODE_BATCHES, row, strict=True)
        if published is not None
    ]


def long_context(*, encode: float = 1.0, baseline: bool = False, decode: float = DECODE_SECONDS) -> Problem:
    """The long-context workload, with fitted costs that divide evenly over devices and batches. Documents are `encode`
    times a million tokens long. In the `baseline`, a serving system for language models alone, the prefill devices also
    encode, and the decoder has as many devices."""
    schema = PUBLISHED["case-2"]
    costs = {"encode": encode * ENCODE_SECONDS, "prefill": PREFILL_SECONDS, "decode": decode}
    tables = {"retrieve": StageTable("retrieve", (Point(1, 1, 1e-4, 1e-4),))}
    for name, seconds in costs.items():
        chips = [64] if baseline else [2**i for i in range(8)]
        weights = 0.0 if name == "encode" else MODELS["llama-70b"].nbytes
        points = [Point(c, b, seconds * b / c, seconds * b / c, weights) for c in chips for b in (1, 16, 128)]
        tables[name] = StageTable(name, tuple(points))
    placements = cluster_placements(schema)
    if baseline:
        placements = [groups for groups in placements if len(groups) == 3]
    return Problem(schema, tables, placements, 128, ACCELERATORS["xpu-c"].memory)


def best_rate(problem: Problem) -> tuple[float, dict[str, int]]:
    """The highest throughput per device, and the number of devices of each stage."""
    best = max(plans(problem), key=lambda plan: plan.outcome.throughput_per_device)
    devices = {choice.stage: group.devices for group in best.schedule.groups for choice in group.choices}
    return best.outcome.throughput_per_device, devices
