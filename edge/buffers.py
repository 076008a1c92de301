"""Buffers for blocks of many sizes that come and go, and what the ledger is charged for them."""

from __future__ import annotations

import mmap

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

ENTRY_NBYTES = 1024
"""What a block costs beside its bytes: the objects that keep track of it, and the rest of its last page."""

_OWN_PAGES = 64 << 10
_PAGE = mmap.PAGESIZE


_LARGER = 4
"""A buffer serves a block that is smaller by at most such a part of it."""


def charge_of(nbytes: int) -> int:
    """Bytes a block of `nbytes` is charged with: its pages and what keeps track of it."""
    return pages_of(nbytes) + ENTRY_NBYTES


def pages_of(nbytes: int) -> int:
    """Bytes of a buffer's pages."""
    return -(-nbytes // _PAGE) * _PAGE if nbytes >= _OWN_PAGES else nbytes


def page_buffer(nbytes: int) -> Bytes:
    """A writable buffer. A large one has pages of its own, which the system gets back the moment nobody refers to them:
    a heap would keep the holes that blocks of different sizes leave."""
    if nbytes < _OWN_PAGES:
        return np.empty(nbytes, np.uint8)
    if hasattr(mmap, "MAP_PRIVATE"):
        return np.frombuffer(mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), np.uint8)
    return np.frombuffer(mmap.mmap(-1, nbytes), np.uint8)


class Spares:
    """Buffers whose blocks are gone, for the next blocks of about their size: fresh pages cost a fault each, and
    unmapping hands the interpreter over to other threads.

    Attributes:
        nbytes: what their pages take.
    """

    def __init__(self) -> None:
        self.nbytes = 0
        self._buffers: list[Bytes] = []  # the oldest first

    def put(self, buffer: Bytes) -> bool:
        """Takes a buffer that nobody uses; returns whether it was worth keeping (a small one is the heap's)."""
        if not isinstance(buffer, np.ndarray) or buffer.nbytes < _OWN_PAGES:
            return False
        self._buffers.append(buffer)
        self.nbytes += pages_of(buffer.nbytes)
        return True

    def fitting(self, nbytes: int) -> Bytes | None:
        """The smallest that holds a block of `nbytes` and is not much larger; it stays here until `take`."""
        most = nbytes + nbytes // _LARGER
        return min((b for b in self._buffers if nbytes <= b.nbytes <= most), key=lambda b: b.nbytes, default=None)

    def take(self, buffer: Bytes) -> None:
        """Hands one of them over."""
        at = next(at for at, other in enumerate(self._buffers) if other is buffer)
        del self._buffers[at]
        self.nbytes -= pages_of(buffer.nbytes)

    def release(self, nbytes: int) -> int:
        """Gives the oldest back to the system until at least so many bytes are free or none is left; returns how many
        bytes that were."""
        freed = 0
        while freed < nbytes and self._buffers:
            freed += pages_of(self._buffers.pop(0).nbytes)
        self.nbytes -= freed
        return freed
