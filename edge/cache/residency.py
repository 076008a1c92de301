"""Residency: the blocks in memory, the ones that stay there, and the ones that are evicted.

All bytes are under one lease, which grows only into free memory. Held blocks (`Residency.hold`) are the exception:
other caches shrink for them, and they stay until the ledger would otherwise refuse a reservation."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Container, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from edge.budget import MemoryBudget
from edge.cache.cached_block import (
    ENTRY_NBYTES,
    CachedBlock,
    DecayedHotness,
    Fetch,
    Policy,
    Spares,
    charge_of,
    page_buffer,
    pages_of,
)
from edge.errors import BudgetExceeded, DeviceLost
from edge.link import LinkRate, transferring
from edge.trace import Trace


@dataclass(frozen=True, slots=True)
class Admitted:
    """Predicted blocks that were admitted: their bytes, and the keys evicted for them."""

    asked: int
    displaced: Sequence[Hashable] = ()


Allowed = Callable[[CachedBlock], bool]
"""Whether a block may be evicted."""

SPARE = 64
"""Spare buffers may take at most this fraction (1/64) of the bytes held."""

_HELD = object()
"""Guards the blocks that are held."""

_SMOOTHING = 0.2
"""Weight of the last round in the average share of blocks that a round uses."""


class Residency:
    """The blocks of one place (host memory, a device). Thread-safe.

    Counters (in `trace`): `<name>.hits` (requested blocks in memory or on their way), `.misses`, `.streamed` (misses
    for which there was no room), `.evictions`, `.ahead` (blocks fetched on a prediction), `.ahead_used`.
    """

    def __init__(
        self,
        budget: MemoryBudget,
        *,
        policy: Policy | None = None,
        capacity: int | None = None,
        allocate: Callable[[int], Any] | None = None,
        name: str = "lists",
        rate: LinkRate | None = None,
        trace: Trace | None = None,
    ) -> None:
        """Holds no memory yet. `capacity` bounds the bytes held; `allocate` makes a buffer, which frees its memory with
        its last reference; by `rate`, the speed of the link, the value of a cached block is estimated."""
        self.name = name
        self.trace = trace or Trace()
        self._rate = rate or LinkRate()
        self._used = 0  # blocks, in this round
        self._share = 1.0
        self._entries: dict[Hashable, CachedBlock] = {}
        self._policy = policy or DecayedHotness()
        self._capacity = capacity
        self._spares = Spares()
        self._allocate = allocate or page_buffer
        self._budget = budget
        self._lock = threading.RLock()  # taken inside the ledger's lock
        self._round = 0
        self._lease = budget.reserve(name, 0)
        self._unregister = [budget.add_shrinker(name, self._shrink, loss=self.loss, settle=self._settle)]

    @property
    def nbytes(self) -> int:
        return self._lease.nbytes

    @property
    def room(self) -> int:
        """Bytes that could be held now: those that are held, and those that the ledger has free."""
        free = self._lease.nbytes + max(0, self._budget.free)
        return free if self._capacity is None else min(free, self._capacity)

    @property
    def usable(self) -> int:
        """Bytes of blocks that fit into `room`, since a part of it is kept for spare buffers."""
        return self.room - self.room // SPARE

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._entries

    def keys(self) -> list[Hashable]:
        with self._lock:
            return list(self._entries)

    def loss(self) -> float:
        """Seconds that the next round takes longer for each byte given back (see `edge.budget.Loss`)."""
        count = len(self._entries)
        return self._share * self._rate.loss(self.nbytes / count if count else 0)

    def begin_round(self) -> int:
        """Starts a round of use (one search), and returns its number. A round's misses do not evict its own blocks."""
        with self._lock:
            if self._round and self._entries:
                self._share += _SMOOTHING * (min(1.0, self._used / len(self._entries)) - self._share)
            self._used = 0
            self._round += 1
            self._policy.begin_round()
            return self._round

    def claim(self, blocks: Sequence[tuple[Hashable, Fetch]], now: int) -> list[Handle | None]:
        """Locks blocks that are in memory or on their way, for round `now`; None for cold ones, which count neither as
        hit nor miss. A block on its way for a prediction gets the priority of a needed one."""
        with self._budget.lock, self._lock:
            handles = [self._claim(key, fetch, now) for key, fetch in blocks]
            self.trace.count(f"{self.name}.hits", sum(handle is not None for handle in handles))
        return handles

    def admit(self, key: Hashable, nbytes: int, fetch: Fetch, now: int, *, evict: bool = True) -> Handle | None:
        """Makes room for a cold block and starts its transfer; None if there is no room. With `evict`, blocks last used
        before round `now` may be evicted."""
        with self._budget.lock, self._lock:
            if (handle := self._claim(key, fetch, now)) is not None:
                self.trace.count(f"{self.name}.hits")
                return handle
            self.trace.count(f"{self.name}.misses")
            older = (lambda entry: not entry.guards and entry.round < now) if evict else None
            if key in self._entries or self._make_room(charge_of(nbytes), older) is None:
                self.trace.count(f"{self.name}.streamed")
                return None
            try:
                entry = self._enter(key, nbytes, fetch, self._round)
            except BudgetExceeded:  # raised for the host memory that belongs to a block on a device
                self.trace.count(f"{self.name}.streamed")
                return None
            entry.locks += 1
            entry.round = now
            self._used += 1
            return Handle(self, entry, hit=False)

    def recall(self, handle: Handle) -> bool:
        """Withdraws a locked block; False, and nothing changes, if its transfer has begun or others use it."""
        with self._budget.lock, self._lock:
            entry = handle.entry
            if entry is None or entry.locks > 1 or entry.guards or entry.ticket.done or not entry.ticket.cancel():
                return False
            self._drop(entry)
        handle.release()
        return True

    def held(self, key: Hashable) -> Handle | None:
        with self._lock:
            entry = self._entries.get(key)
            if entry is None or not entry.ticket.done or not entry.coming:
                return None
            entry.locks += 1
            return Handle(self, entry, hit=True)

    def absent(self, keys: Iterable[Hashable]) -> list[Hashable]:
        with self._lock:
            return [key for key in keys if not self._coming(key)]

    def fork(self) -> tuple[dict[Hashable, int], Policy]:
        """Charged bytes of the blocks in memory or on their way, and a copy of the policy, for a simulation."""
        with self._lock:
            return {key: entry.charged for key, entry in self._entries.items()}, self._policy.copy()

    def guard(self, owner: object, keys: Iterable[Hashable]) -> list[Hashable]:
        """Protects those of `keys` that are there or coming from all but the ledger, and returns them."""
        with self._lock:
            found = [key for key in keys if self._coming(key)]
            for key in found:
                self._entries[key].guards.add(owner)
            return found

    def prefetch(self, owner: object, blocks: Iterable[tuple[Hashable, int, Fetch]], limit: int) -> Admitted | None:
        """Fetches and guards blocks (key, size, transfer) on a prediction; None, and none is fetched, if that needs
        more than `limit` bytes or they do not fit."""
        with self._budget.lock, self._lock:
            wanted = list(blocks)
            cold = [block for block in wanted if not self._coming(block[0])]
            asked = sum(nbytes for _, nbytes, _ in cold)
            displaced = None
            if asked <= limit:
                displaced = self._clear([key for key, *_ in wanted], sum(charge_of(n) for _, n, _ in cold))
            if displaced is None:
                return None
            later = sum(charge_of(nbytes) for _, nbytes, _ in cold)
            for key, nbytes, fetch in cold:
                later -= charge_of(nbytes)
                try:
                    self._enter(key, nbytes, fetch, self._round, later).ahead = True
                except (BudgetExceeded, DeviceLost):
                    return None
                self.trace.count(f"{self.name}.ahead")
            for key, *_ in wanted:
                self._entries[key].guards.add(owner)
        return Admitted(asked, displaced)

    def hold(self, blocks: Sequence[tuple[Hashable, int, Fetch]], beside: int) -> int:
        """Holds blocks in memory, the most important first, in place of those that are held now, and returns how many.
        Other caches shrink for them, but leave `beside` bytes of the ledger free."""
        with self._budget.lock, self._lock:
            if len(self._unregister) == 1:
                shrink = partial(self._shrink, held=True)
                self._unregister.append(self._budget.add_shrinker(f"held {self.name}", shrink, loss=math.inf))
            wanted = {key for key, _, _ in blocks}
            for held in self._entries.values():  # first, so that none is evicted for another
                (held.guards.add if held.key in wanted else held.guards.discard)(_HELD)
            for number, (key, nbytes, fetch) in enumerate(blocks):
                if self._coming(key):
                    continue
                charged = charge_of(nbytes)
                self._budget.make_room(charged + beside, below=math.inf)
                if self._budget.free < charged + beside or self._clear([key], charged) is None:
                    return self._held_before(blocks, number)
                try:
                    entry = self._enter(key, nbytes, fetch, self._round)
                except (BudgetExceeded, DeviceLost):
                    return self._held_before(blocks, number)
                entry.ahead = True
                entry.guards.add(_HELD)
                self.trace.count(f"{self.name}.ahead")
            return len(blocks)

    def _held_before(self, blocks: Sequence[tuple[Hashable, int, Fetch]], end: int) -> int:
        for key, _, _ in blocks[end:]:
            if (entry := self._entries.get(key)) is not None:
                entry.guards.discard(_HELD)
        return end

    def withdraw(self, owner: object, keys: Iterable[Hashable]) -> None:
        """Drops those of `keys` that were only predicted, by nobody else, and whose transfer has not begun."""
        with self._budget.lock, self._lock:
            for key in keys:
                entry = self._entries.get(key)
                if entry is None or not entry.ahead or entry.guards - {owner}:
                    continue
                if entry.ticket.cancel() or entry.ticket.cancelled:
                    self._drop(entry)

    def unguard(self, owner: object, keys: Iterable[Hashable]) -> None:
        """Ends `owner`'s protection of these blocks."""
        with self._lock:
            for key in keys:
                if (entry := self._entries.get(key)) is not None:
                    entry.guards.discard(owner)

    def trim(self, share: float) -> None:
        """Evicts the coldest unguarded blocks until at most `share` of the room is held (TeleRAG's cache fraction)."""
        with self._budget.lock, self._lock:
            while self.nbytes > share * self.room:
                if self._give_back(1):
                    continue
                entry = self._coldest(lambda entry: not entry.guards)
                if entry is None:
                    return
                self._evict(entry)

    def discard(self, keys: Iterable[Hashable]) -> None:
        with self._budget.lock, self._lock:
            for key in keys:
                entry = self._entries.get(key)
                if entry is not None and not entry.locks and entry.stop():
                    self._drop(entry)

    def forget(self, entry: CachedBlock) -> None:
        """Drops a block whose transfer has failed. Its memory is freed with the last handle."""
        with self._budget.lock, self._lock:
            if entry.present:
                self._drop(entry)

    def unlock(self, entry: CachedBlock) -> None:
        """Takes back the lock of a handle. A dropped block's memory is freed with its last lock."""
        with self._lock:
            entry.locks -= 1
            gone = not entry.locks and not entry.present
        if gone:  # no other code can reach it any more
            with self._budget.lock, self._lock:
                self._free(entry)

    def close(self) -> None:
        """Waits for running transfers, and releases all memory. No handle may be in use."""
        with self._budget.lock, self._lock:
            for entry in list(self._entries.values()):
                entry.ticket.settle()
                self._drop(entry)
            self._give_back(self._spares.nbytes)
            while self._unregister:
                self._unregister.pop()()

    def _claim(self, key: Hashable, fetch: Fetch, now: int) -> Handle | None:
        entry = self._entries.get(key)
        if entry is None or not self._usable(entry, fetch):
            return None
        if entry.ahead:
            entry.ahead = False
            self.trace.count(f"{self.name}.ahead_used")
            self._policy.remove(key)  # being fetched ahead was no use of it
            self._policy.insert(key)
        entry.locks += 1
        self._used += entry.round < now
        entry.round = max(entry.round, now)
        self._policy.touch(key)
        return Handle(self, entry, hit=True)

    def _usable(self, entry: CachedBlock, fetch: Fetch) -> bool:
        """Whether the bytes are in memory or certain to come. A transfer that failed is dropped."""
        if entry.ticket.done and entry.ticket.failed:
            self.forget(entry)
            return False
        if (entry.ahead and entry.ticket.cancel()) or entry.ticket.cancelled:
            entry.ticket = fetch(entry.buffer)
        return True

    def _coming(self, key: Hashable) -> bool:
        entry = self._entries.get(key)
        return entry is not None and entry.coming

    def _clear(self, keys: Sequence[Hashable], charged: int) -> list[Hashable] | None:
        """Makes room for predicted blocks without evicting any of them; the evicted keys, None without room."""
        for key in keys:
            entry = self._entries.get(key)
            if entry is not None and not entry.coming:
                if entry.locks:
                    return None
                self._drop(entry)
        spared = set(keys)
        return self._make_room(charged, lambda entry: not entry.guards and entry.key not in spared)

    # The methods below are called with the lock held, and inside the ledger's lock if they may change the lease.

    def _enter(self, key: Hashable, nbytes: int, fetch: Fetch, now: int, later: int = 0) -> CachedBlock:
        """Adds a block in round `now`. Room must have been made for it, and for later blocks of `later` bytes."""
        whole = self._spares.fitting(nbytes)
        if whole is not None and self._missing(ENTRY_NBYTES + later) <= self._spares.nbytes - pages_of(whole.nbytes):
            self._spares.take(whole)
            charged = charge_of(whole.nbytes)
            self._give_back(self._missing(ENTRY_NBYTES))
            self._lease.resize(self._lease.nbytes + ENTRY_NBYTES)
        else:
            whole, charged = None, charge_of(nbytes)
            self._give_back(self._missing(charged))
            self._lease.resize(self._lease.nbytes + charged)
        try:
            if whole is None:
                whole = self._allocate(nbytes)
            buffer = whole[:nbytes] if isinstance(whole, np.ndarray) else whole
            entry = CachedBlock(key, buffer, whole, charged, fetch(buffer), now)
        except BaseException:
            self._lease.resize(self._lease.nbytes - charged)
            raise
        self._entries[key] = entry
        self._policy.insert(key)
        return entry

    def _make_room(self, charged: int, allowed: Allowed | None) -> list[Hashable] | None:
        """Evicts the coldest `allowed` blocks until `charged` bytes are free, and returns their keys; None, and nothing
        is evicted, if that is impossible. A few more go than necessary, because with more spare buffers one is more
        likely to fit."""
        missing = self._missing(charged)
        chosen: dict[Hashable, CachedBlock] = {}
        wanted = self._lease.nbytes // SPARE - self._spares.nbytes
        spare = charged if missing > 0 and wanted >= charged else 0
        while missing > 0 or -missing < spare:
            entry = None if allowed is None else self._coldest(allowed, chosen)
            if entry is None and missing <= self._spares.nbytes:
                break
            if entry is None:
                return None
            chosen[entry.key] = entry
            missing -= entry.charged
        for entry in chosen.values():
            self._evict(entry)
        return list(chosen)

    def _coldest(self, allowed: Allowed, spared: Container[Hashable] = ()) -> CachedBlock | None:
        """The next block to evict: it is not in use, has arrived, is `allowed`, and is not `spared`."""

        def evictable(key: Hashable) -> bool:
            entry = self._entries[key]
            return not entry.locks and entry.ticket.done and key not in spared and allowed(entry)

        key = self._policy.victim(evictable)
        return None if key is None else self._entries[key]

    def _evict(self, entry: CachedBlock) -> None:
        """Removes a block. Its buffer becomes a spare one, as far as there is room for spares."""
        whole = entry.whole
        self._drop(entry)
        self.trace.count(f"{self.name}.evictions")
        if self._spares.put(whole):
            self._lease.resize(self._lease.nbytes + pages_of(whole.nbytes))
            self._give_back(self._spares.nbytes - self._lease.nbytes // SPARE)

    def _give_back(self, nbytes: int) -> int:
        """Frees spare buffers of at least `nbytes` bytes, or all of them; returns the number of bytes freed."""
        freed = self._spares.release(nbytes)
        if freed:
            self._lease.resize(self._lease.nbytes - freed)
        return freed

    def _drop(self, entry: CachedBlock) -> None:
        """Removes a block from the cache. Its memory is freed now, or with its last handle if it is in use."""
        del self._entries[entry.key]
        self._policy.remove(entry.key)
        entry.present = False
        if not entry.locks:
            self._free(entry)

    def _free(self, entry: CachedBlock) -> None:
        self._lease.resize(self._lease.nbytes - entry.charged)

    def _missing(self, charged: int) -> int:
        missing = charged - self._budget.free
        return missing if self._capacity is None else max(missing, self._lease.nbytes + charged - self._capacity)

    def _settle(self) -> bool:
        """Waits for the transfers of blocks that nobody uses, because these can be evicted when they have arrived."""
        if transferring():
            return False
        with self._lock:
            tickets = [entry.ticket for entry in self._entries.values() if not entry.locks and not entry.ticket.done]
        for ticket in tickets:
            ticket.join()
        return bool(tickets)

    def _shrink(self, nbytes: int, *, held: bool = False) -> None:
        with self._lock:
            target = max(0, self._lease.nbytes - nbytes)
            self._give_back(nbytes)
            kinds: list[Allowed] = [lambda entry: not entry.guards, lambda entry: held or _HELD not in entry.guards]
            for allowed in kinds:
                while self._lease.nbytes > target and (entry := self._coldest(allowed)) is not None:
                    self._evict(entry)
                    self._give_back(self._spares.nbytes)
            for entry in list(self._entries.values()):  # transfers that have not begun
                if self._lease.nbytes <= target:
                    return
                if not entry.locks and kinds[1](entry) and entry.stop():
                    self._evict(entry)
                    self._give_back(self._spares.nbytes)


class Handle:
    """A locked block that is in memory or coming, until `release`. A context manager. `hit`: it was there."""

    __slots__ = ("_owner", "entry", "hit")

    def __init__(self, owner: Residency, entry: CachedBlock, hit: bool) -> None:
        self._owner = owner
        self.entry: CachedBlock | None = entry
        self.hit = hit

    @property
    def ready(self) -> bool:
        assert self.entry is not None
        return self.entry.ticket.done

    def wait(self) -> Any:
        """Waits for the bytes and returns them; they are valid until `release`."""
        assert self.entry is not None
        try:
            self.entry.ticket.wait()
        except BaseException:
            self._owner.forget(self.entry)
            raise
        return self.entry.buffer

    def release(self) -> None:
        entry, self.entry = self.entry, None
        if entry is not None:
            self._owner.unlock(entry)

    def __enter__(self) -> Handle:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()
