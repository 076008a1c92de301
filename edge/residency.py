"""Residency: which blocks are in memory, which of them stay there, and which give way.

A block is pinned (other blocks never push it out), cached (a policy says who goes first) or cold (on disk only). All
bytes of one residency are under one lease. It grows into what the ledger has free and never at another cache's cost;
beyond that its own coldest blocks make room. A handle locks a block while somebody reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from types import TracebackType
from typing import Any

from edge.block_cache import BlockCache, Entry, Fetch
from edge.budget import MemoryBudget
from edge.buffers import charge_of
from edge.errors import BudgetExceeded, DeviceLost
from edge.eviction import Policy
from edge.link_rate import LinkRate
from edge.trace import Trace
from edge.worth import NEVER

__all__ = ["Fetch", "Handle", "Residency"]

_SMOOTHING = 0.2
"""Weight of the last round in the share of blocks that a round uses."""


class Handle:
    """A block that is in memory or on its way there, and stays until `release`. A context manager.

    Attributes:
        hit: it was there, or on its way, before it was asked for.
    """

    __slots__ = ("_entry", "_residency", "hit")

    def __init__(self, residency: Residency, entry: Entry, hit: bool) -> None:
        self._residency = residency
        self._entry: Entry | None = entry
        self.hit = hit

    @property
    def ready(self) -> bool:
        """The bytes have arrived (or their transfer has failed, which `wait` raises)."""
        assert self._entry is not None
        return self._entry.ticket.done

    def wait(self) -> Any:
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
        allocate: Callable[[int], Any] | None = None,
        name: str = "lists",
        rate: LinkRate | None = None,
        trace: Trace | None = None,
    ) -> None:
        """Takes no memory yet.

        Args:
            policy: who goes first; least recently used if not given.
            capacity: at most so many bytes, however much is free; None for no bound of its own.
            allocate: makes a buffer of so many bytes; pages of this process if not given. A buffer elsewhere is any
                object; its memory goes back when nobody refers to it.
            name: of the owner in the ledger, and of the counters.
            rate: of the link that blocks come over; what a block is worth is measured by it.
        """
        self.name = name
        self.trace = trace or Trace()
        self._rate = rate or LinkRate()
        self._used = 0  # blocks, in this round
        self._share = 1.0
        self._cache = BlockCache(
            name, budget, policy=policy, capacity=capacity, allocate=allocate, loss=self.loss, trace=self.trace
        )
        self._budget = budget
        self._lock = self._cache.lock
        self._round = 0

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self._cache.nbytes

    @property
    def room(self) -> int:
        """Bytes that could be held now: what is, and what the ledger has free."""
        return self._cache.room

    def __len__(self) -> int:
        return len(self._cache.entries)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._cache.entries

    def keys(self) -> list[Hashable]:
        """Blocks that are in memory or on their way."""
        with self._lock:
            return list(self._cache.entries)

    def loss(self) -> float:
        """Seconds that the next round takes longer for each byte given back (see `edge.budget.Loss`): reading a block
        again, times the share of the blocks that a round uses."""
        count = len(self._cache.entries)
        return self._share * self._rate.loss(self._cache.nbytes / count if count else 0)

    def begin_round(self) -> int:
        """Starts a round of use (one search); what is used in it makes no room for its own later misses."""
        with self._lock:
            if self._round and self._cache.entries:
                self._share += _SMOOTHING * (min(1.0, self._used / len(self._cache.entries)) - self._share)
            self._used = 0
            self._round += 1
            self._cache.policy.begin_round()
            return self._round

    def claim(self, blocks: Sequence[tuple[Hashable, Fetch]], now: int) -> list[Handle | None]:
        """The blocks that are in memory or on their way; None for those that are cold, which count neither as hit nor
        as miss.

        Args:
            blocks: key of each, and its transfer: called when a prediction has asked for the block but its transfer has
                not begun; it is asked for again, as something that is needed.
            now: the round they are used in.
        """
        with self._budget.lock, self._lock:
            handles = [self._claim(key, fetch, now) for key, fetch in blocks]
            self.trace.count(f"{self.name}.hits", sum(handle is not None for handle in handles))
        return handles

    def admit(self, key: Hashable, nbytes: int, fetch: Fetch, now: int, *, evict: bool = True) -> Handle | None:
        """Takes room for a cold block and starts its transfer; None if there is no room.

        Args:
            nbytes: of the block.
            evict: blocks last used before round `now` may give way; without, only free memory is taken.
        """
        with self._budget.lock, self._lock:
            if (handle := self._claim(key, fetch, now)) is not None:
                self.trace.count(f"{self.name}.hits")
                return handle
            self.trace.count(f"{self.name}.misses")
            older = (lambda entry: not entry.guards and entry.round < now) if evict else None
            if key in self._cache.entries or not self._cache.make_room(charge_of(nbytes), older):
                self.trace.count(f"{self.name}.streamed")
                return None
            try:
                entry = self._cache.enter(key, nbytes, fetch, self._round)
            except BudgetExceeded:  # of what the host keeps of a block that lies elsewhere
                self.trace.count(f"{self.name}.streamed")
                return None
            entry.locks += 1
            entry.round = now
            self._used += 1
            return Handle(self, entry, hit=False)

    def held(self, key: Hashable) -> Handle | None:
        """A block whose bytes are there, for copying it elsewhere: that is no use of it, and counts as none."""
        with self._lock:
            entry = self._cache.entries.get(key)
            if entry is None or not entry.ticket.done or not entry.coming:
                return None
            entry.locks += 1
            return Handle(self, entry, hit=True)

    def absent(self, keys: Iterable[Hashable]) -> list[Hashable]:
        """Those of `keys` that are neither in memory nor on their way."""
        with self._lock:
            return [key for key in keys if not self._coming(key)]

    def ages(self) -> dict[Hashable, int]:
        """Rounds since each block's last use, 0 in the last round; `NEVER` if it was fetched on a prediction only."""
        with self._lock:
            return {key: self._age(entry) for key, entry in self._cache.entries.items()}

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
        with self._budget.lock, self._lock:
            wanted = list(blocks)
            cold = [block for block in wanted if not self._coming(block[0])]
            asked = sum(nbytes for _, nbytes, _ in cold)
            if asked > limit or not self._clear(
                [key for key, *_ in wanted], sum(charge_of(n) for _, n, _ in cold), displaces
            ):
                return None
            later = sum(charge_of(nbytes) for _, nbytes, _ in cold)
            for key, nbytes, fetch in cold:
                later -= charge_of(nbytes)
                try:
                    self._cache.enter(key, nbytes, fetch, self._round, later).ahead = True
                except (BudgetExceeded, DeviceLost):
                    return None
                self.trace.count(f"{self.name}.ahead")
            for key, *_ in wanted if guard else ():
                self._cache.entries[key].guards.add(owner)
        return asked

    def withdraw(self, keys: Iterable[Hashable]) -> None:
        """Forgets those of `keys` that were predicted, that nobody has asked for, and whose transfer has not begun."""
        with self._budget.lock, self._lock:
            for key in keys:
                entry = self._cache.entries.get(key)
                if entry is not None and entry.ahead and (entry.ticket.cancel() or entry.ticket.cancelled):
                    self._cache.drop(entry)

    def unguard(self, owner: object, keys: Iterable[Hashable]) -> None:
        """Ends `owner`'s protection of predicted blocks."""
        with self._lock:
            for key in keys:
                if (entry := self._cache.entries.get(key)) is not None:
                    entry.guards.discard(owner)

    def pin(self, keys: Iterable[Hashable]) -> None:
        """Makes exactly the blocks of `keys` that are in memory pinned; all others are cached."""
        chosen = set(keys)
        with self._lock:
            for key, entry in self._cache.entries.items():
                if entry.pinned != (key in chosen):
                    entry.pinned = not entry.pinned
                    (self._cache.policy.remove if entry.pinned else self._cache.policy.insert)(key)

    def trim(self, share: float) -> None:
        """Evicts the coldest until cached blocks hold at most `share` of the room (TeleRAG's cache fraction: what is
        left is for the next prefetch). Guarded and pinned blocks stay."""
        with self._budget.lock, self._lock:
            self._cache.trim(share)

    def discard(self, keys: Iterable[Hashable]) -> None:
        """Forgets blocks that will not be asked for again."""
        with self._budget.lock, self._lock:
            for key in keys:
                entry = self._cache.entries.get(key)
                if entry is not None and not entry.locks and entry.stop():
                    self._cache.drop(entry)

    def close(self) -> None:
        """Waits for transfers under way and gives all memory back; no handle may be in use."""
        with self._budget.lock, self._lock:
            self._cache.close()

    def _claim(self, key: Hashable, fetch: Fetch, now: int) -> Handle | None:
        entry = self._cache.entries.get(key)
        if entry is None or not self._usable(entry, fetch):
            return None
        if entry.ahead:
            entry.ahead = False
            self.trace.count(f"{self.name}.ahead_used")
        entry.locks += 1
        self._used += entry.round < now
        entry.round = max(entry.round, now)
        if not entry.pinned:
            self._cache.policy.touch(key)
        return Handle(self, entry, hit=True)

    def _usable(self, entry: Entry, fetch: Fetch) -> bool:
        """The bytes are there or certain to come. A prediction's transfer that has not begun is asked for anew; one
        that has failed is forgotten, so that the disk is asked again."""
        if entry.ticket.done and entry.ticket.failed:
            self._forget(entry)
            return False
        if (entry.ahead and entry.ticket.cancel()) or entry.ticket.cancelled:
            entry.ticket = fetch(entry.buffer)
        return True

    def _coming(self, key: Hashable) -> bool:
        entry = self._cache.entries.get(key)
        return entry is not None and entry.coming

    def _clear(self, keys: Sequence[Hashable], charged: int, displaces: Callable[[int], bool]) -> bool:
        """Makes room for blocks that are predicted, not at each other's cost; drops what is left of those that once
        failed to arrive."""
        for key in keys:
            entry = self._cache.entries.get(key)
            if entry is not None and not entry.coming:
                if entry.locks:
                    return False
                self._cache.drop(entry)
        spared = set(keys)
        return self._cache.make_room(
            charged, lambda entry: not entry.guards and entry.key not in spared and displaces(self._age(entry))
        )

    def _age(self, entry: Entry) -> int:
        return NEVER if entry.ahead else self._round - entry.round

    def _forget(self, entry: Entry) -> None:
        """A transfer has failed: the block counts as cold, its memory goes back with the last handle."""
        with self._budget.lock, self._lock:
            if entry.present:
                self._cache.drop(entry)

    def _unlock(self, entry: Entry) -> None:
        with self._lock:
            entry.locks -= 1
            gone = not entry.locks and not entry.present
        if gone:  # nobody else can reach it any more
            with self._budget.lock, self._lock:
                self._cache.free(entry)
