"""The figures of one forward pass, which `--stats` prints, tests assert and benchmarks compare."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from edge.models.tokens import TokenBatch
from edge.streaming.memory_plan import MemoryPlan
from edge.streaming.window import SlidingWindow


@dataclass(frozen=True, slots=True)
class RunStats:
    """The work, time and memory of one forward pass; sizes in bytes, times in seconds.

    Attributes:
        prefix_tokens: tokens that precede every sequence, computed once (decoders).
        query_cut: the query was too long for the model and was truncated.
        layers_run: deepest layer that was reached.
        layers: number of layers in the model.
        evaluations: layer x sequence evaluations that were computed.
        evaluations_full: layer x sequence evaluations of a pass without pruning.
        buffers: number of layers that have a buffer.
        pinned: number of layers that stay in memory between passes.
        lane_bytes: bytes of weights and offloaded states that crossed the disk lane.
        stall_s: time that the computation waited for the disk.
        hidden_s: disk time that overlapped with the computation.
        requests: number of requests that shared the pass, this one included. The disk's bytes and times are for all.
        peak_resident: high-water mark of anonymous resident memory during the pass.
        limit: the budget's limit.
    """

    sequences: int
    tokens: int
    longest: int
    query_cut: bool
    prefix_tokens: int
    seconds: float
    layers_run: int
    layers: int
    evaluations: int
    evaluations_full: int
    chunk_tokens: int
    offloaded: bool
    buffers: int
    pinned: int
    lane_bytes: int
    stall_s: float
    hidden_s: float
    row_hits: int
    row_misses: int
    peak_resident: int
    limit: int
    requests: int = 1

    def plus(self, more: RunStats) -> RunStats:
        """The figures of this pass together with a second pass over some of its sequences."""
        added = ("seconds", "evaluations", "lane_bytes", "stall_s", "hidden_s", "row_hits", "row_misses")
        sums = {name: getattr(self, name) + getattr(more, name) for name in added}
        return replace(
            self,
            **sums,
            layers_run=max(self.layers_run, more.layers_run),
            peak_resident=max(self.peak_resident, more.peak_resident),
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(
        cls,
        batch: TokenBatch,
        memory_plan: MemoryPlan,
        window: SlidingWindow,
        *,
        seconds: float,
        layers_run: int,
        evaluations: int,
        requests: int,
        before: Mapping[str, float],
        after: Mapping[str, float],
        peak_resident: int,
        limit: int,
    ) -> RunStats:
        """The figures of a pass from the trace's counters before and after it."""

        def grown(name: str) -> float:
            return after.get(name, 0) - before.get(name, 0)

        sequences, layers = len(batch.lengths), len(window.order)
        return cls(
            sequences=sequences,
            tokens=int(batch.lengths.sum()),
            longest=int(batch.lengths.max()),
            query_cut=batch.query_cut,
            prefix_tokens=len(batch.prefix),
            seconds=seconds,
            layers_run=layers_run,
            layers=layers,
            evaluations=evaluations,
            evaluations_full=sequences * layers,
            chunk_tokens=memory_plan.chunk_tokens,
            offloaded=not memory_plan.resident,
            buffers=window.buffers,
            pinned=window.pinned,
            lane_bytes=int(grown("disk.bytes")),
            stall_s=grown("disk.stall_s"),
            hidden_s=grown("disk.hidden_s"),
            row_hits=int(grown("rows.hits")),
            row_misses=int(grown("rows.misses")),
            peak_resident=peak_resident,
            limit=limit,
            requests=requests,
        )
