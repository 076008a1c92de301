"""`TokenTable`: the rows of a model's tokens on a GPU, which makes layer 0's input of them."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.blocks import distinct
from edge.budget import Lease
from edge.errors import BudgetExceeded
from edge.ivf.device import Event
from edge.models.packed import PackedModel
from edge.runtimes.base import Pass
from edge.runtimes.input import InputEmbedding, Tokens
from edge.streaming.hidden_states import TokenChunk

_SHARE = 2
"""The whole table lies on the GPU if it takes at most such a part of the memory that a pass leaves free."""

_CHUNKS = 2
"""Number of chunks of token numbers on the device: one is read while the next one arrives. Without the whole table
there is also room for the rows of so many."""

_WORDS = 3
"""Numbers of a token, int32 each: its row, its position in the sequence, and its type."""


_LITTLE = 64 << 20
"""A table of so many bytes is sent at once, because that takes less processor time than a few thousand rows of it."""

_LOSS = 9e-9
"""Seconds per byte to send rows again, which are read and checked one by one."""


class TokenTable:
    """A row is sent when a token needs it first, or with all rows of a small table. It stays for good if the whole
    table has room. Otherwise those that most chunks read are sent first (MicroRec's placement) and stay for the pass,
    and others until there is no room. Between passes the ledger may take all."""

    _rows: Any
    _scales: Any
    _place_of: npt.NDArray[np.int32]
    _reads: npt.NDArray[np.int32]
    _held: int
    _hot: int
    _kept: bool
    _staging: Any
    _embedding: InputEmbedding
    _model: PackedModel

    def __init__(self, device: Any) -> None:
        self._device = device
        self._card = device.card
        self._lease = device.memory.reserve("token rows", 0)
        self._places: Lease = device.host.reserve("token rows", 0)
        self._unregister = device.memory.add_shrinker("token rows", self._shrink, loss=_LOSS)
        self._in_use = False
        self._turn = 0
        self._small: dict[str, Any] = {}
        self._numbers: list[Any] = []
        self._used: list[Event | None] = [None] * _CHUNKS
        self._forget()

    @staticmethod
    def working_nbytes(model: PackedModel, chunk_tokens: int, longest: int) -> int:
        """Bytes of device memory that a pass takes without the whole table, and while it computes a chunk's input."""
        width, row = model.spec.layer.hidden, _row_nbytes(model)
        small = sum(tensor.nbytes for tensor in model.spec.embedding_tensors())
        small += 4 * longest * width if model.positions is not None else 0
        rows = min(model.embedding.rows, _CHUNKS * chunk_tokens)
        return rows * row + small + chunk_tokens * (_CHUNKS * 4 * _WORDS + 4 * width * 4)

    def begin(self, run: Pass, staging: Any, chunk_tokens: int) -> None:
        """Prepares a pass with chunks of at most `chunk_tokens`, which holds the lease of `working_nbytes`."""
        self._in_use = True
        self._staging, self._embedding, self._model = staging, run.embedding, run.model
        table, row = run.model.embedding, _row_nbytes(run.model)
        if self._rows is None and _SHARE * table.rows * row <= self._device.memory.free:
            with suppress(BudgetExceeded):  # another thread was quicker
                self._lease.resize(table.rows * row)
                self._kept = True
        if self._rows is None:
            rows = table.rows if self._kept else min(table.rows, _CHUNKS * chunk_tokens)
            self._places.resize(8 * table.rows)
            self._place_of = np.full(table.rows, -1, np.int32)
            if len(self._reads) != table.rows:
                self._reads = np.zeros(table.rows, np.int32)
            self._rows = self._card.allocate(rows, table.row_nbytes)
            if run.embedding.scales is not None:
                self._scales = self._card.allocate(rows, 4)
            step = staging.nbytes // table.row_nbytes
            if self._kept:
                early = np.arange(table.rows if table.rows * row <= _LITTLE else 0)
            else:
                hottest = np.argsort(-self._reads, kind="stable")[: rows // _CHUNKS]
                early = np.sort(hottest[self._reads[hottest] > 1])
            for first in range(0, len(early), step):
                self._add(early[first : first + step])
            self._hot = self._held
        self._numbers = [self._card.allocate(4 * _WORDS * chunk_tokens) for _ in range(_CHUNKS)]
        self._small = {name: self._sent(values) for name, values in run.embedding.tables(run.longest).items()}

    def enter(self, given: Tokens, chunk: TokenChunk, into: Any) -> None:
        """Computes a chunk's input, [chunk.tokens, hidden], of the result of `Feed.tokens`."""
        ids, types = given
        turn = self._turn
        self._turn = (turn + 1) % _CHUNKS
        numbers = np.zeros((_WORDS, len(ids)), np.int32)
        numbers[0] = self._present(ids)
        ends = np.cumsum(chunk.lengths)
        numbers[1] = np.arange(len(ids)) - np.repeat(ends - chunk.lengths, chunk.lengths)
        if types is not None:
            numbers[2] = types
        view = self._numbers[turn][: numbers.nbytes]
        self._card.compute.wait(self._staging.upload(numbers, view, self._used[turn]))
        compute, torch = self._compute, self._card.torch
        self._card.compute.run(lambda: into.copy_(compute(view.view(torch.int32).view(_WORDS, -1))))
        self._used[turn] = self._card.compute.record()

    def end(self) -> None:
        """Ends the pass. From now on the ledger may take the rows."""
        self._in_use = False
        self._small, self._numbers, self._used = {}, [], [None] * _CHUNKS
        if not self._kept:
            reads = self._reads
            self._forget()
            self._reads = reads
            self._places.resize(reads.nbytes)

    def close(self) -> None:
        with self._device.memory.lock:
            self._forget()
            self._unregister()

    def _present(self, ids: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """The row of each token on the device, where the missing ones are sent."""
        # A negative number is a large one without its sign, which no table has.
        places = self._place_of[ids.view(np.uint32)]
        missing = distinct(ids[places < 0])
        self._device.link.trace.count("rows.hits", len(ids) - len(missing))
        if not self._kept:
            self._reads[distinct(ids)] += 1
        if not len(missing):
            return places
        after: Event | None = None
        if self._held + len(missing) > len(self._rows):
            self._place_of[self._place_of >= self._hot] = -1
            self._held, missing = self._hot, distinct(ids[self._place_of[ids] < 0])
            after = self._card.compute.record()  # kernels that were queued before still read the old rows
        self._add(missing, after)
        return self._place_of[ids]

    def _add(self, missing: npt.NDArray[np.integer[Any]], after: Event | None = None) -> None:
        """Sends the rows of some tokens, ascending, which are writable after an event."""
        low, high = self._held, self._held + len(missing)
        rows, scales = self._embedding.stored(missing)
        self._send(rows, self._rows[low:high], after)
        if scales is not None:
            self._send(scales, self._scales[low:high], after)
        self._place_of[missing] = np.arange(low, high, dtype=np.int32)
        self._held = high

    def _send(self, values: npt.NDArray[Any], into: Any, after: Event | None = None) -> None:
        self._card.compute.wait(self._staging.upload(values, into.view(-1), after))

    def _sent(self, values: npt.NDArray[Any]) -> Any:
        into = self._card.allocate(*values.shape, dtype=self._card.torch.float32)
        if values.size:
            self._send(values.astype(np.float32, copy=False), into.view(-1).view(self._card.torch.uint8))
        return into

    def _compute(self, numbers: Any) -> Any:
        torch, spec, small = self._card.torch, self._model.spec, self._small
        rows, positions, types = numbers
        x = self._rows[rows].view(getattr(torch, self._model.embedding_dtype.name)).to(torch.float32)
        if self._scales is not None:
            x *= self._scales[rows].view(torch.float32)
        if "positions" in small:
            x += small["positions"][positions]
        if "types" in small:
            x += small["types"][types]
        if "norm.weight" in small:
            shape, weight, bias = (spec.layer.hidden,), small["norm.weight"], small["norm.bias"]
            x = torch.nn.functional.layer_norm(x, shape, weight, bias, spec.layer.norm_eps)
        return x

    def _shrink(self, nbytes: int) -> None:
        if not self._in_use:
            self._forget()

    def _forget(self) -> None:
        self._rows = self._scales = None
        self._place_of = self._reads = np.empty(0, np.int32)
        self._held = self._hot = 0
        self._kept = False
        self._lease.resize(0)
        self._places.resize(0)


def _row_nbytes(model: PackedModel) -> int:
    return model.embedding.row_nbytes + (4 if model.embedding_dtype == np.int8 else 0)
