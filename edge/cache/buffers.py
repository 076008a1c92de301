"""Buffers for blocks of many sizes, and the bytes that the ledger charges for them."""

from __future__ import annotations

import mmap

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

ENTRY_NBYTES = 1024
"""Bytes that a block takes besides its own: the objects that manage it, and the rest of its last page."""

_OWN_PAGES = 64 << 10
_PAGE = mmap.PAGESIZE


_LARGER = 4
"""A buffer may be larger than its block by at most this fraction (1/4) of the block."""


def charge_of(nbytes: int) -> int:
    """Bytes that the ledger charges for a block of `nbytes`: its pages and the objects that manage it."""
    return pages_of(nbytes) + ENTRY_NBYTES


def pages_of(nbytes: int) -> int:
    """Bytes of a buffer's pages."""
    return -(-nbytes // _PAGE) * _PAGE if nbytes >= _OWN_PAGES else nbytes


def page_buffer(nbytes: int) -> Bytes:
    """A writable buffer of `nbytes` bytes.

    A large one has its own memory mapping, so that its pages return to the system with the last reference. A heap would
    keep the holes that blocks of different sizes leave.
    """
    if nbytes < _OWN_PAGES:
        return np.empty(nbytes, np.uint8)
    if hasattr(mmap, "MAP_PRIVATE"):
        return np.frombuffer(mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), np.uint8)
    return np.frombuffer(mmap.mmap(-1, nbytes), np.uint8)


class Spares:
    """Buffers whose blocks are gone, kept for the next blocks of about their size.

    Reuse is cheaper, because each fresh page costs a fault, and unmapping lets other threads take the interpreter lock.

    Attributes:
        nbytes: bytes of the buffers' pages.
    """

    def __init__(self) -> None:
        self.nbytes = 0
        self._buffers: list[Bytes] = []  # the oldest first

    def put(self, buffer: Bytes) -> bool:
        """Adds an unused buffer; returns whether it was kept. Small ones are not, since they are part of the heap."""
        if not isinstance(buffer, np.ndarray) or buffer.nbytes < _OWN_PAGES:
            return False
        self._buffers.append(buffer)
        self.nbytes += pages_of(buffer.nbytes)
        return True

    def fitting(self, nbytes: int) -> Bytes | None:
        """The smallest buffer that holds `nbytes` and is not much larger, or None. It stays here until `take`."""
        most = nbytes + nbytes // _LARGER
        return min((b for b in self._buffers if nbytes <= b.nbytes <= most), key=lambda b: b.nbytes, default=None)

    def take(self, buffer: Bytes) -> None:
        """Removes a buffer, which the caller then uses."""
        at = next(at for at, other in enumerate(self._buffers) if other is buffer)
        del self._buffers[at]
        self.nbytes -= pages_of(buffer.nbytes)

    def release(self, nbytes: int) -> int:
        """Frees the oldest buffers until at least `nbytes` are free or none is left; returns the bytes freed."""
        freed = 0
        while freed < nbytes and self._buffers:
            freed += pages_of(self._buffers.pop(0).nbytes)
        self.nbytes -= freed
        return freed
