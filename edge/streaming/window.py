"""A sliding window over blocks that are used in a known order, pass after pass (GRATING, section 4.2). While block i is
used, block i+1 is read into the other buffer; every further buffer pins one more block of the prefix."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from edge.blocks import BlockId, BlockSource
from edge.budget import MemoryBudget
from edge.link import Lane

SLIDING = 2
"""Number of sliding buffers: one is used, and one is being read."""

_CACHE_LINE = 64


class Arrival(Protocol):
    """A block on its way into a buffer (see `edge.link.Ticket`)."""

    @property
    def failed(self) -> bool: ...

    def wait(self) -> None:
        """Makes the buffer's next user wait for the block. That user is this thread, or a device's stream."""

    def settle(self) -> None:
        """Ensures that nothing but the next request writes into the buffer any more."""


class Way(Protocol):
    """The transfer of blocks into a window's buffers, and the memory of these buffers."""

    def allocate(self, nbytes: int) -> Any:
        """Makes a buffer that can be sliced."""

    def free(self, buffer: Any) -> None:
        """Frees a buffer."""

    def fetch(self, source: BlockSource, block: BlockId, into: Any, *, priority: float = 0.0) -> Arrival:
        """Requests a block. Work that this thread has put into a stream before still reads the old contents."""

    def loss(self, nbytes: int) -> float:
        """Seconds per byte to read a block of `nbytes` bytes again."""


class HostWay:
    """Transfers blocks from disk into buffers of this process."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane

    def allocate(self, nbytes: int) -> Any:
        """A writable buffer that starts at a cache line. The system provides its pages only when a block arrives."""
        raw: npt.NDArray[np.uint8] = np.empty(nbytes + _CACHE_LINE, np.uint8)
        start = -raw.ctypes.data % _CACHE_LINE
        return raw.data[start : start + nbytes]

    def free(self, buffer: Any) -> None:
        """Does nothing, because the pages are freed with the last reference to them."""

    def fetch(self, source: BlockSource, block: BlockId, into: Any, *, priority: float = 0.0) -> Arrival:
        return self._lane.fetch(source, block, into, priority=priority)

    def loss(self, nbytes: int) -> float:
        return self._lane.rate.loss(nbytes)


@dataclass(slots=True)
class _Slot:
    """A buffer and the block that it holds or receives."""

    buffer: Any
    ticket: Arrival


class SlidingWindow:
    """Blocks in a fixed order, read through as many buffers as the budget allows, at least two.

    One thread uses the window. While it uses a block, it may make a whole other pass. The budget may take pinned blocks
    at any time, and between passes all buffers."""

    def __init__(
        self,
        source: BlockSource,
        order: Sequence[BlockId],
        lane: Lane | Way,
        budget: MemoryBudget,
        *,
        widest: int | None = None,
    ) -> None:
        """`start` reserves the two sliding buffers, `widen` the pinned ones. `order` are the blocks of one pass; they
        come over a lane, or a `Way` to other buffers, whose memory `budget` is."""
        self.order = tuple(order)
        self.block_nbytes = max(source.nbytes(block) for block in self.order)
        self._source = source
        self._way: Way = HostWay(lane) if isinstance(lane, Lane) else lane
        self._budget = budget
        self._widest = min(len(self.order), max(SLIDING, widest or len(self.order)))
        self._slots: dict[int, _Slot] = {}
        self._free: list[Any] = []
        self._in_use: list[int] = []  # the last one by the innermost pass
        self._lock = threading.RLock()  # taken inside the ledger's lock wherever the width may change
        self.buffers = 0
        self._passing = False
        self._growing = False
        self._lease = budget.reserve("weights", 0)
        # Each pass reads the blocks again that are not pinned.
        self._unregister = budget.add_shrinker("weights", self._shrink, loss=lambda: self._way.loss(self.block_nbytes))

    @property
    def pinned(self) -> int:
        return self._pinned_with(self.buffers)

    @property
    def can_hold_all(self) -> bool:
        """Whether every block may have its own buffer, if there is memory for it."""
        return self._widest == len(self.order)

    @property
    def fully_resident(self) -> bool:
        return self.buffers == len(self.order)

    def widen(self) -> None:
        """Adds as many buffers as fit into the free memory, between `start` and the first block."""
        with self._budget.lock, self._lock:
            wanted = min(self._widest - self.buffers, self._budget.free // self.block_nbytes)
            if wanted > 0:
                self._add_buffers(wanted)

    def prefetch(self) -> None:
        """Requests the next blocks, as far as there are buffers."""
        with self._lock:
            for index in [i for i, slot in self._slots.items() if slot.ticket.failed]:
                self._drop(index)  # a read ahead that failed earlier; the block is read again
            first = self._in_use[-1] if self._in_use else 0
            self._reclaim(keep=self._wanted(first))
            self._request(first)

    def start(self) -> None:
        """Begins a pass: reserves the sliding buffers until `finish`, and requests the first blocks."""
        self._budget.waiting(self._hold)
        self.prefetch()

    def finish(self) -> None:
        """Ends a pass. Until the next `start`, the budget may take back every buffer."""
        with self._lock:
            self._passing = False

    @contextmanager
    def block(self, index: int) -> Iterator[Any]:
        """Yields the bytes of block `index`, valid inside the `with` only, while the following blocks are read."""
        if not self._passing:
            self.start()
        with self._lock:
            self._reclaim(keep=self._wanted(index))
            self._request(index)
            slot = self._slots[index]
            self._in_use.append(index)
        try:
            slot.ticket.wait()
            yield slot.buffer[: self._source.nbytes(self.order[index])]
        except BaseException:
            with self._lock:
                if self._in_use.count(index) == 1:
                    self._drop(index)  # the block may not have arrived, so it must be requested again
            raise
        finally:
            with self._lock:
                self._in_use.pop()
                if index >= self.pinned and not self.fully_resident:
                    if index not in self._in_use:
                        self._drop(index)
                    self._request(index + 1)

    def close(self) -> None:
        """Waits for running transfers, and releases all memory."""
        with self._budget.lock, self._lock:
            for index in list(self._slots):
                self._drop(index)
            for buffer in self._free:
                self._way.free(buffer)
            self._free.clear()
            self.buffers = 0
            self._lease.release()
            self._unregister()

    def _hold(self) -> None:
        with self._budget.lock, self._lock:
            missing = min(SLIDING, len(self.order)) - self.buffers
            if missing > 0:
                self._add_buffers(missing)
            self._passing = True

    def _pinned_with(self, buffers: int) -> int:
        return len(self.order) if buffers >= len(self.order) else max(0, buffers - SLIDING)

    def _wanted(self, index: int) -> list[int]:
        """Blocks that should be resident or on their way while `index` is used, soonest first."""
        if self.fully_resident:
            return [*range(index, len(self.order)), *range(index)]
        pinned = self.pinned
        sliding = [i for i in range(max(index, pinned), len(self.order))][:SLIDING]
        return [*range(index, pinned), *sliding, *range(min(index, pinned))]

    def _request(self, index: int) -> None:
        for wanted in self._wanted(index):
            if wanted not in self._slots and self._free:
                buffer = self._free.pop()
                # Transfers run in the order of their requests, which is the order of use. Only the next pass's prefix
                # can wait.
                priority = 0.0 if wanted >= index else 1.0
                ticket = self._way.fetch(self._source, self.order[wanted], buffer, priority=priority)
                self._slots[wanted] = _Slot(buffer, ticket)

    def _reclaim(self, keep: list[int]) -> None:
        for index in [i for i in self._slots if i not in keep and i not in self._in_use]:
            self._drop(index)

    def _drop(self, index: int) -> None:
        slot = self._slots.pop(index, None)
        if slot is None:
            return
        slot.ticket.settle()  # the lane may still be writing into the buffer
        self._free.append(slot.buffer)

    def _add_buffers(self, count: int) -> None:
        self._growing = True  # the window must not shrink to make room for its own growth
        try:
            self._lease.resize((self.buffers + count) * self.block_nbytes)
        finally:
            self._growing = False
        self._free += [self._way.allocate(self.block_nbytes) for _ in range(count)]
        self.buffers += count

    def _shrink(self, nbytes: int) -> None:
        with self._lock:
            if self._growing:
                return
            least = min(SLIDING, len(self.order)) if self._passing else 0
            count = min(-(-nbytes // self.block_nbytes), self.buffers - least)
            if count <= 0:
                return
            # The end of the pinned prefix is dropped first, because a pass starts with the rest of the prefix.
            pinned = self._pinned_with(self.buffers - count)
            tail = [i for i in sorted(self._slots, reverse=True) if pinned <= i < self.pinned]
            others = [i for i in sorted(self._slots, reverse=True) if i >= self.pinned]
            for index in (*tail, *others):
                if len(self._free) >= count:
                    break
                if index not in self._in_use:
                    self._drop(index)
            count = min(count, len(self._free))
            for buffer in self._free[:count]:
                self._way.free(buffer)
            del self._free[:count]
            self.buffers -= count
            self._lease.resize(self.buffers * self.block_nbytes)
