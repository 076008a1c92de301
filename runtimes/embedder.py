"""`Embedder`: turns texts into vectors with a bi-encoder, on the same engine and under the same budget."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.budget import MemoryBudget
from edge.chunking import Chunk
from edge.config import Config
from edge.errors import InputError
from edge.models.packed import PackedModel
from edge.models.registry import DEFAULT_EMBEDDER
from edge.models.spec import ModelSpec
from edge.public_calls import checked_arguments
from edge.runtimes.engine import Tuning
from edge.runtimes.heads import embeddings, pool
from edge.runtimes.opening import open_engine, opened_model
from edge.runtimes.stats import RunStats
from edge.trace import Trace

_PASS_TEXTS = 256
"""Texts that go through the layers together when all layers are in memory: more would only hold more states."""

_STREAMED_PASS_TEXTS = 1024
"""Texts of a pass when layers are read from disk: a long pass hides each layer's reading."""


@checked_arguments
class Embedder:
    """A bi-encoder under a memory budget.

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
        """Opens a model; arguments as for `Reranker`.

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
        return self.model.spec.layer.hidden

    @property
    def stats(self) -> RunStats | None:
        """What the last pass needed."""
        return self.engine.stats

    def embed(self, texts: Sequence[str], *, query: bool = False) -> npt.NDArray[np.float32]:
        """Vectors of texts.

        Args:
            texts: cut to the model's length.
            query: the texts are questions; models that were trained with an instruction for those get it.

        Returns:
            [n, dim] float32; unit length where the model says so. [0, dim] for no texts.

        Raises:
            InputError: a text is not valid Unicode.
            BudgetExceeded: a pass does not fit the limit.
        """
        with self.budget.reserve("embeddings", len(texts) * self.dim * 4):
            vectors = np.empty((len(texts), self.dim), np.float32)
            start = 0
            for part in self.embed_iter(texts, query=query):
                vectors[start : start + len(part)] = part
                start += len(part)
        return vectors

    def embed_iter(self, texts: Sequence[str], *, query: bool = False) -> Iterator[npt.NDArray[np.float32]]:
        """Like `embed`, pass by pass, so that only one pass's vectors are in memory."""
        if isinstance(texts, str):
            raise InputError("embed takes a list of texts, not a single string")
        start = 0
        while start < len(texts):
            self.engine.begin()
            size = _PASS_TEXTS if self.engine.holds_all_layers() else _STREAMED_PASS_TEXTS
            part = texts[start : start + size]
            batch = self.engine.tokenize_texts(part, query=query)
            observer = PoolingObserver(self.model.spec, len(part))
            self.engine.run(batch, observer)
            yield embeddings(self.model.spec, self.engine.head, observer.vectors)
            start += len(part)

    def close(self) -> None:
        """Gives all memory back."""
        self.engine.close()

    def __enter__(self) -> Embedder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class PoolingObserver:
    """Pools every sequence after the last layer: `vectors` is [n, hidden] fp32."""

    def __init__(self, spec: ModelSpec, sequences: int) -> None:
        self.vectors: npt.NDArray[np.float32] = np.empty((sequences, spec.layer.hidden), np.float32)
        self._spec = spec

    def wants(self, layer: int) -> bool:
        return layer == self._spec.layers

    def collect(self, chunk: Chunk, states: npt.NDArray[Any]) -> None:
        self.vectors[chunk.ids] = pool(self._spec, states, chunk.lengths)

    def decide(self, layer: int, active: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return active if layer < self._spec.layers else active[:0]
