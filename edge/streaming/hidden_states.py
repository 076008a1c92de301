"""Chunks of a monolithic batch, and the storage of its hidden states between layers (GRATING, section 4.3): one
unpadded array, or a file of which memory holds three chunks."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.blocks import read_at
from edge.budget import MemoryBudget
from edge.errors import StorageError, as_storage_error
from edge.files.named_file import make_folder
from edge.link import Lane, Ticket


class ScratchFile:
    """A file without a name, with positioned reads and writes of whole ranges."""

    def __init__(self, descriptor: int, path: Path | None) -> None:
        self._fd = descriptor
        self._path = path

    @classmethod
    def make(cls, directory: Path, nbytes: int) -> ScratchFile:
        """Makes a file of `nbytes` bytes in `directory`, and allocates its disk space."""
        with as_storage_error(f"no scratch file can be made in {directory}"):
            make_folder(directory)
            descriptor, name = tempfile.mkstemp(prefix="edge-states-", dir=directory)
        path: Path | None = Path(name)
        with contextlib.suppress(OSError):  # Windows cannot unlink an open file; there `close` removes it
            os.unlink(name)
            path = None
        file = cls(descriptor, path)
        try:
            _claim(descriptor, nbytes)
        except OSError as error:
            file.close()
            raise StorageError(
                f"hidden states need {nbytes / 1e6:,.0f} MB of scratch space in {directory}: {error.strerror}"
            ) from error
        return file

    def read(self, into: memoryview, offset: int) -> int:
        try:
            done = read_at(self._fd, into, offset)
        except OSError as error:
            raise StorageError(f"offloaded hidden states cannot be read: {error.strerror}") from error
        if done < len(into):
            raise StorageError("the scratch file of hidden states ended early; was it truncated?")
        return done

    def write(self, data: memoryview, offset: int) -> int:
        done = 0
        try:
            while done < len(data):
                if hasattr(os, "pwrite"):
                    done += os.pwrite(self._fd, data[done:], offset + done)
                else:
                    os.lseek(self._fd, offset + done, os.SEEK_SET)
                    done += os.write(self._fd, data[done:])
        except OSError as error:
            raise StorageError(f"hidden states cannot be offloaded: {error.strerror}") from error
        return done

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            if self._path is not None:
                self._path.unlink(missing_ok=True)


def _claim(descriptor: int, nbytes: int) -> None:
    """Allocates the disk space now, so that a full disk is noticed before any work is done."""
    if hasattr(os, "posix_fallocate") and nbytes:
        try:
            os.posix_fallocate(descriptor, 0, nbytes)
            return
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise
    # A file system that cannot allocate space in advance only gets the size.
    os.ftruncate(descriptor, nbytes)


_HIDDEN_PRIORITY = -1.0
"""Transfers of chunks go before those of weights, because a chunk is needed before the next layer's weights."""


Groups = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TokenChunk:
    """Sequences that go through a layer together, packed in this order: numbers, tokens [batch], and the sum."""

    ids: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int32]
    tokens: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", int(self.lengths.sum()))


def plan_chunks(ids: npt.NDArray[np.int64], lengths: npt.NDArray[np.int32], max_tokens: int) -> list[TokenChunk]:
    """Cuts sequences `ids` [n] into chunks of at most `max_tokens`; a longer sequence is a chunk of its own. `lengths`:
    tokens of every stored sequence, by number."""
    chunks: list[TokenChunk] = []
    start = 0
    tokens = 0
    for position, length in enumerate(lengths[ids].tolist()):
        if position > start and tokens + length > max_tokens:
            chunks.append(TokenChunk(ids[start:position], lengths[ids[start:position]]))
            start, tokens = position, 0
        tokens += length
    if len(ids):
        chunks.append(TokenChunk(ids[start:], lengths[ids[start:]]))
    return chunks


@dataclass(frozen=True, slots=True)
class StatesShape:
    """The size of a batch's hidden states: tokens of each sequence [n], values per token, numpy's name of their type,
    and the request of each [n] (None: one)."""

    lengths: npt.NDArray[np.int32]
    width: int
    dtype: str
    groups: Groups | None = None


class HiddenStates(ABC):
    """The hidden states of all sequences between two layers.

    `groups` [n] are the requests of the sequences. `order` is request by request, by falling length, in which they are
    stored and run: a request's largest chunk comes first."""

    def __init__(self, shape: StatesShape) -> None:
        lengths = shape.lengths
        self.lengths = lengths
        self.width = shape.width
        self.dtype = np.dtype(shape.dtype)
        self.groups: Groups = np.zeros(len(lengths), np.int64) if shape.groups is None else shape.groups
        self.order: npt.NDArray[np.int64] = np.lexsort((-lengths, self.groups))
        ends = np.cumsum(lengths[self.order].astype(np.int64))
        self._start = np.empty(len(lengths), np.int64)
        self._start[self.order] = ends - lengths[self.order]
        self.tokens = int(ends[-1]) if len(ends) else 0

    def enter(self, chunks: Sequence[TokenChunk], embed: Callable[[TokenChunk], npt.NDArray[Any]]) -> None:
        """Stores layer 0's input of all chunks. States on a device may do so when the first layer streams them."""
        for chunk in chunks:
            self.store(chunk, embed(chunk))

    @abstractmethod
    def stream(self, chunks: Sequence[TokenChunk]) -> Iterator[tuple[TokenChunk, npt.NDArray[Any]]]:
        """Yields each chunk with its states [chunk.tokens, width], valid until the next. Changes, and sequences in none
        of the chunks, are lost without `store`."""

    @abstractmethod
    def store(self, chunk: TokenChunk, states: npt.NDArray[Any]) -> None:
        """Stores a chunk's states, [chunk.tokens, width], and replaces older ones."""

    @abstractmethod
    def close(self) -> None:
        """Releases memory (and disk space)."""

    def _runs(self, chunk: TokenChunk) -> list[tuple[int, int]]:
        """First row and number of rows of each contiguous range of states. Pruned sequences leave gaps."""
        start, tokens = int(self._start[chunk.ids[0]]), chunk.tokens
        # Chunks keep the stored order, so a chunk that spans no more rows than it has tokens has no gaps.
        if int(self._start[chunk.ids[-1]]) + int(chunk.lengths[-1]) - start == tokens:
            return [(start, tokens)]
        starts = self._start[chunk.ids]
        ends = starts + chunk.lengths
        breaks = np.flatnonzero(starts[1:] != ends[:-1]) + 1
        first = starts[np.concatenate(([0], breaks))]
        last = ends[np.concatenate((breaks - 1, [len(ends) - 1]))]
        return list(zip(first.tolist(), (last - first).tolist(), strict=True))


class ResidentStates(HiddenStates):
    def __init__(self, shape: StatesShape, budget: MemoryBudget) -> None:
        super().__init__(shape)
        self._lease = budget.reserve("hidden states", self.tokens * self.width * self.dtype.itemsize)
        self._flat = np.empty((self.tokens, self.width), self.dtype)
        self._streamed: Sequence[TokenChunk] = ()

    def stream(self, chunks: Sequence[TokenChunk]) -> Iterator[tuple[TokenChunk, npt.NDArray[Any]]]:
        if chunks is not self._streamed:  # most layers have the chunks of the layer before
            self._streamed = chunks
            self._close_gaps(chunks)
        for chunk in chunks:
            yield chunk, self.room(chunk)

    def room(self, chunk: TokenChunk) -> npt.NDArray[Any]:
        """Undefined memory for a chunk's first states [chunk.tokens, width], which `store` takes without a copy."""
        first = int(self._start[chunk.ids[0]])
        return self._flat[first : first + chunk.tokens]

    def store(self, chunk: TokenChunk, states: npt.NDArray[Any]) -> None:
        if states.base is not self._flat:  # otherwise the caller has changed the states in place
            self.room(chunk)[...] = states

    def _close_gaps(self, chunks: Sequence[TokenChunk]) -> None:
        """Moves the states of the chunks together, so that every chunk is a part of the array."""
        row = self.width * self.dtype.itemsize
        at = 0
        for chunk in chunks:
            for first, rows in self._runs(chunk):
                if first != at:
                    ctypes.memmove(self._flat.ctypes.data + at * row, self._flat.ctypes.data + first * row, rows * row)
                at += rows
        if chunks:
            ids, lengths = (np.concatenate(parts) for parts in zip(*((c.ids, c.lengths) for c in chunks), strict=True))
            self._start[ids] = np.cumsum(lengths, dtype=np.int64) - lengths

    def close(self) -> None:
        self._flat = np.empty((0, self.width), self.dtype)
        self._lease.release()


class OffloadedStates(HiddenStates):
    """Hidden states in a scratch file. Memory holds three chunks at a time, transferred over the disk lane."""

    def __init__(
        self, shape: StatesShape, budget: MemoryBudget, lane: Lane, directory: Path, chunk_tokens: int
    ) -> None:
        """Makes the scratch file in a folder on a real disk, and reserves three buffers of `chunk_tokens`."""
        super().__init__(shape)
        self._row_nbytes = self.width * self.dtype.itemsize
        self._file = ScratchFile.make(directory, self.tokens * self._row_nbytes)
        self._lane = lane
        try:
            self._lease = budget.reserve("hidden states", self.memory_needed(chunk_tokens, self.width, shape.dtype))
        except BaseException:
            self._file.close()
            raise
        self._buffers = [np.empty((chunk_tokens, self.width), self.dtype) for _ in range(3)]
        self._reads: dict[int, Ticket] = {}
        self._writes: dict[int, Ticket] = {}
        self._failure: BaseException | None = None
        self._turn = 0
        self._current: int | None = None  # the buffer of the chunk that is computing

    @staticmethod
    def memory_needed(chunk_tokens: int, width: int, dtype: str) -> int:
        return 3 * chunk_tokens * width * np.dtype(dtype).itemsize

    def stream(self, chunks: Sequence[TokenChunk]) -> Iterator[tuple[TokenChunk, npt.NDArray[Any]]]:
        for index in list(self._writes):
            self._written(index)
        ahead = self._read(chunks[0]) if chunks else None
        for position, chunk in enumerate(chunks):
            assert ahead is not None
            self._current, ticket = ahead
            if position + 1 < len(chunks):
                ahead = self._read(chunks[position + 1])
            ticket.wait()
            yield chunk, self._buffers[self._current][: chunk.tokens]

    def room(self, chunk: TokenChunk) -> npt.NDArray[Any]:
        self._current = self._next_buffer()
        return self._buffers[self._current][: chunk.tokens]

    def store(self, chunk: TokenChunk, states: npt.NDArray[Any]) -> None:
        index = self._next_buffer() if self._current is None else self._current
        self._current = None
        if states.base is not self._buffers[index]:  # otherwise the buffer was changed in place
            self._buffers[index][: chunk.tokens] = states
        self._writes[index] = self._move("write states", chunk, index, self._file.write)

    def close(self) -> None:
        for ticket in (*self._reads.values(), *self._writes.values()):
            ticket.settle()
        self._file.close()
        self._buffers = []
        self._lease.release()

    def _read(self, chunk: TokenChunk) -> tuple[int, Ticket]:
        index = self._next_buffer()
        self._reads[index] = self._move("read states", chunk, index, self._file.read)
        return index, self._reads[index]

    def _move(self, label: str, chunk: TokenChunk, index: int, transfer: Callable[[memoryview, int], int]) -> Ticket:
        runs = self._runs(chunk)
        data = self._buffers[index][: chunk.tokens].data.cast("B")
        row = self._row_nbytes

        def move() -> int:
            done = 0
            for first, rows in runs:
                done += transfer(data[done : done + rows * row], first * row)
            return done

        return self._lane.submit(label, move, len(data), priority=_HIDDEN_PRIORITY)

    def _next_buffer(self) -> int:
        index = self._turn
        self._turn = (self._turn + 1) % 3
        if index in self._reads:  # left over from an abandoned pass
            self._reads.pop(index).settle()
        self._written(index)
        return index

    def _written(self, index: int) -> None:
        """Waits until a buffer's contents are in the file. After a failed write every later call raises its error."""
        try:
            if index in self._writes:
                self._writes.pop(index).wait()
        except BaseException as error:
            self._failure = error
        if self._failure is not None:
            raise self._failure
