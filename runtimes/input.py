"""Layer 0's input: token rows from the row cache, plus positions and token types, normalised where the model does."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from edge.budget import MemoryBudget
from edge.chunking import Chunk
from edge.lanes import Lane
from edge.models.layout import EMBED
from edge.models.packed import PackedModel
from edge.models.tokens import TokenBatch
from edge.rows import RowCache


class InputEmbedding:
    """Turns tokens into layer 0's input. The token table stays on disk behind a row cache."""

    def __init__(self, model: PackedModel, row_capacity: int, budget: MemoryBudget, lane: Lane) -> None:
        """Loads the small tensors and takes the cache.

        Raises:
            BudgetExceeded: the cache does not fit.
            CorruptBlock: a block does not match its checksum.
        """
        self._model = model
        self._rows = RowCache(
            model.file,
            model.embedding,
            row_capacity,
            budget,
            lane,
            checksums=model.embedding_checksums(),
            trace=lane.trace,
            remedy=model.file.remedy,
        )
        try:
            self._scales = model.embedding_scales()
            self._small = model.load(EMBED) if model.spec.embedding_tensors() else {}
            self._positions = np.empty((0, model.spec.layer.hidden), np.float32)
            self._lease = budget.reserve("embedding tables", self._tables_nbytes())
        except BaseException:
            self._rows.close()
            raise
        self.row_capacity = self._rows.capacity

    @staticmethod
    def memory_needed(model: PackedModel, row_capacity: int, longest: int) -> int:
        """Bytes this object holds with so many cached rows, for sequences of up to `longest` tokens."""
        table = model.embedding
        per_row = 4 + (4 if model.embedding_dtype == np.int8 else 0)  # checksum and scale
        small = sum(tensor.nbytes for tensor in model.spec.embedding_tensors())
        positions = longest * model.spec.layer.hidden * 4 if model.positions is not None else 0
        return RowCache.memory_needed(table, min(row_capacity, table.rows)) + table.rows * per_row + small + positions

    def prepare(self, batch: TokenBatch) -> None:
        """Reads the rows that a request will need in one sorted pass, and as many positions as it is long.

        Raises:
            CorruptBlock: a row does not match its checksum.
            BudgetExceeded: the position rows do not fit.
        """
        self._rows.prefetch(np.unique(np.concatenate((batch.tokens, batch.prefix))).astype(np.int64))
        longest = int(batch.lengths.max())
        if self._model.positions is not None and longest > len(self._positions):
            self._lease.resize(self._tables_nbytes(longest))
            self._positions = self._model.position_rows(longest)

    def embed(
        self,
        ids: npt.NDArray[np.int32],
        lengths: npt.NDArray[np.int32],
        types: npt.NDArray[np.uint8] | None,
        dtype: str,
    ) -> npt.NDArray[Any]:
        """Layer 0's input, [tokens, hidden], of packed sequences."""
        rows = self._rows.gather(ids.astype(np.int64)).view(self._model.embedding_dtype)
        x = rows.astype(np.float32)
        if self._scales is not None:
            x *= self._scales[ids, None]
        if self._model.positions is not None:
            x += self._positions[np.concatenate([np.arange(length) for length in lengths.tolist()])]
        if types is not None and "types" in self._small:
            x += self._small["types"][types]
        elif "types" in self._small:
            x += self._small["types"][0]
        if "norm.weight" in self._small:
            x -= x.mean(axis=1, keepdims=True)
            variance = np.mean(np.square(x), axis=1, keepdims=True)
            x *= 1 / np.sqrt(variance + np.float32(self._model.spec.layer.norm_eps))
            x *= self._small["norm.weight"]
            x += self._small["norm.bias"]
        return x.astype(dtype, copy=False)

    def close(self) -> None:
        """Gives the memory back."""
        self._rows.close()
        self._lease.release()

    def _tables_nbytes(self, positions: int = 0) -> int:
        small = sum(tensor.nbytes for tensor in self._small.values())
        per_row = 4 + (0 if self._scales is None else 4)
        table = positions * self._model.spec.layer.hidden * 4
        return small + self._model.embedding.rows * per_row + table


class Feed:
    """Serves the chunks of one request, whichever order they are run in."""

    def __init__(self, embedding: InputEmbedding, batch: TokenBatch, dtype: str) -> None:
        self._embedding = embedding
        self._batch = batch
        self._dtype = dtype
        self._starts = batch.starts

    def chunk(self, chunk: Chunk) -> npt.NDArray[Any]:
        """Layer 0's input of a chunk, [chunk.tokens, hidden]."""
        starts = self._starts[chunk.ids].tolist()
        at = np.concatenate(
            [np.arange(start, start + n) for start, n in zip(starts, chunk.lengths.tolist(), strict=True)]
        )
        types = None if self._batch.types is None else self._batch.types[at]
        return self._embedding.embed(self._batch.tokens[at], chunk.lengths, types, self._dtype)

    def prefix(self) -> npt.NDArray[Any] | None:
        """Layer 0's input of the shared prefix, [tokens, hidden], or None."""
        ids = self._batch.prefix
        if len(ids) == 0:
            return None
        return self._embedding.embed(ids, np.array([len(ids)], np.int32), None, self._dtype)
