"""A sliding window over blocks that are used in a known order, pass after pass (GRATING, section 4.2).

With the least budget it is the paper's dual-layer window: while block i is used, block i+1 is read into the other
buffer.
Every further buffer pins one more block of the prefix, which is then never read again, up to all of them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edge.blocks import BlockId, BlockSource
from edge.budget import MemoryBudget
from edge.lanes import Lane, Ticket

SLIDING = 2
"""Buffers that slide: one in use, one being read."""

_CACHE_LINE = 64


@dataclass(slots=True)
class _Slot:
    """A buffer and the block it holds or is receiving."""

    buffer: memoryview
    ticket: Ticket


class SlidingWindow:
    """Blocks in a fixed order through as many buffers as the budget allows, at least two.

    One thread uses the window; the budget may take pinned blocks back from another thread at any time, and between
    passes all of them, down to no buffer at all.
    """

    def __init__(
        self,
        source: BlockSource,
        order: Sequence[BlockId],
        lane: Lane,
        budget: MemoryBudget,
        *,
        owner: str = "weights",
        widest: int | None = None,
    ) -> None:
        """Takes no memory yet: `start` takes the two sliding buffers, `widen` the pinned ones.

        Args:
            order: the blocks of one pass.
            owner: name in the ledger.
            widest: at most so many buffers, however much is free; None for no bound.
        """
        self.order = tuple(order)
        self.block_nbytes = max(source.nbytes(block) for block in self.order)
        self._source = source
        self._lane = lane
        self._budget = budget
        self._widest = min(len(self.order), max(SLIDING, widest or len(self.order)))
        self._slots: dict[int, _Slot] = {}
        self._free: list[memoryview] = []
        self._in_use: int | None = None
        self._lock = threading.RLock()  # taken inside the ledger's wherever the width may change
        self._buffers = 0
        self._passing = False
        self._growing = False
        self._lease = budget.reserve(owner, 0)
        # Each pass reads again what does not stay.
        self._unregister = budget.add_shrinker(owner, self._shrink, loss=lambda: lane.rate.loss(self.block_nbytes))

    @property
    def buffers(self) -> int:
        """Buffers held; equal to the number of blocks when nothing is streamed."""
        return self._buffers

    @property
    def pinned(self) -> int:
        """How many blocks of the prefix stay in memory between passes."""
        return self._pinned_with(self._buffers)

    @property
    def fully_resident(self) -> bool:
        """True when every block has its own buffer."""
        return self._buffers == len(self.order)

    def widen(self) -> None:
        """Takes as many further buffers as the budget has free now, without asking anybody to give way. Call it between
        `start` and the first block."""
        with self._budget.locked(), self._lock:
            wanted = min(self._widest - self._buffers, self._budget.free // self.block_nbytes)
            if wanted > 0:
                self._add_buffers(wanted)

    def prefetch(self) -> None:
        """Asks for the first blocks of the coming pass, as far as there are buffers, so that they arrive while the
        caller still prepares."""
        with self._lock:
            for index in [i for i, slot in self._slots.items() if slot.ticket.failed]:
                self._drop(index)  # read ahead of an earlier pass; the disk is asked again
            self._reclaim(keep=self._wanted(0))
            self._request(0)

    def start(self) -> None:
        """Begins a pass: holds at least the sliding buffers from here to `finish`, and asks for the first blocks.

        Raises:
            BudgetExceeded: the sliding buffers do not fit.
        """
        with self._budget.locked(), self._lock:
            self._hold()
            self.prefetch()

    def finish(self) -> None:
        """Ends a pass: from here to the next `start` the budget may take every buffer back."""
        with self._lock:
            self._passing = False

    @contextmanager
    def block(self, index: int) -> Iterator[memoryview]:
        """Yields the bytes of block `index` (valid inside the `with` only), and has asked for what follows.

        Raises:
            CorruptBlock, StorageError: the block cannot be read.
            BudgetExceeded: the pass was not started and the sliding buffers do not fit.
        """
        if not self._passing:
            self.start()
        with self._lock:
            self._reclaim(keep=self._wanted(index))
            self._request(index)
            slot = self._slots[index]
            self._in_use = index
        try:
            slot.ticket.wait()
            yield slot.buffer[: self._source.nbytes(self.order[index])]
        except BaseException:
            with self._lock:
                self._drop(index)  # what failed to arrive must be asked for again, not taken for good
            raise
        finally:
            with self._lock:
                self._in_use = None
                if index >= self.pinned and not self.fully_resident:
                    self._drop(index)
                    self._request(index + 1)

    def close(self) -> None:
        """Waits for transfers under way and gives all memory back."""
        with self._budget.locked(), self._lock:
            for index in list(self._slots):
                self._drop(index)
            self._free.clear()
            self._buffers = 0
            self._lease.release()
            self._unregister()

    def _hold(self) -> None:
        missing = min(SLIDING, len(self.order)) - self._buffers
        if missing > 0:
            self._add_buffers(missing)
        self._passing = True

    def _pinned_with(self, buffers: int) -> int:
        return len(self.order) if buffers >= len(self.order) else max(0, buffers - SLIDING)

    def _wanted(self, index: int) -> list[int]:
        """Blocks that should be resident or under way when `index` is used, soonest first."""
        if self.fully_resident:
            return [*range(index, len(self.order)), *range(index)]
        pinned = self.pinned
        sliding = [i for i in range(max(index, pinned), len(self.order))][:SLIDING]
        return [*range(index, pinned), *sliding, *range(min(index, pinned))]

    def _request(self, index: int) -> None:
        for wanted in self._wanted(index):
            if wanted not in self._slots and self._free:
                buffer = self._free.pop()
                # First come, first served is the order of need; only the prefix of the next pass can wait.
                priority = 0.0 if wanted >= index else 1.0
                ticket = self._lane.fetch(self._source, self.order[wanted], buffer, priority=priority)
                self._slots[wanted] = _Slot(buffer, ticket)

    def _reclaim(self, keep: list[int]) -> None:
        for index in [i for i in self._slots if i not in keep and i != self._in_use]:
            self._drop(index)

    def _drop(self, index: int) -> None:
        slot = self._slots.pop(index, None)
        if slot is None:
            return
        slot.ticket.settle()  # the lane may still be writing into the buffer
        self._free.append(slot.buffer)

    def _add_buffers(self, count: int) -> None:
        self._growing = True  # asked to give way for its own growth, the window must not
        try:
            self._lease.resize((self._buffers + count) * self.block_nbytes)
        finally:
            self._growing = False
        self._free += [_aligned(self.block_nbytes) for _ in range(count)]
        self._buffers += count

    def _shrink(self, nbytes: int) -> None:
        with self._lock:
            if self._growing:
                return
            least = min(SLIDING, len(self.order)) if self._passing else 0
            count = min(-(-nbytes // self.block_nbytes), self._buffers - least)
            if count <= 0:
                return
            # The end of the pinned prefix goes first: the prefix that stays is still used at the start of each pass.
            pinned = self._pinned_with(self._buffers - count)
            tail = [i for i in sorted(self._slots, reverse=True) if pinned <= i < self.pinned]
            others = [i for i in sorted(self._slots, reverse=True) if i >= self.pinned]
            for index in (*tail, *others):
                if len(self._free) >= count:
                    break
                if index != self._in_use:
                    self._drop(index)
            count = min(count, len(self._free))
            del self._free[:count]
            self._buffers -= count
            self._lease.resize(self._buffers * self.block_nbytes)


def _aligned(nbytes: int) -> memoryview:
    """A writable buffer starting at a cache line; pages are touched only when a block arrives."""
    raw: npt.NDArray[np.uint8] = np.empty(nbytes + _CACHE_LINE, np.uint8)
    start = -raw.ctypes.data % _CACHE_LINE
    return raw.data[start : start + nbytes]
