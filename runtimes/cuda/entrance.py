"""Layer 0's input, computed on the device. The host sends each different token row of a chunk once."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from edge.ivf.device import Event
from edge.models.packed import PackedModel
from edge.runtimes.input import InputEmbedding, RawRows
from edge.streaming.hidden_states import TokenChunk

_ALIGNMENT = 16
_BUFFERS = 2
"""Number of chunks of token rows on the device: one is read while the next one arrives."""


class Entrance:
    """Turns stored token rows into layer 0's input."""

    def __init__(
        self, device: Any, staging: Any, model: PackedModel, embedding: InputEmbedding, chunk_tokens: int, longest: int
    ) -> None:
        """Makes the rows' way to a `CudaDevice`, through page-locked buffers, for chunks and sequences of at most so
        many tokens."""
        self._card = device.card
        self._staging = staging
        self._model = model
        tables = embedding.tables(longest)
        size = self._chunk_nbytes(model, chunk_tokens)
        self._buffers = [self._card.allocate(size) for _ in range(_BUFFERS)]
        self._used: list[Event | None] = [None] * _BUFFERS
        self._turn = 0
        self._tables: dict[str, Any] = {}
        for name, values in tables.items():
            into = self._card.allocate(*values.shape, dtype=self._card.torch.float32)
            if values.size:
                into_bytes = into.view(-1).view(self._card.torch.uint8)
                self._card.compute.wait(staging.upload(np.ascontiguousarray(values, np.float32), into_bytes))
            self._tables[name] = into

    @classmethod
    def memory_needed(cls, model: PackedModel, chunk_tokens: int, longest: int) -> int:
        """Bytes of device memory that this object holds."""
        tables = sum(tensor.nbytes for tensor in model.spec.embedding_tensors())
        tables += 4 * longest * model.spec.layer.hidden if model.positions is not None else 0
        return _BUFFERS * cls._chunk_nbytes(model, chunk_tokens) + tables

    @staticmethod
    def workspace(model: PackedModel, chunk_tokens: int) -> int:
        """Temporary bytes while a chunk's input is computed."""
        return 4 * chunk_tokens * model.spec.layer.hidden * 4

    @staticmethod
    def _chunk_nbytes(model: PackedModel, tokens: int) -> int:
        return tokens * (model.embedding.row_nbytes + 8 + 4 + 1) + 8 * _ALIGNMENT

    def enter(self, given: tuple[RawRows, npt.NDArray[np.uint8] | None], chunk: TokenChunk, into: Any) -> None:
        """Computes a chunk's input, [chunk.tokens, hidden], from the result of `Feed.raw`."""
        raw, types = given
        number = self._turn
        self._turn = (number + 1) % _BUFFERS
        parts: list[tuple[str, npt.NDArray[Any]]] = [("rows", raw.rows), ("places", raw.places)]
        parts += [("scales", raw.scales)] if raw.scales is not None else []
        parts += [("types", types)] if types is not None else []
        views: dict[str, Any] = {}
        at = 0
        for name, values in parts:
            end = at + values.nbytes
            views[name] = self._buffers[number][at:end]
            self._card.compute.wait(self._staging.upload(values, views[name], self._used[number]))
            at = -(-end // _ALIGNMENT) * _ALIGNMENT
        lengths = chunk.lengths.astype(np.int64)
        self._card.compute.run(lambda: into.copy_(self._compute(views, lengths)))
        self._used[number] = self._card.compute.record()

    def close(self) -> None:
        """Frees the memory. No transfer may be running."""
        self._buffers = []
        self._tables = {}

    def _compute(self, views: dict[str, Any], lengths: npt.NDArray[np.int64]) -> Any:
        torch, spec = self._card.torch, self._model.spec
        stored = getattr(torch, self._model.embedding_dtype.name)
        places = views["places"].view(torch.int64)
        x = views["rows"].view(stored).view(-1, spec.layer.hidden)[places].to(torch.float32)
        if "scales" in views:
            x *= views["scales"].view(torch.float32)[places][:, None]
        if "positions" in self._tables:
            starts = np.cumsum(lengths) - lengths
            own = np.arange(int(lengths.sum())) - np.repeat(starts, lengths)
            x += self._tables["positions"][torch.from_numpy(own).to(self._card.device, non_blocking=True)]
        if "types" in self._tables:
            table = self._tables["types"]
            x += table[views["types"].to(torch.int64)] if "types" in views else table[0]
        if "norm.weight" in self._tables:
            shape, weight, bias = (spec.layer.hidden,), self._tables["norm.weight"], self._tables["norm.bias"]
            x = torch.nn.functional.layer_norm(x, shape, weight, bias, spec.layer.norm_eps)
        return x
