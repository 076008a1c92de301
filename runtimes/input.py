"""Layer 0's input: token rows from the row cache, plus positions and token types, normalized if the model does so."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from edge.blocks import distinct
from edge.budget import MemoryBudget
from edge.link import Lane
from edge.models.packed import EMBED, PackedModel
from edge.models.tokenizer import TokenBatch
from edge.runtimes.native.library import EmbeddingTables, embedding_tables
from edge.streaming.embedding_rows import RowCache
from edge.streaming.hidden_states import TokenChunk

Tokens = tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8] | None]
"""Token numbers of a chunk, and their types if there are several."""


class InputEmbedding:
    """Turns tokens into layer 0's input. The token table stays on disk behind a row cache."""

    def __init__(self, model: PackedModel, row_capacity: int, budget: MemoryBudget, lane: Lane) -> None:
        """Loads the small tensors and allocates the row cache."""
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
            self.scales = model.embedding_scales()
            self._small = model.load(EMBED) if model.spec.embedding_tensors() else {}
            self._positions = np.empty((0, model.spec.layer.hidden), np.float32)
            self._compiled: EmbeddingTables | None = None
            self._lease = budget.reserve("embedding tables", self._tables_nbytes())
        except BaseException:
            self._rows.close()
            raise
        self.row_capacity = self._rows.capacity

    @property
    def width(self) -> int:
        return self._model.spec.layer.hidden

    @staticmethod
    def memory_needed(model: PackedModel, row_capacity: int, longest: int) -> int:
        """Bytes that this object holds with `row_capacity` cached rows, for sequences of up to `longest` tokens."""
        table = model.embedding
        per_row = 4 + (4 if model.embedding_dtype == np.int8 else 0)  # checksum and scale
        small = sum(tensor.nbytes for tensor in model.spec.embedding_tensors())
        positions = longest * model.spec.layer.hidden * 4 if model.positions is not None else 0
        return RowCache.memory_needed(table, min(row_capacity, table.rows)) + table.rows * per_row + small + positions

    def prepare(self, batch: TokenBatch, *, rows: bool) -> None:
        """Reads a request's token rows in one sorted pass, unless another place holds them (`rows` is False), and the
        position rows up to its longest sequence."""
        if rows:
            self._rows.prefetch(distinct(np.concatenate((batch.tokens, batch.prefix))).astype(np.int64))
        longest = int(batch.lengths.max())
        if self._model.positions is not None and longest > len(self._positions):
            self._lease.resize(self._tables_nbytes(longest))
            self._positions = self._model.position_rows(longest)
            eps = self._model.spec.layer.norm_eps
            self._compiled = embedding_tables(self.scales, self._positions, self._small, eps)

    def embed(
        self,
        ids: npt.NDArray[np.int32],
        lengths: npt.NDArray[np.int32],
        types: npt.NDArray[np.uint8] | None,
        into: npt.NDArray[Any],
    ) -> None:
        """Writes layer 0's input of packed sequences to `into` [tokens, hidden]."""
        rows = self._rows.gather(ids.astype(np.int64)).view(self._model.embedding_dtype)
        if self._compiled is not None:
            return self._compiled.embed(rows, ids, lengths, types, into)
        x = rows.astype(np.float32)
        if self.scales is not None:
            x *= self.scales[ids, None]
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
        into[...] = x

    def stored(
        self, unique: npt.NDArray[np.integer[Any]]
    ) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32] | None]:
        """The rows of some tokens [n], ascending, as stored: bytes [n, row_nbytes], and the factors of int8 rows."""
        return self._rows.read(unique.astype(np.int64)), None if self.scales is None else self.scales[unique]

    def tables(self, longest: int) -> dict[str, npt.NDArray[Any]]:
        """The small tensors that are added to token rows, and `positions` [longest, hidden] if they are learned."""
        if self._model.positions is None:
            return dict(self._small)
        return {**self._small, "positions": self._positions[:longest]}

    def close(self) -> None:
        self._rows.close()
        self._lease.release()

    def _tables_nbytes(self, positions: int = 0) -> int:
        small = sum(tensor.nbytes for tensor in self._small.values())
        per_row = 4 + (0 if self.scales is None else 4)
        table = positions * self._model.spec.layer.hidden * 4
        return small + self._model.embedding.rows * per_row + table


class Feed:
    """Gives layer 0's input for the chunks of one pass, in any order."""

    def __init__(self, embedding: InputEmbedding, batch: TokenBatch, dtype: str) -> None:
        self._embedding = embedding
        self._batch = batch
        self._dtype = dtype
        self._starts = batch.starts

    def chunk(self, chunk: TokenChunk, into: npt.NDArray[Any]) -> None:
        ids, types = self.tokens(chunk)
        self._embedding.embed(ids, chunk.lengths, types, into)

    def prefix(self, ids: npt.NDArray[np.int32]) -> npt.NDArray[Any]:
        """Layer 0's input of a shared prefix, [tokens, hidden]."""
        states = np.empty((len(ids), self._embedding.width), self._dtype)
        self._embedding.embed(ids, np.array([len(ids)], np.int32), None, states)
        return states

    def tokens(self, chunk: TokenChunk) -> Tokens:
        """A chunk's tokens, and their types [tokens] if there are several."""
        ends = np.cumsum(chunk.lengths)
        at = np.arange(chunk.tokens) + np.repeat(self._starts[chunk.ids] - ends + chunk.lengths, chunk.lengths)
        return self._batch.tokens[at], None if self._batch.types is None else self._batch.types[at]
