"""Host memory that the GPU reads and writes by itself: page-locked, leased from the host's ledger."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from edge.budget import MemoryBudget
from edge.cache.block_cache import Bytes, page_buffer
from edge.devices.cuda.card import Card
from edge.ivf.device import Event

_OWN_PAGES = 64 << 10
"""A smaller buffer would share its pages with others, which would be locked with it."""

_BUFFERS = 2


class Pinned:
    """A page-locked buffer.

    Attributes:
        array, tensor: its bytes for numpy and for torch.
    """

    def __init__(self, card: Card, nbytes: int) -> None:
        """The caller holds a lease of the host's ledger for it."""
        self.array: Bytes = page_buffer(max(_OWN_PAGES, nbytes))
        self.tensor = card.torch.from_numpy(self.array)
        self._card: Card | None = card
        if card.on_gpu:
            # torch's own pinned memory comes in powers of two and stays with its allocator.
            _check(card, card.torch.cuda.cudart().cudaHostRegister(self.array.ctypes.data, self.array.nbytes, 0))

    def close(self) -> None:
        """Unlocks the pages. No transfer may be under way."""
        card, self._card = self._card, None
        if card is not None and card.on_gpu:
            _check(card, card.torch.cuda.cudart().cudaHostUnregister(self.array.ctypes.data))


class UploadBuffers:
    """A ring of page-locked buffers through which bytes go to the device. Threads may share it."""

    def __init__(self, card: Card, budget: MemoryBudget, nbytes: int) -> None:
        """
        Args:
            budget: the host's ledger.
            nbytes: of each buffer.

        Raises:
            BudgetExceeded: they do not fit.
        """
        self.nbytes = max(_OWN_PAGES, nbytes)
        self._card = card
        self._lease = budget.reserve("pinned staging", _BUFFERS * self.nbytes)
        self._buffers = [Pinned(card, nbytes) for _ in range(_BUFFERS)]
        self._sent: list[Event | None] = [None] * _BUFFERS
        self._turn = 0
        self._lock = threading.RLock()

    def next(self) -> tuple[int, Pinned]:
        """The number of the next buffer and the buffer, once the device has read its content. The thread that took it
        fills it and calls `send` before another thread may take one: hold `locked` over both."""
        number = self._turn
        self._turn = (number + 1) % len(self._buffers)
        sent, self._sent[number] = self._sent[number], None
        if sent is not None:
            sent.wait()
        return number, self._buffers[number]

    def locked(self) -> AbstractContextManager[Any]:
        """The lock that a thread holds from `next` to `send`."""
        return self._lock

    def send(self, number: int, nbytes: int, into: Any, after: Event | None = None) -> Event:
        """Copies the first bytes of a buffer to the device, over its inward stream.

        Args:
            into: a tensor of at least `nbytes` bytes.
            after: the event after which `into` may be written to.

        Returns:
            The event that a stream waits for before it reads `into`.
        """
        inward = self._card.inward
        if after is not None:
            inward.wait(after)
        source = self._buffers[number].tensor[:nbytes]
        inward.run(lambda: into[:nbytes].copy_(source, non_blocking=True))
        event = self._sent[number] = inward.record()
        return event

    def upload(self, data: Bytes, into: Any, after: Event | None = None) -> Event:
        """Copies bytes of the caller, which it may change at once, to the device, in pieces where they are many; see
        `send`."""
        flat = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        event = None
        with self._lock:
            for start in range(0, flat.size, self.nbytes):
                number, buffer = self.next()
                piece = flat[start : start + self.nbytes]
                buffer.array[: piece.size] = piece
                event = self.send(number, piece.size, into[start:], after)
        return event or self._card.inward.record()

    def close(self) -> None:
        """Gives the buffers back."""
        with self._lock:
            for sent in self._sent:
                if sent is not None:
                    sent.wait()
            for buffer in self._buffers:
                buffer.close()
            self._buffers = []
            self._lease.release()


def _check(card: Card, status: Any) -> None:
    if int(status) != 0:
        raise MemoryError(f"the system does not lock pages for {card.name} (CUDA error {int(status)})")
