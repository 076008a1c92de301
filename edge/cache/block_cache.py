"""`BlockCache`: the buffers of a residency's blocks under one lease, and the choice of blocks to evict.

Some freed buffers are kept as spares for other blocks (see `Spares`). A `Handle` of a block locks the block while it is
read. The policies of eviction choose the cached block to evict first.
"""

from __future__ import annotations

import heapq
import itertools
import math
import mmap
import threading
from collections.abc import Callable, Container, Hashable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from edge.budget import Loss, MemoryBudget
from edge.link import Ticket, transferring
from edge.trace import Trace

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

    All values decay by the same factor, so that their order changes only when a block is used. The heap holds the
    logarithm of h * decay ** round, and beginning a round costs nothing.
    """

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

Allowed = Callable[["CachedBlock"], bool]
"""Whether a block may be evicted."""

SPARE = 64
"""Spare buffers may take at most this fraction (1/64) of the bytes held."""


@dataclass(slots=True, eq=False)
class CachedBlock:
    """A block that has a buffer.

    Attributes:
        buffer, whole: the block's bytes, and the allocated buffer that they are a part of.
        charged: bytes that the block adds to the lease.
        round: round of the last use.
        locks: number of handles in use.
        guards: predictions that protect the block from eviction for other blocks.
        ahead: whether the block was fetched on a prediction, and has not been requested yet.
        present: whether the block is in the cache. If not, its memory is freed with the last handle.
    """

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
        """Whether the bytes are there or on their way: the transfer has neither failed nor been cancelled."""
        return not self.ticket.cancelled and not self.ticket.failed

    def stop(self) -> bool:
        """Cancels a transfer that has not begun; returns whether nothing writes into the buffer any more."""
        return self.ticket.done or self.ticket.cancel()


class BlockCache:
    """Blocks by key.

    All methods must be called with `lock` held, and inside the ledger's lock if they may change the lease.

    Attributes:
        entries: the blocks in the cache.
        policy: the eviction policy.
        capacity: bytes held at most, even if more are free; None for no bound.
        lock: taken inside the ledger's lock.
    """

    def __init__(
        self,
        name: str,
        budget: MemoryBudget,
        *,
        policy: Policy | None,
        capacity: int | None,
        allocate: Callable[[int], Any] | None,
        loss: Loss,
        trace: Trace,
    ) -> None:
        self.entries: dict[Hashable, CachedBlock] = {}
        self.policy = policy or DecayedHotness()
        self.capacity = capacity
        self.lock = threading.RLock()
        self.spares = Spares()
        self._name = name
        self._budget = budget
        self._allocate = allocate or page_buffer
        self._trace = trace
        self._lease = budget.reserve(name, 0)
        self._unregister = budget.add_shrinker(name, self._shrink, loss=loss, settle=self._settle)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self._lease.nbytes

    @property
    def room(self) -> int:
        """Bytes that could be held now: those that are held, and those that the ledger has free."""
        free = self._lease.nbytes + max(0, self._budget.free)
        return free if self.capacity is None else min(free, self.capacity)

    def enter(self, key: Hashable, nbytes: int, fetch: Fetch, now: int, later: int = 0) -> CachedBlock:
        """Adds a block. Room must have been made for it, and for later blocks that will be charged with `later` bytes.

        Args:
            now: number of the current round.

        Raises:
            BudgetExceeded: there is not enough room.
        """
        whole = self.spares.fitting(nbytes)
        if whole is not None and self._missing(ENTRY_NBYTES + later) <= self.spares.nbytes - pages_of(whole.nbytes):
            self.spares.take(whole)
            charged = charge_of(whole.nbytes)
            self.give_back(self._missing(ENTRY_NBYTES))
            self._lease.resize(self._lease.nbytes + ENTRY_NBYTES)
        else:
            whole, charged = None, charge_of(nbytes)
            self.give_back(self._missing(charged))
            self._lease.resize(self._lease.nbytes + charged)
        try:
            if whole is None:
                whole = self._allocate(nbytes)
            buffer = whole[:nbytes] if isinstance(whole, np.ndarray) else whole
            entry = CachedBlock(key, buffer, whole, charged, fetch(buffer), now)
        except BaseException:
            self._lease.resize(self._lease.nbytes - charged)
            raise
        self.entries[key] = entry
        self.policy.insert(key)
        return entry

    def make_room(self, charged: int, allowed: Allowed | None) -> list[Hashable] | None:
        """Evicts the coldest blocks that are `allowed` until `charged` bytes are free, and returns their keys.

        If that is impossible, evicts nothing and returns None. Spare buffers are used up only when no block is left to
        evict. A few more blocks are evicted than necessary, because with more spare buffers one is more likely to fit.
        """
        missing = self._missing(charged)
        chosen: dict[Hashable, CachedBlock] = {}
        wanted = self._lease.nbytes // SPARE - self.spares.nbytes
        spare = charged if missing > 0 and wanted >= charged else 0
        while missing > 0 or -missing < spare:
            entry = None if allowed is None else self.coldest(allowed, chosen)
            if entry is None and missing <= self.spares.nbytes:
                break
            if entry is None:
                return None
            chosen[entry.key] = entry
            missing -= entry.charged
        for entry in chosen.values():
            self.evict(entry)
        return list(chosen)

    def coldest(self, allowed: Allowed, spared: Container[Hashable] = ()) -> CachedBlock | None:
        """The next block to evict: it is not in use, has arrived, is `allowed`, and is not `spared`."""

        def evictable(key: Hashable) -> bool:
            entry = self.entries[key]
            return not entry.locks and entry.ticket.done and key not in spared and allowed(entry)

        key = self.policy.victim(evictable)
        return None if key is None else self.entries[key]

    def evict(self, entry: CachedBlock) -> None:
        """Removes a block. Its buffer becomes a spare one, as far as there is room for spares."""
        whole = entry.whole
        self.drop(entry)
        self._trace.count(f"{self._name}.evictions")
        if self.spares.put(whole):
            self._lease.resize(self._lease.nbytes + pages_of(whole.nbytes))
            self.give_back(self.spares.nbytes - self._lease.nbytes // SPARE)

    def give_back(self, nbytes: int) -> int:
        """Frees spare buffers of at least `nbytes` bytes, or all of them; returns the number of bytes freed."""
        freed = self.spares.release(nbytes)
        if freed:
            self._lease.resize(self._lease.nbytes - freed)
        return freed

    def drop(self, entry: CachedBlock) -> None:
        """Removes a block from the cache. Its memory is freed now, or with its last handle if it is in use."""
        del self.entries[entry.key]
        self.policy.remove(entry.key)
        entry.present = False
        if not entry.locks:
            self.free(entry)

    def free(self, entry: CachedBlock) -> None:
        """Frees the memory of a removed block."""
        self._lease.resize(self._lease.nbytes - entry.charged)

    def trim(self, share: float) -> None:
        """Evicts the coldest blocks until the cache takes at most `share` of the room."""
        while self.nbytes > share * self.room:
            if self.give_back(1):
                continue
            entry = self.coldest(lambda entry: not entry.guards)
            if entry is None:
                return
            self.evict(entry)

    def close(self) -> None:
        """Waits for running transfers, and frees everything."""
        for entry in list(self.entries.values()):
            entry.ticket.settle()
            self.drop(entry)
        self.give_back(self.spares.nbytes)
        self._unregister()

    def _missing(self, charged: int) -> int:
        """Bytes that must be freed before `charged` more can be held."""
        missing = charged - self._budget.free
        return missing if self.capacity is None else max(missing, self._lease.nbytes + charged - self.capacity)

    def _settle(self) -> bool:
        """Waits for the transfers of blocks that nobody uses, because these can be evicted when they have arrived."""
        if transferring():
            return False
        with self.lock:
            tickets = [entry.ticket for entry in self.entries.values() if not entry.locks and not entry.ticket.done]
        for ticket in tickets:
            ticket.join()
        return bool(tickets)

    def _shrink(self, nbytes: int) -> None:
        with self.lock:
            target = max(0, self._lease.nbytes - nbytes)
            self.give_back(nbytes)
            kinds: list[Allowed] = [lambda entry: not entry.guards, lambda entry: True]
            for allowed in kinds:
                while self._lease.nbytes > target and (entry := self.coldest(allowed)) is not None:
                    self.evict(entry)
                    self.give_back(self.spares.nbytes)
            for entry in list(self.entries.values()):  # transfers that have not begun
                if self._lease.nbytes <= target:
                    return
                if not entry.locks and entry.stop():
                    self.evict(entry)
                    self.give_back(self.spares.nbytes)


class Owner(Protocol):
    """The owner of blocks, to which their handles return them."""

    def forget(self, entry: CachedBlock) -> None:
        """Drops a block whose transfer has failed."""

    def unlock(self, entry: CachedBlock) -> None:
        """Takes back the lock of a handle that was released."""


class Handle:
    """A locked block that is in memory or on its way there. It stays until `release`. A context manager.

    Attributes:
        entry: the block, for its owner; None after `release`.
        hit: whether the block was in memory, or on its way, before it was requested.
    """

    __slots__ = ("_owner", "entry", "hit")

    def __init__(self, owner: Owner, entry: CachedBlock, hit: bool) -> None:
        self._owner = owner
        self.entry: CachedBlock | None = entry
        self.hit = hit

    @property
    def ready(self) -> bool:
        """Whether the bytes have arrived, or their transfer has failed. In the latter case `wait` raises the error."""
        assert self.entry is not None
        return self.entry.ticket.done

    def wait(self) -> Any:
        """Waits for the bytes and returns them; they are valid until `release`.

        Raises:
            CorruptBlock, StorageError: the transfer failed. The block is dropped, and read again at the next request.
        """
        assert self.entry is not None
        try:
            self.entry.ticket.wait()
        except BaseException:
            self._owner.forget(self.entry)
            raise
        return self.entry.buffer

    def release(self) -> None:
        """Unlocks the block. Releasing twice is harmless."""
        entry, self.entry = self.entry, None
        if entry is not None:
            self._owner.unlock(entry)

    def __enter__(self) -> Handle:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()
