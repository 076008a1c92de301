"""Hidden states in a device's memory, or in page-locked memory of the host."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from edge.budget import MemoryBudget
from edge.ivf.device import Event
from edge.runtimes.base import StatesElsewhere
from edge.runtimes.cuda.tokens import TokenTable
from edge.streaming.hidden_states import HiddenStates, StatesShape, TokenChunk


class Readback:
    """Page-locked host memory for vectors from the device, with room for all sequences twice: a layer's are read after
    the next one's arrive."""

    def __init__(self, device: Any, budget: MemoryBudget, sequences: int, width: int) -> None:
        self._rows = 2 * sequences
        self._width = width
        self._lease = budget.reserve("vectors of a pass", self.memory_needed(sequences, width))
        self._pinned = device.pinned(self._rows * width * 4)
        self._card = device.card
        self._next = 0

    @staticmethod
    def memory_needed(sequences: int, width: int) -> int:
        return max(64 << 10, 2 * sequences * width * 4)

    def take(self, rows: int) -> tuple[Any, npt.NDArray[np.float32]]:
        """Memory for `rows` vectors, as an object for torch and as a numpy array [rows, width] float32."""
        if self._next + rows > self._rows:
            self._next = 0
        low, high = self._next * self._width * 4, (self._next + rows) * self._width * 4
        self._next += rows
        array = self._pinned.array[low:high].view(np.float32).reshape(rows, self._width)
        return self._card.torch.from_numpy(array), array

    def close(self) -> None:
        self._pinned.close()
        self._lease.release()


class Arriving:
    """Vectors that are being transferred from the device. `np.asarray` waits for the transfer and returns them."""

    def __init__(self, values: npt.NDArray[np.float32], event: Event) -> None:
        self._values = values
        self._event = event

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        self._event.wait()
        return np.array(self._values, dtype or np.float32)


class DeviceRows(StatesElsewhere):
    """States [tokens, hidden] of packed sequences on a device."""

    def __init__(self, tensor: Any, card: Any, readback: Readback | None = None) -> None:
        self.tensor = tensor
        self._card = card
        self._readback = readback

    @classmethod
    def of(cls, states: npt.NDArray[Any], card: Any) -> DeviceRows:
        source = card.torch.from_numpy(np.array(states))
        tensor = card.allocate(*states.shape, dtype=source.dtype)
        card.compute.run(lambda: tensor.copy_(source))
        return cls(tensor, card)

    def __len__(self) -> int:
        return len(self.tensor)

    def __getitem__(self, rows: slice) -> DeviceRows:
        return DeviceRows(self.tensor[rows], self._card, self._readback)

    def read(self, token: Literal["first", "last", "all"], lengths: npt.NDArray[np.int32]) -> Arriving:
        assert self._readback is not None, "states that nobody reads have no way back"
        into, values = self._readback.take(len(lengths))
        torch, device, tensor, own = self._card.torch, self._card.device, self.tensor, lengths.astype(np.int64)

        def read() -> None:
            ends = np.cumsum(own)
            if token == "all":
                counts = torch.from_numpy(own).to(device, non_blocking=True)
                vectors = torch.segment_reduce(tensor.to(torch.float32), "mean", lengths=counts, unsafe=True)
            else:
                at = torch.from_numpy(ends - own if token == "first" else ends - 1).to(device, non_blocking=True)
                vectors = tensor[at].to(torch.float32)
            into.copy_(vectors, non_blocking=True)

        self._card.compute.run(read)
        return Arriving(values, self._card.compute.record())


_CHUNKS = 3
"""Number of chunks on the device if the states are in host memory: one computes, one arrives, one is sent back."""


class KeptPages:
    """Page-locked host memory for hidden states. It stays locked between passes unless the budget releases it."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self._pinned: Any = None
        self._in_use = False
        self._loss = 0.0  # measured seconds per byte to lock memory again
        self._lease = device.host.reserve("hidden states", 0)
        self._unregister = device.host.add_shrinker("hidden states", self._shrink, loss=lambda: self._loss)

    def take(self, nbytes: int) -> Any:
        """Page-locked memory of at least `nbytes` bytes, which may be used until `give_back`."""
        return self._device.host.waiting(lambda: self._taken(nbytes))

    def give_back(self) -> None:
        """Ends the use of the memory by a pass. From now on the budget may release it."""
        self._in_use = False

    def close(self) -> None:
        with self._device.host.lock:
            self._drop()
            self._unregister()

    def _taken(self, nbytes: int) -> Any:
        with self._device.host.lock:
            self._in_use = True
            try:
                if self._pinned is None or self._pinned.array.nbytes < nbytes:
                    self._drop()
                    self._lease.resize(max(64 << 10, nbytes))
                    started = time.perf_counter()
                    self._pinned = self._device.pinned(nbytes)
                    self._loss = (time.perf_counter() - started) / nbytes
            except BaseException:
                self.give_back()
                self._drop()
                raise
            return self._pinned

    def _shrink(self, nbytes: int) -> None:
        if not self._in_use:
            self._drop()

    def _drop(self) -> None:
        if self._pinned is not None:
            self._pinned.close()
            self._pinned = None
        self._lease.resize(0)


class DeviceStates(HiddenStates):
    def __init__(
        self, shape: StatesShape, device: Any, chunk_tokens: int, tokens: TokenTable, readback: Readback
    ) -> None:
        """States on a `CudaDevice` for chunks of at most `chunk_tokens`. Gaps of pruning are closed in the workspace.
        `tokens` and `readback` are done when the states are closed."""
        super().__init__(shape)
        lengths, width, dtype = shape.lengths, shape.width, shape.dtype
        self._card = device.card
        self._tokens = tokens
        self._readback = readback
        torch_dtype = getattr(self._card.torch, dtype)
        self._lease = device.memory.reserve("hidden states", self.tokens * width * self.dtype.itemsize)
        self._flat: Any = self._card.allocate(self.tokens, width, dtype=torch_dtype)
        self._copy: Any = None
        self._chunk_tokens = min(self.tokens, max(chunk_tokens, int(lengths.max(initial=0))))
        self._torch_dtype = torch_dtype
        self._embed: Callable[[TokenChunk], Any] | None = None

    def enter(self, chunks: Sequence[TokenChunk], embed: Callable[[TokenChunk], Any]) -> None:
        """Leaves it to the first layer, so that the device computes a chunk while the host looks up the next one."""
        self._embed = embed

    def stream(self, chunks: Sequence[TokenChunk]) -> Iterator[tuple[TokenChunk, Any]]:
        embed, self._embed = self._embed, None
        for chunk in chunks:
            if embed is not None:
                self.store(chunk, embed(chunk))
            runs = self._runs(chunk)
            tensor = self._flat[runs[0][0] : runs[0][0] + runs[0][1]]
            if len(runs) > 1:
                tensor = self._together(runs, chunk.tokens)
            yield chunk, DeviceRows(tensor, self._card, self._readback)

    def store(self, chunk: TokenChunk, states: Any) -> None:
        if not isinstance(states, DeviceRows):
            (first, rows), *others = self._runs(chunk)
            assert not others, "the chunks of the first layer have no gaps"
            self._tokens.enter(states, chunk, self._flat[first : first + rows])
            return
        if self._copy is None or states.tensor.data_ptr() != self._copy.data_ptr():
            return  # changed in place
        source, runs, flat = states.tensor, self._runs(chunk), self._flat

        def scatter() -> None:
            for own, copied in _pairs(runs, flat, source):
                own.copy_(copied)

        self._card.compute.run(scatter)

    def close(self) -> None:
        self._card.synchronize()
        self._tokens.end()
        self._readback.close()
        self._flat = self._copy = None
        self._lease.release()

    def _together(self, runs: list[tuple[int, int]], tokens: int) -> Any:
        if self._copy is None:
            self._copy = self._card.allocate(self._chunk_tokens, self.width, dtype=self._torch_dtype)
        into, parts = self._copy[:tokens], [self._flat[first : first + rows] for first, rows in runs]
        self._card.compute.run(lambda: self._card.torch.cat(parts, out=into))
        return into


class HostStates(HiddenStates):
    """Hidden states in page-locked memory of the host. Each direction has its own stream, so transfers run while
    another chunk is computed."""

    def __init__(
        self,
        shape: StatesShape,
        device: Any,
        chunk_tokens: int,
        tokens: TokenTable,
        readback: Readback,
        pages: KeptPages,
    ) -> None:
        super().__init__(shape)
        lengths, width, dtype = shape.lengths, shape.width, shape.dtype
        self._card = device.card
        self._tokens = tokens
        self._readback = readback
        row = width * self.dtype.itemsize
        largest = min(self.tokens, max(chunk_tokens, int(lengths.max(initial=0))))
        self._pages = pages
        pinned = pages.take(self.tokens * row)
        try:
            self._lease = device.memory.reserve("hidden states", _CHUNKS * largest * row)
        except BaseException:
            pages.give_back()
            raise
        torch_dtype = getattr(self._card.torch, dtype)
        self._flat: Any = pinned.tensor[: self.tokens * row].view(torch_dtype).view(-1, width)
        self._buffers = [self._card.allocate(largest, width, dtype=torch_dtype) for _ in range(_CHUNKS)]
        self._left: list[Event | None] = [None] * _CHUNKS
        self._turn = 0
        self._current: int | None = None
        self._written: dict[tuple[int, int], Event] = {}
        self._last: Event | None = None

    def stream(self, chunks: Sequence[TokenChunk]) -> Iterator[tuple[TokenChunk, Any]]:
        ahead = self._bring(chunks[0]) if chunks else None
        for position, chunk in enumerate(chunks):
            assert ahead is not None
            self._current, arrived = ahead
            if position + 1 < len(chunks):
                ahead = self._bring(chunks[position + 1])
            self._card.compute.wait(arrived)
            tensor = self._buffers[self._current][: chunk.tokens]
            yield chunk, DeviceRows(tensor, self._card, self._readback)
            if self._current is not None:  # a chunk of the last layer, which is not stored
                self._left[self._current] = self._card.compute.record()

    def store(self, chunk: TokenChunk, states: Any) -> None:
        index = self._take() if self._current is None else self._current
        self._current = None
        buffer = self._buffers[index][: chunk.tokens]
        if not isinstance(states, DeviceRows):
            left = self._left[index]
            if left is not None:
                self._card.compute.wait(left)
            self._tokens.enter(states, chunk, buffer)
        runs, flat, outward = self._runs(chunk), self._flat, self._card.outward
        outward.wait(self._card.compute.record())

        def leave() -> None:
            for own, copied in _pairs(runs, flat, buffer):
                own.copy_(copied, non_blocking=True)

        outward.run(leave)
        self._left[index] = self._last = self._written[self._name(chunk)] = outward.record()

    def close(self) -> None:
        self._card.synchronize()
        self._tokens.end()
        self._readback.close()
        self._flat = None
        self._buffers = []
        self._pages.give_back()
        self._lease.release()

    def _bring(self, chunk: TokenChunk) -> tuple[int, Event]:
        """Requests a chunk's states. Returns the number of their buffer, and the event of their arrival."""
        index = self._take()
        runs, flat, buffer, inward = self._runs(chunk), self._flat, self._buffers[index], self._card.inward
        if (left := self._left[index]) is not None:
            inward.wait(left)
        # After pruning, a chunk can consist of parts that were written separately.
        if (written := self._written.get(self._name(chunk), self._last)) is not None:
            inward.wait(written)

        def come() -> None:
            for own, copied in _pairs(runs, flat, buffer):
                copied.copy_(own, non_blocking=True)

        inward.run(come)
        return index, inward.record()

    def _take(self) -> int:
        index = self._turn
        self._turn = (self._turn + 1) % _CHUNKS
        return index

    @staticmethod
    def _name(chunk: TokenChunk) -> tuple[int, int]:
        return hash(chunk.ids.tobytes()), len(chunk.ids)


def _pairs(runs: Sequence[tuple[int, int]], states: Any, chunk: Any) -> Iterator[tuple[Any, Any]]:
    """The rows of each run (first row, number of rows) in all states, and the same rows in a contiguous chunk."""
    at = 0
    for first, rows in runs:
        yield states[first : first + rows], chunk[at : at + rows]
        at += rows
