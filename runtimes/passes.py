"""Requests that share a pass: their token batches are joined, and an observer gives each request its own part, scored
and pruned as if it were alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.blocks import stretches
from edge.errors import EdgeError
from edge.models.tokenizer import TokenBatch
from edge.scheduling.waiting_line import Urgency, current_urgency
from edge.streaming.forwarding import MemoryPlan, Observer
from edge.streaming.hidden_states import TokenChunk
from edge.streaming.window import SlidingWindow


@dataclass(frozen=True, slots=True)
class RunStats:
    """The work, time and memory of one forward pass; bytes and seconds.

    `layers_run` is the deepest layer reached; `evaluations` are layer x sequence. `buffers` layers have one, `pinned`
    ones stay between passes. `stall_s`: computation waited for the disk, `hidden_s`: it overlapped. `requests` shared
    the pass; the disk's figures are for all."""

    sequences: int = 0
    tokens: int = 0
    longest: int = 0
    query_cut: bool = False
    prefix_tokens: int = 0
    seconds: float = 0.0
    layers_run: int = 0
    layers: int = 0
    evaluations: int = 0
    evaluations_full: int = 0
    chunk_tokens: int = 0
    offloaded: bool = False
    buffers: int = 0
    pinned: int = 0
    lane_bytes: int = 0
    stall_s: float = 0.0
    hidden_s: float = 0.0
    row_hits: int = 0
    row_misses: int = 0
    peak_resident: int = 0
    limit: int = 0
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
        cls, batch: TokenBatch, memory_plan: MemoryPlan, window: SlidingWindow, grown: Mapping[str, float], **own: Any
    ) -> RunStats:
        """The figures of a pass: `grown` are the trace's counters, and `own` those that follow from no argument."""
        sequences, layers = len(batch.lengths), len(window.order)
        return cls(
            sequences=sequences,
            tokens=int(batch.lengths.sum()),
            longest=int(batch.lengths.max()),
            query_cut=batch.query_cut,
            prefix_tokens=len(batch.prefix),
            layers=layers,
            evaluations_full=sequences * layers,
            chunk_tokens=memory_plan.chunk_tokens,
            offloaded=not memory_plan.resident,
            buffers=window.buffers,
            pinned=window.pinned,
            lane_bytes=int(grown.get("disk.bytes", 0)),
            stall_s=grown.get("disk.stall_s", 0),
            hidden_s=grown.get("disk.hidden_s", 0),
            row_hits=int(grown.get("rows.hits", 0)),
            row_misses=int(grown.get("rows.misses", 0)),
            **own,
        )


def _nothing() -> None:
    """Does nothing. The default of `Job.undo`."""


@dataclass(eq=False, slots=True)
class Job:
    """One request: its texts (or their tokens), paired with `query` if given, and the observer of the pass.

    `observe` makes the observer, again if a shared pass did not fit; its `decide(0, ...)` chooses the texts that enter.
    `undo` frees its memory. `stats` are there on success, else the `error`."""

    texts: Sequence[str] | TokenBatch
    observe: Callable[[], Observer]
    query: str | None = None
    queries: bool = False
    undo: Callable[[], object] = _nothing
    urgency: Urgency = field(default_factory=current_urgency)
    batch: TokenBatch | None = None
    observer: Observer | None = None
    evaluations: int = 0
    layers: int = 0
    stats: RunStats | None = None
    error: Exception | None = None

    def begin(self) -> Sequence[str] | TokenBatch:
        """Makes the observer, and returns the texts that enter the pass. Raises `Withdrawn` or `DeadlinePassed`."""
        self.evaluations = self.layers = 0
        self.urgency.check()
        self.observer = self.observe()
        count = len(self.texts)
        entering = self.observer.decide(0, np.arange(count))
        if isinstance(self.texts, TokenBatch) or len(entering) == count:
            return self.texts
        return [self.texts[i] for i in entering]

    def is_wanted(self) -> bool:
        """Whether it goes on. The error of one that was withdrawn is kept."""
        try:
            self.urgency.check()
        except EdgeError as error:
            self.error = self.error or error
        return self.error is None

    @property
    def result(self) -> RunStats:
        """The figures of the pass. Raises the error that ended the job, if there was one, the first time."""
        error, self.error = self.error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # it would keep this frame, and the frame would keep it, with the callers' arrays
        assert self.stats is not None, "a job that was done has ended one way or the other"
        return self.stats


@dataclass(slots=True)
class JoinedJobs:
    """The jobs of one pass, as one batch and one observer. `groups` [n] has the job of each sequence; `ended` gets each
    job that is done or has failed."""

    jobs: Sequence[Job]
    ended: Callable[[Job], None]
    batch: TokenBatch = field(init=False)
    groups: npt.NDArray[np.int64] = field(init=False)
    _first: npt.NDArray[np.int64] = field(init=False)
    _watching: list[bool] = field(init=False)
    _gone: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        batches = self.batches
        sizes = [len(batch) for batch in batches]
        self._first = np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))
        self.groups = np.repeat(np.arange(len(batches), dtype=np.int64), sizes)
        self.batch = batches[0] if len(batches) == 1 else joined(batches)
        self._watching = [False] * len(batches)

    @property
    def batches(self) -> list[TokenBatch]:
        return [job.batch for job in self.jobs if job.batch is not None]

    @property
    def prefixes(self) -> list[npt.NDArray[np.int32]]:
        """The prefix of each job; an empty list if the model's sequences have no prefix."""
        return [batch.prefix for batch in self.batches if len(batch.prefix)]

    def wants(self, layer: int) -> bool:
        """Whether any job's observer needs the states after `layer` layers."""
        self._watching = [
            number not in self._gone and job.observer is not None and job.observer.wants(layer)
            for number, job in enumerate(self.jobs)
        ]
        return any(self._watching)

    def wanted(self) -> bool:
        """Whether anyone waits for this pass. A layer over many long texts takes many seconds."""
        return any(job.is_wanted() for number, job in enumerate(self.jobs) if number not in self._gone)

    def collect(self, chunk: TokenChunk, states: npt.NDArray[Any]) -> None:
        """Shows each job its part of a chunk."""
        for number, start, end in self._parts(chunk.ids):
            job = self.jobs[number]
            if not self._watching[number] or job.error is not None or job.observer is None:
                continue
            before, part = 0, chunk
            if len(self.jobs) > 1:
                before, own = int(chunk.lengths[:start].sum()), chunk.lengths[start:end]
                part = TokenChunk(chunk.ids[start:end] - self._first[number], own)
            try:
                job.observer.collect(part, states[before : before + part.tokens])
            except Exception as error:
                job.error = error

    def decide(self, layer: int, active: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The sequences that continue, as each job's observer decides. Withdrawn and failed jobs leave the pass."""
        kept = [active[:0]]
        for number, start, end in self._parts(active):
            job, first = self.jobs[number], self._first[number]
            assert job.observer is not None
            job.layers, job.evaluations = layer, job.evaluations + end - start
            going: npt.NDArray[np.int64] = active[:0]
            if job.error is None:
                try:
                    going = job.observer.decide(layer, active[start:end] - first)
                    if len(going):
                        job.urgency.check()
                except Exception as error:
                    job.error, going = error, active[:0]
            if len(going):
                kept.append(going + first)
            else:
                self._gone.add(number)
                self.ended(job)
        return np.concatenate(kept)

    def _parts(self, ids: npt.NDArray[np.int64]) -> list[tuple[int, int, int]]:
        if len(self.jobs) == 1:
            return [(0, 0, len(ids))] if len(ids) else []
        owners = self.groups[ids]
        return [(int(owners[start]), start, end) for start, end in stretches(owners)]


def joined(batches: Sequence[TokenBatch]) -> TokenBatch:
    """The sequences of several batches of one model, one after another, and their prefixes, one after another."""
    types = [batch.types for batch in batches if batch.types is not None]
    return TokenBatch(
        prefix=np.concatenate([batch.prefix for batch in batches]),
        tokens=np.concatenate([batch.tokens for batch in batches]),
        lengths=np.concatenate([batch.lengths for batch in batches]),
        types=np.concatenate(types) if types else None,
        query_cut=any(batch.query_cut for batch in batches),
    )
