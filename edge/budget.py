"""The process's memory ledger: the bytes each owner holds of the one limit.

Every large allocation is made under a `Lease`. If a reservation does not fit, the ledger calls the caches' shrinkers,
the cheapest first, and then refuses it. Allocations that cannot be computed beforehand are charged by the growth of the
process; `Compiling` does so for kernels. `OperationPlan` adds up the stages of an operation."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import SupportsIndex, TypeVar
from weakref import WeakSet

from edge.config import format_size
from edge.errors import ArgumentError, BudgetExceeded, RangeError
from edge.resident import Growth, anonymous_resident, measured_growth, share_heap, small_pages, trim_heap

Shrinker = Callable[[int], object]
"""Called with a number of bytes to give back. It gives back at least as many, if it can, by resizing its lease."""

Settle = Callable[[], bool]
"""Waits until blocks on their way have arrived, because they cannot be evicted before. Returns whether any were."""

Loss = Callable[[], float]
"""Returns the seconds that the next request would take longer for each byte given back, as measured so far."""


Result = TypeVar("Result")

_CUSHION = 1 << 20
"""Bytes reserved beyond those that are missing, so that not every search that fills a cache exceeds the limit again."""

_LARGE = 1 << 20
"""Bytes of a reservation before which memory is compared with the limit."""

_ledgers: WeakSet[MemoryBudget] = WeakSet()
"""All ledgers of the process. A thread that holds the lock of one must not wait for another thread."""

_LISTING = threading.Lock()
"""Held while the set of ledgers is changed or copied."""

_WAITS = 3
"""Times that a reservation waits for blocks on their way. While others read ahead, there are always some."""

_LOADING = threading.RLock()
"""Held while the growth of the process is measured. It is taken before any ledger's lock, and never inside one."""


_IMPORTED_NBYTES = {
    "edge.apps.memory.memory": 18 << 20, "edge.runtimes.embedder": 14 << 20, "edge.runtimes.reranker": 14 << 20,
    "faiss": 8 << 20, "llama_cpp": 16 << 20, "mcp.server": 28 << 20, "mcp.server.streamable_http_manager": 1 << 20,
    "mlx.core": 40 << 20, "onnx": 6 << 20, "onnxruntime": 10 << 20, "tokenizers": 3 << 19, "torch": 160 << 20,
}  # fmt: skip
"""Bounds above the values measured on Linux with Python 3.11; our modules with all that the command line imports with
them (15.4 MB for a memory, 13.2 MB for a model), the others beside numpy."""

_UNKNOWN_NBYTES = 16 << 20

SPREAD = 1 << 20
"""Bytes added to every limit in a refusal, because a process never starts with exactly the same size twice."""


def import_nbytes(names: Iterable[str]) -> int:
    """Bytes by which importing these modules grows the process, at most. Modules that are loaded add nothing."""
    return sum(_IMPORTED_NBYTES.get(name, _UNKNOWN_NBYTES) for name in names if name not in sys.modules)


class Lease:
    """Bytes of a budget held by one owner until released. A context manager."""

    def __init__(self, budget: MemoryBudget, owner: str, nbytes: int) -> None:
        self._budget = budget
        self.owner = owner
        self.nbytes = nbytes

    def resize(self, nbytes: int) -> None:
        """Changes the size. A larger size may call shrinkers; if it does not fit, the lease keeps its old size."""
        self._budget._resize(self, nbytes)

    def release(self) -> None:
        """Releases all bytes. Releasing twice is harmless."""
        self._budget._resize(self, 0)

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


@dataclass(frozen=True, slots=True)
class _Cache:
    name: str
    loss: Loss
    shrink: Shrinker
    settle: Settle | None


class MemoryBudget:
    """The ledger of one memory limit. Thread-safe.

    A shrinker runs in the thread whose reservation needs it, with the ledger locked. So it must not wait for another
    thread that may be reserving (see `locked`). Before a reservation is refused, the ledger waits for blocks on their
    way to caches, and asks again, unless the thread holds the lock of a ledger.

    Attributes:
        limit: bytes that may be held.
        used: bytes under lease.
        lock: locks the ledger over several steps. If a cache's shrinker takes the cache's own lock, the cache must take
            that lock inside this one wherever it may reserve while holding it.
    """

    def __init__(self, limit: int, *, baseline: int | None = None, part: bool = False) -> None:
        """Opens the ledger.

        Args:
            limit: bytes the whole process may hold.
            baseline: bytes already held by interpreter and libraries; measured now if not given.
            part: the limit is that of a part only, such as a device's own memory. The ledger then starts empty, and is
                not compared with the process's memory.

        Raises:
            BudgetExceeded: the process already holds more than the limit.
            ArgumentError: the limit is not a whole number.
        """
        if not isinstance(limit, SupportsIndex):
            raise ArgumentError(f"the limit of a budget is a number of bytes, not {limit!r}")
        self.limit: int = limit
        self._part = part
        self.lock = self._lock = threading.RLock()
        self._leases: dict[int, Lease] = {}
        self._caches: list[_Cache] = []
        self.used = 0
        self._libraries: dict[str, int] = {}
        self._moves = 0  # changes of leases by threads other than the loader
        self._loader: int | None = None
        self._library_lease = Lease(self, "libraries", 0)
        self._unleased = Lease(self, "unleased", 0)
        with _LISTING:
            _ledgers.add(self)
        if not part:
            share_heap()
            small_pages()
            self.reserve("process", anonymous_resident() if baseline is None else baseline)

    @property
    def free(self) -> int:
        """Bytes that can be reserved without asking any shrinker."""
        return self.limit - self.used

    def holders(self) -> dict[str, int]:
        """Bytes by owner, largest first."""
        with self._lock:
            sizes: dict[str, int] = {}
            for lease in self._leases.values():
                sizes[lease.owner] = sizes.get(lease.owner, 0) + lease.nbytes
        return dict(sorted(sizes.items(), key=lambda item: -item[1]))

    def reserve(self, owner: str, nbytes: int, *, wait: bool = True) -> Lease:
        """Reserves `nbytes` for `owner`. With `wait` it waits for blocks that cannot be evicted before they have
        arrived. BudgetExceeded if there is not enough free memory, even after shrinking."""
        lease = Lease(self, owner, 0)
        self._resize(lease, nbytes, wait=wait)
        return lease

    def waiting(self, reserve: Callable[[], Result]) -> Result:
        """Calls code that reserves while it locks the ledger. Before that is refused, the ledger waits for blocks on
        their way to caches, without its lock, and calls it again. So a refused call must have left everything as it
        was."""
        left = _WAITS
        while True:
            try:
                return reserve()
            except BudgetExceeded:  # held in a variable, it would keep the callers' frames and arrays
                if not (left and self._settle()):
                    raise
            left -= 1

    def make_room(self, nbytes: int, *, below: float | None = None) -> int:
        """Asks caches, those with a smaller loss than `below` (see `add_shrinker`), to give memory back until `nbytes`
        are free, or none gives any more; returns the bytes that are free now. For callers that fit their work to the
        free memory before they reserve any of it."""
        for left in reversed(range(_WAITS + 1)):
            with self._lock:
                self._ask(lambda: nbytes, below)
                if nbytes <= self.free:
                    break
            if not (left and self._settle()):
                break
        return self.free

    def hold_libraries(self, names: Sequence[str]) -> None:
        """Imports modules, and reserves the growth of the process for good, because modules stay loaded. The expected
        growth is reserved before the import. A missing module is ignored here; the code that needs it reports it.

        Raises:
            BudgetExceeded: the expected growth does not fit, and the module is not imported; or the growth was larger
                than expected and does not fit, and it is charged at the next call.
        """
        with _LOADING:
            held = self._library_lease
            for name in names:
                if name in sys.modules:  # it is counted; the process may grow meanwhile for another reason
                    self._libraries.setdefault(name, 0)
                elif name not in self._libraries:
                    most = import_nbytes([name])
                    held.resize(max(held.nbytes, sum(self._libraries.values()) + most))
                    with self._measured(most) as growth, suppress(ImportError):
                        importlib.import_module(name)
                    self._libraries[name] = growth.nbytes
            held.resize(sum(self._libraries.values()))

    def add_shrinker(
        self, name: str, shrink: Shrinker, *, loss: Loss | float, settle: Settle | None = None
    ) -> Callable[[], None]:
        """Registers a cache that can give memory back.

        Args:
            shrink: gives back at least the asked bytes if it can, by resizing its own lease.
            loss: seconds that the next request takes longer for each byte given back: a number, or a function that
                returns the latest measurement. The cache with the smallest loss is asked first.
            settle: waits for the cache's blocks that are on their way. It is called without the ledger's lock.

        Returns:
            A function that removes the registration.
        """
        entry = _Cache(name, loss if callable(loss) else lambda: loss, shrink, settle)
        with self._lock:
            self._caches.append(entry)

        def remove() -> None:
            with self._lock:
                if entry in self._caches:
                    self._caches.remove(entry)

        return remove

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Held by code that loads several things in turn. Other threads that load anything wait until it ends."""
        with _LOADING:
            yield

    @contextmanager
    def charge(self, owner: str, most: int = 0) -> Iterator[Lease]:
        """Reserves memory for something whose size cannot be computed (a module, a tokenizer's tables).

        While it is loaded inside the block, the lease holds `most` bytes; afterwards, the growth of the process. The
        lease stays valid after the block. One thread of the process loads at a time. If other threads have changed the
        ledger meanwhile, the growth includes their changes, and the lease keeps `most`, if given.

        Args:
            most: bytes needed at most, while loading and afterwards; 0 if unknown.

        Raises:
            BudgetExceeded: `most` bytes are not free, and nothing was loaded; or the growth does not fit, and the
                caller must unload.
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
        """Measures the growth of the process; takes `most` instead, if given, when other threads changed the ledger."""
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
        """Compares the ledger with the process's real memory, and returns the anonymous resident bytes afterwards.

        If the process holds more than the limit, memory that no lease covers is counted as a lease of its own
        (`unleased`), and caches give memory back for it. The lease ends when the process has shrunk, or when its bytes
        are needed.
        """
        resident = anonymous_resident()
        if self._part:
            return resident
        if resident > self.limit:
            trim_heap()
            resident = anonymous_resident()
        with self._lock:
            missing = resident - (self.used - self._unleased.nbytes)
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

    def _resize(self, lease: Lease, nbytes: int, *, wait: bool = True) -> None:
        """Gives a lease its new size. If it does not fit, caches are asked for memory first."""
        if nbytes < 0:
            raise RangeError(f"a lease cannot hold {nbytes} bytes")
        with self._lock:
            growth = nbytes - lease.nbytes
            if growth <= self.limit - self.used:
                if growth >= _LARGE and not self._part and anonymous_resident() + growth > self.limit:
                    trim_heap()  # the C library may still hold what an earlier owner has freed
                self.used += growth
                lease.nbytes = nbytes
                self._moves += self._loader != threading.get_ident()
                if nbytes:
                    self._leases[id(lease)] = lease
                else:
                    self._leases.pop(id(lease), None)
                return
        if wait:
            return self.waiting(lambda: self._make_room_for(lease, nbytes))
        self._make_room_for(lease, nbytes)

    def _make_room_for(self, lease: Lease, nbytes: int) -> None:
        with self._lock:
            # A growing cache may be asked to give memory back itself, and then needs more.
            self._ask(lambda: nbytes - lease.nbytes)
            if nbytes - lease.nbytes > self.free:
                raise self._refusal(lease.owner, nbytes - lease.nbytes)
            self._resize(lease, nbytes)

    def _settle(self) -> bool:
        """Waits for blocks on their way; returns whether there were any. Not if this thread holds a ledger's lock."""
        with _LISTING:
            ledgers = list(_ledgers)
        if any(ledger._lock._is_owned() for ledger in ledgers):  # type: ignore[attr-defined]
            return False
        return any([cache.settle() for cache in list(self._caches) if cache.settle is not None])

    def _ask(self, wanted: Callable[[], int], below: float | None = None) -> None:
        held = -1
        while (nbytes := wanted()) > self.free and self.used != held:
            held = self.used
            self._shrink(nbytes, below)

    def _cheapest_first(self) -> list[_Cache]:
        return sorted(self._caches, key=lambda cache: cache.loss())

    def _shrink(self, wanted: int, below: float | None) -> None:
        """Asks caches until `wanted` bytes are free, as the ledger counts them, not as a cache reports."""
        for cache in self._cheapest_first():
            if self.free >= wanted or (below is not None and cache.loss() >= below):
                return
            cache.shrink(wanted - self.free)
        if self.free < wanted and self._unleased.nbytes:
            self._resize(self._unleased, 0)  # the estimate may be too high, so the reservation is tried

    def _refusal(self, owner: str, asked: int) -> BudgetExceeded:
        needed = self.used + asked
        held = ", ".join(f"{name} {format_size(size)}" for name, size in self.holders().items())
        return BudgetExceeded(
            f"{owner} needs {format_size(asked)} but {format_size(max(0, self.free))} of the "
            f"{format_size(self.limit)} memory limit is free (held: {held or 'nothing'}); "
            f"a limit of {format_size(needed, up=True)} is the smallest that works",
            owner=owner,
            asked=asked,
            free=self.free,
            needed=needed,
        )


@dataclass(frozen=True, slots=True)
class OperationStage:
    """A part of an operation: bytes of its `own`, bytes `kept` until the end, and modules that it imports."""

    name: str
    own: int = 0
    kept: int = 0
    libraries: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OperationPlan:
    """The memory of a whole operation, stage by stage, so that a refusal names one limit that is enough."""

    operation: str
    stages: Sequence[OperationStage]

    @property
    def nbytes(self) -> int:
        """The most bytes that the operation needs at a time, on top of those held when it begins."""
        return self._largest()[0]

    def check(self, budget: MemoryBudget) -> None:
        """Asks caches to make room. If it does not fit even then, the error names the smallest limit that works."""
        nbytes = self.nbytes
        budget.make_room(nbytes)
        if nbytes > budget.free:
            raise self.refusal(budget.limit, budget.used)

    def refusal(self, limit: int, held: int) -> BudgetExceeded:
        """The error for a limit that is too small for the operation, with so many bytes held before it begins."""
        nbytes, stage = self._largest()
        needed = held + nbytes + SPREAD
        return BudgetExceeded(
            f"{self.operation} cannot work within {format_size(limit)}: {stage} needs {format_size(nbytes)} beside the "
            f"{format_size(held)} that are held when it begins; the smallest memory limit that works is "
            f"{format_size(needed, up=True)}",
            owner=self.operation,
            asked=nbytes,
            free=max(0, limit - held),
            needed=needed,
        )

    def _largest(self) -> tuple[int, str]:
        """The most bytes that are needed at a time, and the stage that needs them."""
        kept = 0
        libraries: set[str] = set()
        most = 0, self.operation
        for stage in self.stages:
            kept += stage.kept
            libraries.update(stage.libraries)
            most = max(most, (kept + import_nbytes(libraries) + stage.own, stage.name))
        return most


class Compiling:
    """Kernels are compiled at their first use. What that takes cannot be computed, so it is measured."""

    def __init__(self, host: MemoryBudget, owner: str) -> None:
        self._host = host
        self._owner = owner
        self._known: set[Hashable] = set()
        self._leases: list[Lease] = []

    @contextmanager
    def __call__(self, kernels: Hashable) -> Iterator[None]:
        """Is held while kernels run that may be compiled first."""
        if kernels in self._known:
            yield
            return
        self._known.add(kernels)
        with self._host.charge(self._owner) as lease:
            self._leases.append(lease)
            yield

    def close(self) -> None:
        for lease in self._leases:
            lease.release()
