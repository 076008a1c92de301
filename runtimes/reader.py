"""`SpanReader`: finds the answer in each passage with the reader of a reranker, in the engine's pass through the first
layers and then its own layers."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.budget import Lease
from edge.errors import CapabilityError, ModelError
from edge.models.evidence import Evidence, load
from edge.models.reader import EVIDENCE, OUT, SIGNALS, Reader, best_span
from edge.models.tokenizer import TokenBatch
from edge.resident import Closing
from edge.runtimes.engine import Engine
from edge.runtimes.passes import Job
from edge.streaming.hidden_states import TokenChunk

Units = Sequence[tuple[int, int]]
"""Start and end of some parts of a passage, in characters."""


@dataclass(frozen=True, slots=True)
class Span:
    """The most probable answer in a part of a passage: start and end in characters, and its probability."""

    start: int
    end: int
    probability: float


class SpanReader(Closing):
    """The reader of an open reranker. It takes memory during a call only."""

    def __init__(self, engine: Engine, reader: Reader, evidence: Evidence) -> None:
        """
        Args:
            evidence: turns the margin of a span over "no answer" into a probability.
        """
        self._engine, self._reader, self._evidence = engine, reader, evidence

    @classmethod
    def open(cls, engine: Engine) -> SpanReader | None:
        """The reader that is stored beside the engine's model; None if there is none. CorruptBlock if it is damaged."""
        evidence = load(engine.model, EVIDENCE, SIGNALS)
        reader = None if evidence is None else Reader.open(engine.model)
        return None if reader is None or evidence is None else cls(engine, reader, evidence)

    def close(self) -> None:
        self._reader.close()

    def read(self, query: str, passages: Sequence[str], units: Sequence[Units] | None = None) -> list[list[Span]]:
        """The best span of each unit (start and end of sentences, lines or blocks) of each passage. CapabilityError if
        the layers run on a device."""
        engine = self._engine
        if not engine.place.on_host:
            raise CapabilityError("answers are read on the processor; choose the runtime native or onnx")
        parts = units if units is not None else [[(0, len(passage))] for passage in passages]
        with closing(_SpanPass(engine, self._reader)) as run:
            job = Job(passages, lambda: run, query=query, undo=run.close)
            engine.run(job)
            assert job.batch is not None
            given = zip(passages, parts, run.scores(job.batch), strict=True)
            return [
                self._spans(scores, engine.vocabulary.places(text, len(scores) - 1), own) for text, own, scores in given
            ]

    def _spans(self, scores: npt.NDArray[np.float32], places: Sequence[tuple[int, int]], units: Units) -> list[Span]:
        begins = [start for start, _ in places]
        spans = []
        for low, high in units:
            first, end = bisect_left(begins, low), bisect_left(begins, high)
            if first == end:  # behind the words that the reader was given
                spans.append(Span(low, low, 0.0))
                continue
            start, last, margin = best_span(scores[0], scores[1 + first : 1 + end])
            odds = self._evidence.probability((margin,))
            spans.append(Span(places[first + start][0], places[first + last][1], odds))
        return spans


@dataclass(slots=True)
class _SpanPass:
    """Observes a pass: keeps the states after the shared layers, ends the pass there, and runs the reader's layers."""

    engine: Engine
    reader: Reader
    _parts: list[tuple[TokenChunk, npt.NDArray[Any]]] = field(default_factory=list)
    _scores: dict[int, npt.NDArray[np.float32]] = field(default_factory=dict)
    _lease: Lease | None = None

    def wants(self, layer: int) -> bool:
        return layer == self.reader.shared

    def collect(self, chunk: TokenChunk, states: Any) -> None:
        if self._lease is None:
            self._lease = self.engine.budget.reserve("reader", self._weights)
        self._lease.resize(self._lease.nbytes + states.nbytes)
        self._parts.append((chunk, states.copy()))

    def decide(self, layer: int, active: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        if layer < self.reader.shared:
            return active
        kernel = self.engine.kernel
        for block in self.reader.layers:
            weights = kernel.bind(self.reader.load(block))
            for chunk, states in self._parts:
                kernel.advance(states, chunk.lengths, weights)
            del weights
        out = self.reader.load(OUT)
        for chunk, states in self._parts:
            scores = states.astype(np.float32) @ out["weight"] + out["bias"]
            if not np.isfinite(scores).all():
                raise ModelError("the reader's scores are not finite: its weights hold NaN or infinite values")
            self._scores |= zip(chunk.ids.tolist(), np.split(scores, np.cumsum(chunk.lengths)[:-1]), strict=True)
        self._parts.clear()
        return active[:0]

    def scores(self, batch: TokenBatch) -> list[npt.NDArray[np.float32]]:
        """For each sequence the scores of its first token and of its passage's tokens [1 + tokens, 2]."""
        before, after = batch.around
        found = (self._scores[number] for number in range(len(batch)))
        return [np.concatenate((part[:1], part[before : len(part) - after])) for part in found]

    def close(self) -> None:
        self._parts.clear()
        self._scores.clear()
        if self._lease is not None:
            self._lease.release()
            self._lease = None

    @property
    def _weights(self) -> int:
        """Bytes of the largest block of weights, and of the scores, which are small beside it."""
        return max(map(self.reader.file.nbytes, self.reader.file.extents))
