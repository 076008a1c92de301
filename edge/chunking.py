"""Chunks of a monolithic batch, and where the hidden states of all its sequences live between layers (GRATING, 4.3).

Within a layer the active sequences are run chunk by chunk, so that only one chunk's intermediates are alive. The hidden
states themselves lie unpadded, sequence after sequence, in one array; when that does not fit either, in a file, of
which at most three chunks are in memory: the one computing, the one being written, the one being read.
"""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.budget import MemoryBudget
from edge.errors import StorageError
from edge.lanes import Lane, Ticket

_HIDDEN_PRIORITY = -1.0
"""A chunk is needed before the next layer's weights are, so its transfer goes first."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Sequences that go through a layer together: their numbers and lengths, [batch] each. Their tokens are packed one
    sequence after the other, in this order."""

    ids: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int32]

    @property
    def tokens(self) -> int:
        return int(self.lengths.sum())


def plan_chunks(ids: npt.NDArray[np.int64], lengths: npt.NDArray[np.int32], max_tokens: int) -> list[Chunk]:
    """Cuts sequences into chunks of at most `max_tokens` tokens; a longer sequence is a chunk of its own.

    Args:
        ids: sequences to run [n], in the order of their stored states.
        lengths: tokens of every stored sequence, indexed by number.
        max_tokens: bound on a chunk's tokens.

    Returns:
        Chunks of neighbours in that order.
    """
    chunks: list[Chunk] = []
    start = 0
    tokens = 0
    for position, length in enumerate(lengths[ids].tolist()):
        if position > start and tokens + length > max_tokens:
            chunks.append(Chunk(ids[start:position], lengths[ids[start:position]]))
            start, tokens = position, 0
        tokens += length
    if len(ids):
        chunks.append(Chunk(ids[start:], lengths[ids[start:]]))
    return chunks


class HiddenStates(ABC):
    """The hidden states of all sequences between two layers. `order` lists the sequences by falling length, which is
    the order they are stored in and must be run in: the chunk that needs most memory comes first, and chunks of equal
    lengths keep a batch's work even."""

    def __init__(self, lengths: npt.NDArray[np.int32], width: int, dtype: str) -> None:
        self.lengths = lengths
        self.width = width
        self.dtype = np.dtype(dtype)
        self.order: npt.NDArray[np.int64] = np.argsort(-lengths, kind="stable")
        ends = np.cumsum(lengths[self.order].astype(np.int64))
        self._start = np.empty(len(lengths), np.int64)
        self._start[self.order] = ends - lengths[self.order]
        self.tokens = int(ends[-1]) if len(ends) else 0

    @abstractmethod
    def stream(self, chunks: Sequence[Chunk]) -> Iterator[tuple[Chunk, npt.NDArray[Any]]]:
        """Yields each chunk with its states, [chunk.tokens, width], read only and valid until the next chunk is taken.
        What is stored for a chunk must be stored before that, too.

        Raises:
            StorageError: offloaded states cannot be read, or could not be written earlier.
        """

    @abstractmethod
    def store(self, chunk: Chunk, states: npt.NDArray[Any]) -> None:
        """Puts a chunk's new states, [chunk.tokens, width], in the place of the old ones, or of none."""

    @abstractmethod
    def close(self) -> None:
        """Gives memory (and disk) back."""

    def _runs(self, chunk: Chunk) -> list[tuple[int, int]]:
        """First row and number of rows of each contiguous stretch; sequences pruned in between leave gaps."""
        starts = self._start[chunk.ids]
        ends = starts + chunk.lengths
        breaks = np.flatnonzero(starts[1:] != ends[:-1]) + 1
        first = starts[np.concatenate(([0], breaks))]
        last = ends[np.concatenate((breaks - 1, [len(ends) - 1]))]
        return list(zip(first.tolist(), (last - first).tolist(), strict=True))


class ResidentStates(HiddenStates):
    """All hidden states in memory."""

    def __init__(self, lengths: npt.NDArray[np.int32], width: int, dtype: str, budget: MemoryBudget) -> None:
        """Takes `tokens * width` values.

        Raises:
            BudgetExceeded: they do not fit.
        """
        super().__init__(lengths, width, dtype)
        self._lease = budget.reserve("hidden states", self.tokens * width * self.dtype.itemsize)
        self._flat = np.empty((self.tokens, width), self.dtype)

    def stream(self, chunks: Sequence[Chunk]) -> Iterator[tuple[Chunk, npt.NDArray[Any]]]:
        for chunk in chunks:
            runs = [self._flat[first : first + rows] for first, rows in self._runs(chunk)]
            yield chunk, runs[0] if len(runs) == 1 else np.concatenate(runs)

    def store(self, chunk: Chunk, states: npt.NDArray[Any]) -> None:
        at = 0
        for first, rows in self._runs(chunk):
            self._flat[first : first + rows] = states[at : at + rows]
            at += rows

    def close(self) -> None:
        self._flat = np.empty((0, self.width), self.dtype)
        self._lease.release()


class OffloadedStates(HiddenStates):
    """Hidden states in a scratch file that crosses the disk lane, three chunks at a time in memory."""

    def __init__(
        self,
        lengths: npt.NDArray[np.int32],
        width: int,
        dtype: str,
        budget: MemoryBudget,
        lane: Lane,
        directory: Path,
        chunk_tokens: int,
    ) -> None:
        """Creates the scratch file and takes three chunk buffers.

        Args:
            directory: a folder on a real disk; created if missing. The file is gone when the process is.
            chunk_tokens: tokens of the largest chunk that will be streamed.

        Raises:
            BudgetExceeded: the buffers do not fit.
            StorageError: the disk has no room for all states; nothing is left behind.
        """
        super().__init__(lengths, width, dtype)
        self._row_nbytes = width * self.dtype.itemsize
        self._file = _scratch_file(directory, self.tokens * self._row_nbytes)
        self._lane = lane
        try:
            self._lease = budget.reserve("hidden states", self.memory_needed(chunk_tokens, width, dtype))
        except BaseException:
            self._file.close()
            raise
        self._buffers = [np.empty((chunk_tokens, width), self.dtype) for _ in range(3)]
        self._reads: dict[int, Ticket] = {}
        self._writes: dict[int, Ticket] = {}
        self._failure: BaseException | None = None
        self._turn = 0
        self._current: int | None = None  # the buffer of the chunk that is computing

    @staticmethod
    def memory_needed(chunk_tokens: int, width: int, dtype: str) -> int:
        """Bytes of the three buffers."""
        return 3 * chunk_tokens * width * np.dtype(dtype).itemsize

    def stream(self, chunks: Sequence[Chunk]) -> Iterator[tuple[Chunk, npt.NDArray[Any]]]:
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

    def store(self, chunk: Chunk, states: npt.NDArray[Any]) -> None:
        index = self._next_buffer() if self._current is None else self._current
        self._current = None
        self._buffers[index][: chunk.tokens] = states
        self._writes[index] = self._move("write states", chunk, index, self._file.write)

    def close(self) -> None:
        for ticket in (*self._reads.values(), *self._writes.values()):
            ticket.settle()
        self._file.close()
        self._buffers = []
        self._lease.release()

    def _read(self, chunk: Chunk) -> tuple[int, Ticket]:
        index = self._next_buffer()
        self._reads[index] = self._move("read states", chunk, index, self._file.read)
        return index, self._reads[index]

    def _move(self, label: str, chunk: Chunk, index: int, transfer: Callable[[memoryview, int], int]) -> Ticket:
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
        if index in self._reads:  # of a pass that was given up
            self._reads.pop(index).settle()
        self._written(index)
        return index

    def _written(self, index: int) -> None:
        """Makes sure that a buffer's contents reached the file. A failed write must show now and ever after, not as
        stale states that are read back."""
        try:
            if index in self._writes:
                self._writes.pop(index).wait()
        except BaseException as error:
            self._failure = error
        if self._failure is not None:
            raise self._failure


class _ScratchFile:
    """A file nobody else sees, with positioned reads and writes of whole ranges."""

    def __init__(self, descriptor: int, path: Path | None) -> None:
        self._fd = descriptor
        self._path = path

    def read(self, into: memoryview, offset: int) -> int:
        done = 0
        try:
            while done < len(into):
                count = self._read_some(into[done:], offset + done)
                if count == 0:
                    raise StorageError("the scratch file of hidden states ended early; was it truncated?")
                done += count
        except OSError as error:
            raise StorageError(f"offloaded hidden states cannot be read: {error.strerror}") from error
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

    def _read_some(self, into: memoryview, offset: int) -> int:
        if hasattr(os, "preadv"):
            return os.preadv(self._fd, [into], offset)
        os.lseek(self._fd, offset, os.SEEK_SET)
        data = os.read(self._fd, len(into))
        into[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            if self._path is not None:
                self._path.unlink(missing_ok=True)


def _scratch_file(directory: Path, nbytes: int) -> _ScratchFile:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix="edge-states-", dir=directory)
    except OSError as error:
        raise StorageError(f"no scratch file can be made in {directory}: {error.strerror}") from error
    path: Path | None = Path(name)
    with contextlib.suppress(OSError):  # an open file cannot be unlinked on Windows; then `close` does it
        os.unlink(name)
        path = None
    file = _ScratchFile(descriptor, path)
    try:
        _claim(descriptor, nbytes)
    except OSError as error:
        file.close()
        raise StorageError(
            f"hidden states need {nbytes / 1e6:,.0f} MB of scratch space in {directory}: {error.strerror}"
        ) from error
    return file


def _claim(descriptor: int, nbytes: int) -> None:
    """Claims the room now, so that a full disk is found before any work is done rather than in the middle."""
    if hasattr(os, "posix_fallocate") and nbytes:
        try:
            os.posix_fallocate(descriptor, 0, nbytes)
            return
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise
    # A file system that cannot claim room only learns the size.
    os.ftruncate(descriptor, nbytes)
