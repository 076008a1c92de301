"""The process's memory ledger: who holds how many bytes of the one limit, who gives way, and who must be refused.

Every large allocation is made under a `Lease`. Caches register a shrinker; when a reservation does not fit, shrinkers
are asked in the order of what giving way would cost them, and only then is the reservation refused, with the numbers.
What cannot be computed beforehand (a library's own tables) is charged by measuring how much the process grew.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import TracebackType

from edge.config import format_size
from edge.errors import BudgetExceeded, RangeError
from edge.libraries import import_nbytes
from edge.public_calls import checked_arguments
from edge.resident import Growth, anonymous_resident, measured_growth, share_heap, trim_heap

Shrinker = Callable[[int], object]
"""Asked to give back at least so many bytes, if it can, by resizing its own lease."""

Loss = Callable[[], float]
"""Seconds that the next request takes longer for each byte that a cache gives back, as far as is known now."""


_CUSHION = 1 << 20
"""Held beyond what is missing, or every search that fills a cache up would find the limit passed again."""

_LOADING = threading.RLock()
"""Held while the growth of the process is measured: two threads that load at once would each be charged with both. It
is taken before any ledger's lock, never inside it."""


class Lease:
    """Bytes of a budget held by one owner until released. A context manager."""

    def __init__(self, budget: MemoryBudget, owner: str, nbytes: int) -> None:
        self._budget = budget
        self.owner = owner
        self.nbytes = nbytes

    def resize(self, nbytes: int) -> None:
        """Changes the size; growing can ask shrinkers.

        Raises:
            BudgetExceeded: the growth does not fit; the lease keeps its old size.
        """
        self._budget._resize(self, nbytes)

    def release(self) -> None:
        """Gives all bytes back. Releasing twice is harmless."""
        self._budget._resize(self, 0)

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


@dataclass(frozen=True, slots=True)
class _Cache:
    name: str
    loss: Loss
    shrink: Shrinker


@checked_arguments
class MemoryBudget:
    """Ledger of one memory limit. Thread-safe. A shrinker runs in the thread whose reservation needs it, with the
    ledger locked, so it must not wait for another thread that may be reserving (see `locked`).

    Attributes:
        lock: what `locked` holds, for those who take it for each of many blocks.
    """

    def __init__(self, limit: int, *, baseline: int | None = None, part: bool = False) -> None:
        """Opens the ledger.

        Args:
            limit: bytes the whole process may hold.
            baseline: bytes already held by interpreter and libraries; measured now if not given.
            part: of a part only, such as a device's own memory: nothing is held yet, and what the process holds in all
                says nothing about it.

        Raises:
            BudgetExceeded: the process already holds more than the limit.
        """
        self.limit = limit
        self._part = part
        self.lock = self._lock = threading.RLock()
        self._leases: dict[int, Lease] = {}
        self._caches: list[_Cache] = []
        self._used = 0
        self._libraries: dict[str, int] = {}
        self._moves = 0  # changes of leases by threads that are not loading
        self._loader: int | None = None
        self._library_lease = Lease(self, "libraries", 0)
        self._unleased = Lease(self, "unleased", 0)
        if not part:
            share_heap()
            self.reserve("process", anonymous_resident() if baseline is None else baseline)

    @property
    def used(self) -> int:
        """Bytes under lease."""
        return self._used

    @property
    def free(self) -> int:
        """Bytes that can be reserved without asking any shrinker."""
        return self.limit - self._used

    def holders(self) -> dict[str, int]:
        """Bytes by owner, largest first."""
        with self._lock:
            sizes: dict[str, int] = {}
            for lease in self._leases.values():
                sizes[lease.owner] = sizes.get(lease.owner, 0) + lease.nbytes
        return dict(sorted(sizes.items(), key=lambda item: -item[1]))

    def reserve(self, owner: str, nbytes: int) -> Lease:
        """Takes `nbytes` for `owner`.

        Raises:
            BudgetExceeded: not enough is free even after shrinking.
        """
        lease = Lease(self, owner, 0)
        self._resize(lease, nbytes)
        return lease

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the ledger over several steps. A cache with a lock of its own that its shrinker waits for must take
        that lock inside this one, wherever it may reserve while it holds it."""
        with self._lock:
            yield

    def make_room(self, nbytes: int) -> int:
        """Asks caches to give way until `nbytes` are free, or nobody gives any more: for those that lay out their work
        in what is free before they reserve any of it.

        Returns:
            Bytes that are free now.
        """
        with self._lock:
            self._ask(lambda: nbytes)
            return self.free

    def hold_libraries(self, names: Sequence[str]) -> None:
        """Imports modules, and holds for good what the process grew by: those who use them come and go, the modules
        stay. What they may take is reserved first. A missing module is its user's business to report.

        Raises:
            BudgetExceeded: what they may take does not fit, and they are not imported; or they took more, which is
                charged when somebody asks again.
        """
        with _LOADING:
            held = self._library_lease
            for name in names:
                if name not in self._libraries:
                    most = import_nbytes([name])
                    held.resize(max(held.nbytes, sum(self._libraries.values()) + most))
                    with self._measured(most) as growth, suppress(ImportError):
                        importlib.import_module(name)
                    self._libraries[name] = growth.nbytes
            held.resize(sum(self._libraries.values()))

    def add_shrinker(self, name: str, shrink: Shrinker, *, loss: Loss | float) -> Callable[[], None]:
        """Registers a cache that can give way.

        Args:
            shrink: gives back at least the asked bytes if it can, by resizing its own lease.
            loss: seconds that the next request takes longer for each byte given back: a number, or a function that
                says what was measured so far. The cache that loses least is asked first.

        Returns:
            A function that removes the registration.
        """
        entry = _Cache(name, loss if callable(loss) else lambda: loss, shrink)
        with self._lock:
            self._caches.append(entry)

        def remove() -> None:
            with self._lock:
                if entry in self._caches:
                    self._caches.remove(entry)

        return remove

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Held by whoever loads several things one after the other: others who load anything wait until it is done."""
        with _LOADING:
            yield

    @contextmanager
    def charge(self, owner: str, most: int = 0) -> Iterator[Lease]:
        """Holds what is loaded inside, whose size nobody can compute (a module, a tokenizer's tables): `most` bytes
        while it is loaded, afterwards what the process grew by. The lease is valid after the block.

        One thread of the process loads at a time. Where others have changed the ledger meanwhile, what they took or
        gave back is part of the growth, and `most` stays the better number.

        Args:
            most: bytes that it takes at most, while it is loaded and afterwards; 0 where nobody knows.

        Raises:
            BudgetExceeded: `most` is not free, and nothing was loaded; or what was loaded does not fit, and unloading
                it is the caller's business.
        """
        with _LOADING:
            lease = self.reserve(owner, most)
            try:
                with self._measured(most) as growth:
                    yield lease
                lease.resize(growth.nbytes)
            except BaseException:
                lease.release()
                raise

    @contextmanager
    def _measured(self, most: int) -> Iterator[Growth]:
        """How much the process grows inside; `most`, if that is known, where other threads changed the ledger."""
        outer, self._loader = self._loader, threading.get_ident()
        moves = self._moves
        try:
            with measured_growth() as growth:
                yield growth
        finally:
            self._loader = outer
        if most and self._moves != moves:
            growth.nbytes = most

    def relieve(self) -> int:
        """Compares the ledger with reality. If the process holds more than the limit, what nobody has a lease for is
        held here (`unleased`), and caches give way to it, until it is gone or its bytes are needed.

        Returns:
            Anonymous resident bytes afterwards.
        """
        resident = anonymous_resident()
        if self._part:
            return resident
        if resident > self.limit:
            trim_heap()
            resident = anonymous_resident()
        with self._lock:
            missing = resident - (self._used - self._unleased.nbytes)
            wanted = max(0, missing) + _CUSHION
            if resident > self.limit:
                for cache in self._cheapest_first():
                    if (more := wanted - self._unleased.nbytes - self.free) > 0:
                        cache.shrink(more)
                self._resize(self._unleased, min(wanted, self._unleased.nbytes + self.free))
            elif self._unleased.nbytes > wanted:
                self._resize(self._unleased, wanted)
        if resident > self.limit:
            trim_heap()
            resident = anonymous_resident()
        return resident

    def _resize(self, lease: Lease, nbytes: int) -> None:
        if nbytes < 0:
            raise RangeError(f"a lease cannot hold {nbytes} bytes")
        with self._lock:
            # A cache that grows may itself be asked to give way, and then needs more.
            self._ask(lambda: nbytes - lease.nbytes)
            if (growth := nbytes - lease.nbytes) > self.free:
                self._refuse(lease.owner, growth)
            self._used += growth
            lease.nbytes = nbytes
            self._moves += self._loader != threading.get_ident()
            if nbytes:
                self._leases[id(lease)] = lease
            else:
                self._leases.pop(id(lease), None)

    def _ask(self, wanted: Callable[[], int]) -> None:
        """Asks caches until so many bytes are free, or nobody gives any more."""
        held = -1
        while (nbytes := wanted()) > self.free and self._used != held:
            held = self._used
            self._shrink(nbytes)

    def _cheapest_first(self) -> list[_Cache]:
        return sorted(self._caches, key=lambda cache: cache.loss())

    def _shrink(self, wanted: int) -> None:
        """Asks caches until `wanted` bytes are free. What counts is the ledger, not what a cache says it gave."""
        for cache in self._cheapest_first():
            if self.free >= wanted:
                return
            cache.shrink(wanted - self.free)
        if self.free < wanted and self._unleased.nbytes:
            self._resize(self._unleased, 0)  # whether what is asked for can be had after all, only trying tells

    def _refuse(self, owner: str, asked: int) -> None:
        needed = self._used + asked
        held = ", ".join(f"{name} {format_size(size)}" for name, size in self.holders().items())
        raise BudgetExceeded(
            f"{owner} needs {format_size(asked)} but {format_size(max(0, self.free))} of the "
            f"{format_size(self.limit)} memory limit is free (held: {held or 'nothing'}); "
            f"a limit of {format_size(needed, up=True)} is the smallest that works",
            owner=owner,
            asked=asked,
            free=self.free,
            needed=needed,
        )
