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


def charge_of(nbytes: int) -> int:
    """Bytes a block of `nbytes` is charged with: its pages and what keeps track of it."""
    pages = -(-nbytes // _PAGE) * _PAGE if nbytes >= _OWN_PAGES else nbytes
    return pages + ENTRY_NBYTES


def page_buffer(nbytes: int) -> Bytes:
    """A writable buffer. A large one has pages of its own, which the system gets back the moment nobody refers to them:
    a heap would keep the holes that blocks of different sizes leave."""
    if nbytes < _OWN_PAGES:
        return np.empty(nbytes, np.uint8)
    if hasattr(mmap, "MAP_PRIVATE"):
        return np.frombuffer(mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), np.uint8)
    return np.frombuffer(mmap.mmap(-1, nbytes), np.uint8)
