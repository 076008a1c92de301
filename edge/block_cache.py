"""`BlockCache`: the buffers of a residency's blocks under one lease, and who of them gives way.

What is freed is kept as spare buffers, as far as those may go: see `edge.buffers.Spares`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Hashable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from edge.budget import Loss, MemoryBudget
from edge.buffers import ENTRY_NBYTES, Spares, charge_of, page_buffer, pages_of
from edge.eviction import LRU, Policy
from edge.lanes import Ticket
from edge.trace import Trace

Fetch = Callable[[Any], Ticket]
"""Starts the transfer of a block into the buffer it is given."""

Allowed = Callable[["Entry"], bool]
"""Whether a block may be evicted."""

_SPARE = 64
"""Such a part of the bytes held may be buffers without a block."""


@dataclass(slots=True, eq=False)
class Entry:
    """A block that has a buffer.

    Attributes:
        buffer, whole: its bytes, and the buffer with what is beyond them.
        charged: bytes of the lease.
        round: of its last use.
        locks: handles that are in use.
        guards: predictions that protect it from other blocks' misses.
        ahead: fetched on a prediction, and nobody has asked for it yet.
        present: it has a place; otherwise its memory goes back with the last handle.
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
    pinned: bool = False
    present: bool = True

    @property
    def coming(self) -> bool:
        """The bytes are there, or on their way as far as is known."""
        return not self.ticket.cancelled and not self.ticket.failed

    def stop(self) -> bool:
        """Withdraws a transfer that has not begun; returns whether nothing writes into the buffer any more."""
        return self.ticket.done or self.ticket.cancel()


class BlockCache:
    """Blocks by key. All but the properties is called with `lock` held, and inside the ledger's lock wherever the lease
    may change.

    Attributes:
        entries: the blocks that have a place.
        policy: knows those of them that are not pinned.
        capacity: bytes held at most, however much is free; None for no bound.
        lock: taken inside the ledger's.
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
        self.entries: dict[Hashable, Entry] = {}
        self.policy = policy or LRU()
        self.capacity = capacity
        self.lock = threading.RLock()
        self.spares = Spares()
        self._name = name
        self._budget = budget
        self._allocate = allocate or page_buffer
        self._trace = trace
        self._lease = budget.reserve(name, 0)
        self._unregister = budget.add_shrinker(name, self._shrink, loss=loss)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self._lease.nbytes

    @property
    def room(self) -> int:
        """Bytes that could be held now: what is, and what the ledger has free."""
        free = self._lease.nbytes + max(0, self._budget.free)
        return free if self.capacity is None else min(free, self.capacity)

    def enter(self, key: Hashable, nbytes: int, fetch: Fetch, now: int, later: int = 0) -> Entry:
        """Takes in a block for which room was made, as for further ones that are charged with `later` in all.

        Args:
            now: the round.

        Raises:
            BudgetExceeded: no room was made.
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
            entry = Entry(key, buffer, whole, charged, fetch(buffer), now)
        except BaseException:
            self._lease.resize(self._lease.nbytes - charged)
            raise
        self.entries[key] = entry
        self.policy.insert(key)
        return entry

    def make_room(self, charged: int, allowed: Allowed | None) -> bool:
        """Evicts the coldest of those that are `allowed` until so much is free; nothing if that is not enough.

        Spare buffers are counted on only when nobody is left to evict; the more there are, the likelier one fits, so
        that a few more blocks go than must.
        """
        missing = self._missing(charged)
        chosen: dict[Hashable, Entry] = {}
        wanted = self._lease.nbytes // _SPARE - self.spares.nbytes
        spare = charged if missing > 0 and wanted >= charged else 0
        while missing > 0 or -missing < spare:
            entry = None if allowed is None else self.coldest(allowed, chosen)
            if entry is None and missing <= self.spares.nbytes:
                break
            if entry is None:
                return False
            chosen[entry.key] = entry
            missing -= entry.charged
        for entry in chosen.values():
            self.evict(entry)
        return True

    def coldest(self, allowed: Allowed, spared: Container[Hashable] = ()) -> Entry | None:
        """The cached block that goes first among those that nobody uses and that have arrived."""

        def evictable(key: Hashable) -> bool:
            entry = self.entries[key]
            return not entry.locks and entry.ticket.done and key not in spared and allowed(entry)

        key = self.policy.victim(evictable)
        return None if key is None else self.entries[key]

    def evict(self, entry: Entry) -> None:
        """Takes out a block; its buffer is kept for another one of its size, as far as spare buffers may go."""
        whole = entry.whole
        self.drop(entry)
        self._trace.count(f"{self._name}.evictions")
        if self.spares.put(whole):
            self._lease.resize(self._lease.nbytes + pages_of(whole.nbytes))
            self.give_back(self.spares.nbytes - self._lease.nbytes // _SPARE)

    def give_back(self, nbytes: int) -> int:
        """Returns spare buffers to the system, at least so many bytes of them if there are; returns how many."""
        freed = self.spares.release(nbytes)
        if freed:
            self._lease.resize(self._lease.nbytes - freed)
        return freed

    def drop(self, entry: Entry) -> None:
        """Takes the place of a block; its memory goes back unless it is locked."""
        del self.entries[entry.key]
        if not entry.pinned:
            self.policy.remove(entry.key)
        entry.present = False
        if not entry.locks:
            self.free(entry)

    def free(self, entry: Entry) -> None:
        """Gives the memory of a block back that has no place."""
        self._lease.resize(self._lease.nbytes - entry.charged)

    def trim(self, share: float) -> None:
        """Evicts the coldest until what is cached takes at most `share` of the room."""
        while self.nbytes > share * self.room:
            if self.give_back(1):
                continue
            entry = self.coldest(lambda entry: not entry.guards)
            if entry is None:
                return
            self.evict(entry)

    def close(self) -> None:
        """Waits for transfers under way and gives everything back."""
        for entry in list(self.entries.values()):
            entry.ticket.settle()
            self.drop(entry)
        self.give_back(self.spares.nbytes)
        self._unregister()

    def _missing(self, charged: int) -> int:
        """Bytes that must be freed before so many more can be held."""
        missing = charged - self._budget.free
        return missing if self.capacity is None else max(missing, self._lease.nbytes + charged - self.capacity)

    def _shrink(self, nbytes: int) -> None:
        with self.lock:
            target = max(0, self._lease.nbytes - nbytes)
            self.give_back(nbytes)
            kinds: list[Allowed] = [lambda entry: not entry.guards, lambda entry: True]
            for allowed in kinds:
                while self._lease.nbytes > target and (entry := self.coldest(allowed)) is not None:
                    self.evict(entry)
                    self.give_back(self.spares.nbytes)
            for entry in list(self.entries.values()):  # predictions that have not begun, and what is pinned
                if self._lease.nbytes <= target:
                    return
                if not entry.locks and entry.stop():
                    self.evict(entry)
                    self.give_back(self.spares.nbytes)
