"""Residency: which blocks are in memory, which of them stay there, and which give way.

A block is pinned (other blocks never push it out), cached (a policy says who goes first) or cold (on disk only). All
bytes of one residency are under one lease. It grows into what the ledger has free and never at another cache's cost;
beyond that its own coldest blocks make room. A handle locks a block while somebody reads it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from types import TracebackType

from edge.budget import MemoryBudget
from edge.buffers import ENTRY_NBYTES, Bytes, Spares, charge_of, page_buffer, pages_of
from edge.eviction import LRU, Policy
from edge.lanes import Ticket
from edge.trace import Trace
from edge.worth import NEVER

Fetch = Callable[[Bytes], Ticket]
"""Starts the transfer of a block into the buffer it is given."""


_SPARE = 64
"""Such a part of the bytes held may be buffers without a block."""


@dataclass(slots=True, eq=False)
class _Entry:
    """A block that has a buffer. `ahead`: fetched on a prediction, and nobody has asked for it yet. `whole`: its buffer
    with what is beyond the block."""

    key: Hashable
    buffer: Bytes
    whole: Bytes
    charged: int
    ticket: Ticket
    round: int
    locks: int = 0
    guards: set[object] = field(default_factory=set)
    ahead: bool = False
    pinned: bool = False
    present: bool = True


class Handle:
    """A block that is in memory or on its way there, and stays until `release`. A context manager.

    Attributes:
        hit: it was there, or on its way, before it was asked for.
    """

    __slots__ = ("_entry", "_residency", "hit")

    def __init__(self, residency: Residency, entry: _Entry, hit: bool) -> None:
        self._residency = residency
        self._entry: _Entry | None = entry
        self.hit = hit

    @property
    def ready(self) -> bool:
        """The bytes have arrived (or their transfer has failed, which `wait` raises)."""
        assert self._entry is not None
        return self._entry.ticket.done

    def wait(self) -> Bytes:
        """The bytes, once they are there; valid until `release`.

        Raises:
            CorruptBlock, StorageError: what the transfer met; the block is forgotten, and read again when asked for.
        """
        assert self._entry is not None
        try:
            self._entry.ticket.wait()
        except BaseException:
            self._residency._forget(self._entry)
            raise
        return self._entry.buffer

    def release(self) -> None:
        """Lets the block go; releasing twice is harmless."""
        entry, self._entry = self._entry, None
        if entry is not None:
            self._residency._unlock(entry)

    def __enter__(self) -> Handle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class Residency:
    """The blocks of one place (host memory, a device). Thread-safe.

    Counters (in `trace`): `<name>.hits` (asked for and there or on its way), `.misses`, `.streamed` (misses that found
    no room), `.evictions`, `.ahead` (blocks fetched on a prediction), `.ahead_used`.
    """

    def __init__(
        self,
        budget: MemoryBudget,
        *,
        policy: Policy | None = None,
        capacity: int | None = None,
        allocate: Callable[[int], Bytes] | None = None,
        name: str = "lists",
        loss: float = 0.5,
        trace: Trace | None = None,
    ) -> None:
        """Takes no memory yet.

        Args:
            policy: who goes first; least recently used if not given.
            capacity: at most so many bytes, however much is free; None for no bound of its own.
            allocate: makes a buffer of so many bytes; pages of this process if not given.
            name: of the owner in the ledger, and of the counters.
            loss: see `MemoryBudget.add_shrinker`.
        """
        self.name = name
        self.trace = trace or Trace()
        self.capacity = capacity
        self._budget = budget
        self._policy = policy or LRU()
        self._allocate = allocate or page_buffer
        self._entries: dict[Hashable, _Entry] = {}
        self._spares = Spares()
        self._round = 0
        self._lock = threading.RLock()  # taken inside the ledger's wherever the lease may change
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

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._entries

    def keys(self) -> list[Hashable]:
        """Blocks that are in memory or on their way."""
        with self._lock:
            return list(self._entries)

    def begin_round(self) -> int:
        """Starts a round of use (one search); what is used in it makes no room for its own later misses."""
        with self._lock:
            self._round += 1
            self._policy.begin_round()
            return self._round

    def claim(self, blocks: Sequence[tuple[Hashable, Fetch]], now: int) -> list[Handle | None]:
        """The blocks that are in memory or on their way; None for those that are cold, which count neither as hit nor
        as miss.

        Args:
            blocks: key of each, and its transfer: called when a prediction has asked for the block but its transfer has
                not begun; it is asked for again, as something that is needed.
            now: the round they are used in.
        """
        with self._budget.locked(), self._lock:
            handles = [self._claim(key, fetch, now) for key, fetch in blocks]
            self.trace.count(f"{self.name}.hits", sum(handle is not None for handle in handles))
        return handles

    def admit(self, key: Hashable, nbytes: int, fetch: Fetch, now: int, *, evict: bool = True) -> Handle | None:
        """Takes room for a cold block and starts its transfer; None if there is no room.

        Args:
            nbytes: of the block.
            evict: blocks last used before round `now` may give way; without, only free memory is taken.
        """
        with self._budget.locked(), self._lock:
            if (handle := self._claim(key, fetch, now)) is not None:
                self.trace.count(f"{self.name}.hits")
                return handle
            self.trace.count(f"{self.name}.misses")
            older = (lambda entry: not entry.guards and entry.round < now) if evict else None
            if key in self._entries or not self._make_room(charge_of(nbytes), older):
                self.trace.count(f"{self.name}.streamed")
                return None
            entry = self._enter(key, nbytes, fetch)
            entry.locks += 1
            entry.round = now
            return Handle(self, entry, hit=False)

    def absent(self, keys: Iterable[Hashable]) -> list[Hashable]:
        """Those of `keys` that are neither in memory nor on their way."""
        with self._lock:
            return [key for key in keys if not self._coming(self._entries.get(key))]

    def ages(self) -> dict[Hashable, int]:
        """Rounds since each block's last use, 0 in the last round; `NEVER` if it was fetched on a prediction only."""
        with self._lock:
            return {key: self._age(entry) for key, entry in self._entries.items()}

    def prefetch(
        self,
        owner: object,
        blocks: Iterable[tuple[Hashable, int, Fetch]],
        limit: int,
        displaces: Callable[[int], bool] = lambda age: True,
        guard: bool = True,
    ) -> int | None:
        """Fetches blocks on a prediction, all or none of them.

        Args:
            blocks: key, size and transfer of each.
            limit: at most so many bytes may be asked for.
            displaces: whether a block of an age (see `ages`) may make room.
            guard: other blocks' misses do not push them out until `unguard`, though the ledger may.

        Returns:
            Bytes that had to be asked for; None, and nothing is fetched, if they are too many or do not fit.
        """
        with self._budget.locked(), self._lock:
            wanted = list(blocks)
            cold = [block for block in wanted if not self._coming(self._entries.get(block[0]))]
            asked = sum(nbytes for _, nbytes, _ in cold)
            if asked > limit or not self._clear(
                [key for key, *_ in wanted], sum(charge_of(n) for _, n, _ in cold), displaces
            ):
                return None
            later = sum(charge_of(nbytes) for _, nbytes, _ in cold)
            for key, nbytes, fetch in cold:
                later -= charge_of(nbytes)
                self._enter(key, nbytes, fetch, later).ahead = True
                self.trace.count(f"{self.name}.ahead")
            for key, *_ in wanted if guard else ():
                self._entries[key].guards.add(owner)
        return asked

    def withdraw(self, keys: Iterable[Hashable]) -> None:
        """Forgets those of `keys` that were predicted, that nobody has asked for, and whose transfer has not begun."""
        with self._budget.locked(), self._lock:
            for key in keys:
                entry = self._entries.get(key)
                if entry is not None and entry.ahead and (entry.ticket.cancel() or entry.ticket.cancelled):
                    self._drop(entry)

    def unguard(self, owner: object, keys: Iterable[Hashable]) -> None:
        """Ends `owner`'s protection of predicted blocks."""
        with self._lock:
            for key in keys:
                if (entry := self._entries.get(key)) is not None:
                    entry.guards.discard(owner)

    def pin(self, keys: Iterable[Hashable]) -> None:
        """Makes exactly the blocks of `keys` that are in memory pinned; all others are cached."""
        chosen = set(keys)
        with self._lock:
            for key, entry in self._entries.items():
                if entry.pinned != (key in chosen):
                    entry.pinned = not entry.pinned
                    (self._policy.remove if entry.pinned else self._policy.insert)(key)

    def trim(self, share: float) -> None:
        """Evicts the coldest until cached blocks hold at most `share` of the room (TeleRAG's cache fraction: what is
        left is for the next prefetch). Guarded and pinned blocks stay."""
        with self._budget.locked(), self._lock:
            while self.nbytes > share * self.room:
                if self._give_back(1):
                    continue
                entry = self._coldest(lambda entry: not entry.guards)
                if entry is None:
                    return
                self._evict(entry)

    def discard(self, keys: Iterable[Hashable]) -> None:
        """Forgets blocks that will not be asked for again."""
        with self._budget.locked(), self._lock:
            for key in keys:
                entry = self._entries.get(key)
                if entry is not None and not entry.locks and self._stopped(entry):
                    self._drop(entry)

    def close(self) -> None:
        """Waits for transfers under way and gives all memory back; no handle may be in use."""
        with self._budget.locked(), self._lock:
            for entry in list(self._entries.values()):
                entry.ticket.settle()
                self._drop(entry)
            self._give_back(self._spares.nbytes)
            self._unregister()

    def _claim(self, key: Hashable, fetch: Fetch, now: int) -> Handle | None:
        entry = self._entries.get(key)
        if entry is None or not self._usable(entry, fetch):
            return None
        if entry.ahead:
            entry.ahead = False
            self.trace.count(f"{self.name}.ahead_used")
        entry.locks += 1
        entry.round = max(entry.round, now)
        if not entry.pinned:
            self._policy.touch(key)
        return Handle(self, entry, hit=True)

    def _usable(self, entry: _Entry, fetch: Fetch) -> bool:
        """The bytes are there or certain to come. A prediction's transfer that has not begun is asked for anew; one
        that has failed is forgotten, so that the disk is asked again."""
        if entry.ticket.done and entry.ticket.failed:
            self._forget(entry)
            return False
        if (entry.ahead and entry.ticket.cancel()) or entry.ticket.cancelled:
            entry.ticket = fetch(entry.buffer)
        return True

    @staticmethod
    def _coming(entry: _Entry | None) -> bool:
        """The bytes are there, or on their way as far as is known."""
        return entry is not None and not entry.ticket.cancelled and not entry.ticket.failed

    def _clear(self, keys: Sequence[Hashable], charged: int, displaces: Callable[[int], bool]) -> bool:
        """Makes room for blocks that are predicted, not at each other's cost; drops what is left of those that once
        failed to arrive."""
        for key in keys:
            entry = self._entries.get(key)
            if entry is not None and not self._coming(entry):
                if entry.locks:
                    return False
                self._drop(entry)
        spared = set(keys)
        return self._make_room(
            charged, lambda entry: not entry.guards and entry.key not in spared and displaces(self._age(entry))
        )

    def _age(self, entry: _Entry) -> int:
        return NEVER if entry.ahead else self._round - entry.round

    def _enter(self, key: Hashable, nbytes: int, fetch: Fetch, later: int = 0) -> _Entry:
        """Takes in a block for which room was made, as for further ones that are charged with `later` in all."""
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
            buffer = whole[:nbytes]
            entry = _Entry(key, buffer, whole, charged, fetch(buffer), self._round)
        except BaseException:
            self._lease.resize(self._lease.nbytes - charged)
            raise
        self._entries[key] = entry
        self._policy.insert(key)
        return entry

    def _missing(self, charged: int) -> int:
        """Bytes that must be freed before so many more can be held."""
        missing = charged - self._budget.free
        return missing if self.capacity is None else max(missing, self._lease.nbytes + charged - self.capacity)

    def _make_room(self, charged: int, allowed: Callable[[_Entry], bool] | None) -> bool:
        """Evicts the coldest of those that are `allowed` until so much is free; nothing if that is not enough.

        Spare buffers are counted on only when nobody is left to evict; the more there are, the likelier one fits, so
        that a few more blocks go than must.
        """
        missing = self._missing(charged)
        chosen: dict[Hashable, _Entry] = {}
        wanted = self._lease.nbytes // _SPARE - self._spares.nbytes
        spare = charged if missing > 0 and wanted >= charged else 0
        while missing > 0 or -missing < spare:
            entry = None if allowed is None else self._coldest(allowed, chosen)
            if entry is None and missing <= self._spares.nbytes:
                break
            if entry is None:
                return False
            chosen[entry.key] = entry
            missing -= entry.charged
        for entry in chosen.values():
            self._evict(entry)
        return True

    def _coldest(self, allowed: Callable[[_Entry], bool], spared: Container[Hashable] = ()) -> _Entry | None:
        """The cached block that goes first among those that nobody uses and that have arrived."""

        def evictable(key: Hashable) -> bool:
            entry = self._entries[key]
            return not entry.locks and entry.ticket.done and key not in spared and allowed(entry)

        key = self._policy.victim(evictable)
        return None if key is None else self._entries[key]

    def _evict(self, entry: _Entry) -> None:
        """Takes out a block; its buffer is kept for another one of its size, as far as spare buffers may go."""
        whole, spare = entry.whole, not entry.locks
        self._drop(entry)
        self.trace.count(f"{self.name}.evictions")
        if spare and self._spares.put(whole):
            self._lease.resize(self._lease.nbytes + pages_of(whole.nbytes))
            self._give_back(self._spares.nbytes - self._lease.nbytes // _SPARE)

    def _give_back(self, nbytes: int) -> int:
        """Returns spare buffers to the system, at least so many bytes of them if there are; returns how many."""
        freed = self._spares.release(nbytes)
        if freed:
            self._lease.resize(self._lease.nbytes - freed)
        return freed

    def _shrink(self, nbytes: int) -> None:
        with self._lock:
            target = max(0, self._lease.nbytes - nbytes)
            self._give_back(nbytes)
            kinds: list[Callable[[_Entry], bool]] = [lambda entry: not entry.guards, lambda entry: True]
            for allowed in kinds:
                while self._lease.nbytes > target and (entry := self._coldest(allowed)) is not None:
                    self._evict(entry)
                    self._give_back(self._spares.nbytes)
            for entry in list(self._entries.values()):  # predictions that have not begun, and what is pinned
                if self._lease.nbytes <= target:
                    return
                if not entry.locks and self._stopped(entry):
                    self._evict(entry)
                    self._give_back(self._spares.nbytes)

    @staticmethod
    def _stopped(entry: _Entry) -> bool:
        """Nothing writes into the buffer any more; a transfer that has not begun is withdrawn."""
        return entry.ticket.done or entry.ticket.cancel()

    def _forget(self, entry: _Entry) -> None:
        """A transfer has failed: the block counts as cold, its memory goes back with the last handle."""
        with self._budget.locked(), self._lock:
            if entry.present:
                self._drop(entry)

    def _unlock(self, entry: _Entry) -> None:
        with self._lock:
            entry.locks -= 1
            gone = not entry.locks and not entry.present
        if gone:  # nobody else can reach it any more
            with self._budget.locked(), self._lock:
                self._free(entry)

    def _drop(self, entry: _Entry) -> None:
        del self._entries[entry.key]
        if not entry.pinned:
            self._policy.remove(entry.key)
        entry.present = False
        if not entry.locks:
            self._free(entry)

    def _free(self, entry: _Entry) -> None:
        self._lease.resize(self._lease.nbytes - entry.charged)
