"""`Embedder`: turns texts into vectors with a bi-encoder, on the same engine as `Reranker`, under a memory budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.budget import MemoryBudget
from edge.config import Config
from edge.errors import InputError
from edge.models.packed import PackedModel
from edge.models.registry import DEFAULT_EMBEDDER
from edge.models.spec import ModelSpec
from edge.public_calls import checked_arguments
from edge.resident import Closing
from edge.runtimes.engine import Tuning, open_engine, opened_model
from edge.runtimes.passes import Job, RunStats
from edge.runtimes.scoring import Head, embeddings, pool
from edge.streaming.hidden_states import TokenChunk
from edge.trace import Trace

_PASS_TEXTS = 256
"""Number of texts in a pass when all layers are in memory. A larger pass would be no faster and hold more states."""

_STREAMED_PASS_TEXTS = 1024
"""Number of texts in a pass when layers are read from disk. A long pass hides the time to read each layer."""


@checked_arguments
class Embedder(Closing):
    """A bi-encoder under a memory budget.

    Examples:
        >>> with Embedder(memory="300MB") as embedder:
        ...     vectors = embedder.embed(["a text", "another"])  # [2, dim] float32
    """

    def __init__(
        self,
        model: str | Path | PackedModel = "",
        *,
        memory: str | int | None = None,
        budget: MemoryBudget | None = None,
        max_tokens: int | None = None,
        config: Config | None = None,
        trace: Trace | None = None,
        tuning: Tuning | None = None,
    ) -> None:
        """Opens a model. The arguments are those of `Reranker`.

        Raises:
            ModelError: the model is missing, broken or no embedder.
            BudgetExceeded: the limit is too small; the error names the smallest that works.
        """
        config = config or Config.load()
        with opened_model(model or config.embedder or DEFAULT_EMBEDDER, "embedder", config) as self.model:
            self.engine = open_engine(
                self.model, config, memory=memory, budget=budget, max_tokens=max_tokens, trace=trace, tuning=tuning
            )
        self.budget = self.engine.budget

    @property
    def dim(self) -> int:
        """Width of a vector."""
        return self.model.spec.dim

    @property
    def stats(self) -> RunStats | None:
        """The figures of the last pass; None before the first."""
        return self.engine.stats

    def embed(
        self, texts: Sequence[str], *, query: bool = False, watch: Callable[[RunStats], object] | None = None
    ) -> npt.NDArray[np.float32]:
        """Vectors of texts.

        Args:
            texts: each text is truncated to the model's length.
            query: the texts are queries. Models that were trained with an instruction for queries get it.
            watch: called with the figures of each pass.

        Returns:
            [n, dim] float32, of unit length if the model normalizes. [0, dim] for no texts.

        Raises:
            InputError: a text is not valid Unicode.
            BudgetExceeded: a pass does not fit the limit.
        """
        if isinstance(texts, str):
            raise InputError("embed takes a list of texts, not a single string")
        with self.budget.reserve("embeddings", len(texts) * self.dim * 4):
            vectors = np.empty((len(texts), self.dim), np.float32)
            start = 0
            while start < len(texts):
                size = _PASS_TEXTS if self.engine.room.holds_all_layers else _STREAMED_PASS_TEXTS
                part = texts[start : start + size]
                job = Job(part, partial(PoolingObserver, self.model.spec, self.engine.head, len(part)), queries=query)
                stats = self.engine.run(job)
                if watch is not None:
                    watch(stats)
                assert isinstance(job.observer, PoolingObserver)
                end = start + len(part)
                vectors[start:end] = embeddings(self.model.spec, self.engine.head, job.observer.vectors)
                start = end
        return vectors

    def close(self) -> None:
        """Closes the model and frees all memory."""
        self.engine.close()


class PoolingObserver:
    """Pools every sequence after the last layer: `vectors` is [n, hidden] fp32."""

    def __init__(self, spec: ModelSpec, head: Head, sequences: int) -> None:
        self.vectors: npt.NDArray[np.float32] = np.empty((sequences, spec.layer.hidden), np.float32)
        self._spec = spec
        self._head = head
        self._arriving: list[tuple[npt.NDArray[np.int64], Any]] = []

    def wants(self, layer: int) -> bool:
        return layer == self._spec.layers

    def collect(self, chunk: TokenChunk, states: npt.NDArray[Any]) -> None:
        self._arriving.append((chunk.ids, pool(self._spec, self._head, states, chunk.lengths)))

    def decide(self, layer: int, active: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        for ids, vectors in self._arriving:  # vectors from a device may arrive only now
            self.vectors[ids] = vectors
        self._arriving.clear()
        return active if layer < self._spec.layers else active[:0]
