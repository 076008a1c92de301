"""`CachedBlock`: a block that has a buffer, the spare buffers of blocks that are gone, and the policies of eviction."""

from __future__ import annotations

import heapq
import itertools
import math
import mmap
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from edge.link import Ticket

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
    return -(-nbytes // _PAGE) * _PAGE if nbytes >= _OWN_PAGES else nbytes


def page_buffer(nbytes: int) -> Bytes:
    """A writable buffer. The pages of a large one return to the system with the last reference."""
    if nbytes < _OWN_PAGES:
        return np.empty(nbytes, np.uint8)
    if hasattr(mmap, "MAP_PRIVATE"):
        return np.frombuffer(mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), np.uint8)
    return np.frombuffer(mmap.mmap(-1, nbytes), np.uint8)


class Spares:
    """Buffers of gone blocks, kept for the next ones, because fresh pages cost faults. `nbytes` counts pages."""

    def __init__(self) -> None:
        self.nbytes = 0
        self._buffers: list[Bytes] = []  # the oldest first

    def put(self, buffer: Bytes) -> bool:
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
        at = next(at for at, other in enumerate(self._buffers) if other is buffer)
        del self._buffers[at]
        self.nbytes -= pages_of(buffer.nbytes)

    def release(self, nbytes: int) -> int:
        freed = 0
        while freed < nbytes and self._buffers:
            freed += pages_of(self._buffers.pop(0).nbytes)
        self.nbytes -= freed
        return freed


class Policy(Protocol):
    """Chooses the cached block to evict first. Called with the residency locked."""

    def insert(self, key: Hashable) -> None: ...

    def touch(self, key: Hashable) -> None:
        """Notes that the block is used in this round."""

    def remove(self, key: Hashable) -> None: ...

    def begin_round(self) -> None: ...

    def victim(self, evictable: Callable[[Hashable], bool]) -> Hashable | None:
        """The coldest block that `evictable` allows; it stays until `remove`."""

    def copy(self) -> Policy:
        """A policy of its own that knows the same blocks."""


DECAY = 1.02
"""Factor by which hotness falls in a round. An unused block cools to a half in 35 rounds."""

GAIN = 1.0
"""Hotness that a block gains once in each round in which it is used."""

INITIAL = 1.0
"""Hotness of a block that has just been fetched."""

_STEP = math.log(DECAY)


class DecayedHotness:
    """Lowest hotness first: h <- h / decay + (used ? gain : 0) per round (TeleRAG, appendix C).

    All values decay alike, so the heap holds the logarithm of h * decay ** round."""

    def __init__(self) -> None:
        self._round = 0
        self._hot: dict[Hashable, tuple[float, int, int]] = {}  # level, order of entry, round of the last use
        self._heap: list[tuple[float, int, Hashable]] = []
        self._order = itertools.count()

    def insert(self, key: Hashable) -> None:
        self._set(key, math.log(INITIAL) + self._round * _STEP)

    def touch(self, key: Hashable) -> None:
        level, _, last = self._hot[key]
        if last < self._round:
            now = self._round * _STEP
            self._set(key, now + math.log(math.exp(level - now) + GAIN))

    def remove(self, key: Hashable) -> None:
        del self._hot[key]

    def begin_round(self) -> None:
        self._round += 1

    def copy(self) -> DecayedHotness:
        made = DecayedHotness()
        made._round, made._hot, made._heap = self._round, dict(self._hot), list(self._heap)
        made._order = itertools.count(next(self._order))
        return made

    def victim(self, evictable: Callable[[Hashable], bool]) -> Hashable | None:
        passed: list[tuple[float, int, Hashable]] = []
        found = None
        while self._heap and found is None:
            entry = heapq.heappop(self._heap)
            current = self._hot.get(entry[2])
            if current is not None and current[1] == entry[1]:  # otherwise it was used or removed since
                passed.append(entry)
                found = entry[2] if evictable(entry[2]) else None
        for entry in passed:
            heapq.heappush(self._heap, entry)
        return found

    def _set(self, key: Hashable, level: float) -> None:
        order = next(self._order)
        self._hot[key] = (level, order, self._round)
        heapq.heappush(self._heap, (level, order, key))
        if len(self._heap) > 64 + 4 * len(self._hot):
            self._heap = [(level, order, key) for key, (level, order, _) in self._hot.items()]
            heapq.heapify(self._heap)


Fetch = Callable[[Any], Ticket]
"""Starts the transfer of a block into a given buffer."""


@dataclass(slots=True, eq=False)
class CachedBlock:
    """A block that has a buffer. `charged` are its bytes under the lease, `locks` the handles in use, and `guards` the
    predictions that protect it; `ahead`: fetched on a prediction and not requested yet. Once it is not `present`, its
    memory is freed with the last handle."""

    key: Hashable
    buffer: Any
    whole: Any
    charged: int
    ticket: Ticket
    round: int
    locks: int = 0
    guards: set[object] = field(default_factory=set)
    ahead: bool = False
    present: bool = True

    @property
    def coming(self) -> bool:
        return not self.ticket.cancelled and not self.ticket.failed

    def stop(self) -> bool:
        return self.ticket.done or self.ticket.cancel()
