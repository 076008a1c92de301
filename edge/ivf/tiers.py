"""Tiers: a device with the lists that are resident on it, and the reading of those that are not.

What is resident is handed out first, so that reads hide behind scans; what is cold is read in one batch sorted by file
and offset. A cold part that finds no room streams through a few buffers.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from edge.blocks import BlockFile
from edge.budget import Lease, MemoryBudget
from edge.buffers import page_buffer
from edge.errors import BudgetExceeded
from edge.eviction import Policy
from edge.ivf.base import Bytes, Codec, Ids, ListPart, Vectors
from edge.ivf.dispatcher import Dispatcher
from edge.lanes import Lane, Ticket
from edge.residency import Fetch, Handle, Residency
from edge.trace import Trace

_STREAMS = 3
"""Buffers a probe streams through: one is scanned, one is full, one is being filled."""


class Scan(Protocol):
    """One readable part, and the queries that probe its list."""

    @property
    def queries(self) -> Sequence[int]:
        """Numbers of the queries."""

    def pieces(self) -> Iterator[tuple[Bytes, Ids]]:
        """The rows that count, piece by piece: codes [n, code_size] and labels [n]."""

    def close(self) -> None:
        """The part has been scanned; its bytes may go."""


class ListDevice(Protocol):
    """What the search needs of a device; `edge.devices.base.Device` is the whole contract."""

    name: str
    memory: MemoryBudget
    link: Lane

    def allocate(self, nbytes: int) -> Bytes:
        """A buffer of this device. The caller holds a lease of `memory` for it."""

    def search(self, codec: Codec, queries: Vectors, scans: Iterable[Scan], dispatcher: Dispatcher) -> None:
        """Scans everything, takes heaps from the dispatcher, and tells it of each part that is done."""


class Tier:
    """A device and the list parts that are resident on it."""

    def __init__(
        self,
        device: ListDevice,
        *,
        policy: Policy | None = None,
        capacity: int | None = None,
        share: float = 1.0,
        trace: Trace | None = None,
        name: str = "lists",
    ) -> None:
        """
        Args:
            policy, capacity, name: see `Residency`.
            share: after a search cached lists keep at most so much of the room (see `Residency.trim`).
        """
        self.device = device
        self.share = share
        self.residency = Residency(
            device.memory, policy=policy, capacity=capacity, allocate=device.allocate, name=name,
            rate=device.link.rate, trace=trace,
        )  # fmt: skip

    def fetch(self, part: ListPart) -> Fetch:
        """Starts the transfer of a part that is needed now."""
        return lambda buffer: self.device.link.fetch(part.source, part.codes, buffer.data)

    def end_round(self) -> None:
        """A search has ended."""
        if self.share < 1:
            self.residency.trim(self.share)

    def close(self) -> None:
        """Gives all memory back."""
        self.residency.close()


class Reader:
    """The parts of one search as they become readable. One thread iterates; `release` and `close` may come from any.

    Attributes:
        missing: numbers of parts this tier does not hold and was not asked to read.
        parts_read, bytes_read: what has to cross the link.
        hits: parts that were resident or on their way.
    """

    def __init__(
        self, tier: Tier, parts: Sequence[ListPart], wanted: Iterable[int], *, read: bool = True, evict: bool = True
    ) -> None:
        """Locks what is resident and asks for the rest.

        Args:
            wanted: numbers of the parts to hand out.
            read: cold parts are read, too.
            evict: see `Residency.admit`.

        Raises:
            StorageError, CorruptBlock: the disk refuses.
        """
        self.parts_read = self.bytes_read = self.hits = 0
        self.missing: list[int] = []
        self._tier = tier
        self._parts = parts
        self._handles: dict[int, Handle] = {}
        self._streams = _Streams(tier, parts)
        now = tier.residency.begin_round()
        try:
            numbers = list(wanted)
            claimed = tier.residency.claim([(parts[n].key, tier.fetch(parts[n])) for n in numbers], now)
            for number, handle in zip(numbers, claimed, strict=True):
                if handle is None:
                    self.missing.append(number)
                else:
                    self._handles[number] = handle
            self.hits = len(self._handles)
            if read:
                self._read(now, evict)
        except BaseException:
            self.close()
            raise

    def __iter__(self) -> Iterator[tuple[int, Bytes, Callable[[], None]]]:
        """Yields each part's number, bytes, and what to call when they are no longer used."""
        # Each is asked once whether it is ready: it may become so at any moment.
        coming = {number: not handle.ready for number, handle in self._handles.items()}
        for number in sorted(coming, key=coming.__getitem__):
            handle = self._handles[number]
            yield number, handle.wait(), handle.release
        yield from self._streams

    def close(self) -> None:
        """Lets everything go; parts that are on their way to the cache still arrive there."""
        for handle in self._handles.values():
            handle.release()
        self._streams.close()

    def _read(self, now: int, evict: bool) -> None:
        cold, self.missing = sorted(self.missing, key=self._place), []
        for source, ranges in _by_source(self._parts, cold):
            source.announce(ranges)
        for number in cold:
            part = self._parts[number]
            handle = self._tier.residency.admit(part.key, part.nbytes, self._tier.fetch(part), now, evict=evict)
            if handle is not None:
                self._handles[number] = handle
            else:
                self._streams.add(number)
            if handle is not None and handle.hit:  # somebody else has asked for it in the meantime
                self.hits += 1
            else:
                self.parts_read += 1
                self.bytes_read += part.nbytes
        self._streams.start(patient=True)

    def _place(self, number: int) -> tuple[str, int]:
        part = self._parts[number]
        return str(part.source.path), part.source.extents[part.codes].offset


class _Streams:
    """Parts that go through a few buffers of the size of the largest of them."""

    def __init__(self, tier: Tier, parts: Sequence[ListPart]) -> None:
        self._tier = tier
        self._parts = parts
        self._waiting: deque[int] = deque()
        self._coming: deque[tuple[int, Bytes, Ticket]] = deque()
        self._free: list[Bytes] = []
        self._lease: Lease | None = None
        self._changed = threading.Condition()

    def add(self, number: int) -> None:
        self._waiting.append(number)

    def start(self, *, patient: bool) -> None:
        """Takes the buffers and asks for the first parts.

        Args:
            patient: takes nothing if memory is short; there will be more once the resident parts are scanned.

        Raises:
            BudgetExceeded: not even one buffer fits, and this is not to wait.
        """
        if self._lease is not None or not self._waiting:
            return
        size = max(self._parts[number].nbytes for number in self._waiting)
        memory = self._tier.device.memory
        for count in range(min(_STREAMS, len(self._waiting)), 0, -1):
            if patient and memory.free < count * size:
                continue
            try:
                lease = memory.reserve("list reading", count * size)
            except BudgetExceeded:
                if patient or count > 1:
                    continue
                raise
            with self._changed:
                self._lease = lease
                self._free = [page_buffer(size) for _ in range(count)]
                self._pump()
            return

    def __iter__(self) -> Iterator[tuple[int, Bytes, Callable[[], None]]]:
        self.start(patient=False)
        while True:
            with self._changed:
                while not self._coming and self._waiting:  # all buffers are being scanned
                    self._changed.wait()
                if not self._coming:
                    return
                number, buffer, ticket = self._coming.popleft()
            ticket.wait()
            yield number, buffer, self._releaser(buffer)

    def close(self) -> None:
        with self._changed:
            self._waiting.clear()
            for _, _, ticket in self._coming:
                ticket.settle()
            self._coming.clear()
            self._free.clear()
            self._changed.notify_all()
            if self._lease is not None:
                self._lease.release()
                self._lease = None

    def _releaser(self, buffer: Bytes) -> Callable[[], None]:
        def release() -> None:
            with self._changed:
                if self._lease is not None:
                    self._free.append(buffer)
                    self._pump()

        return release

    def _pump(self) -> None:
        while self._free and self._waiting:
            number, buffer = self._waiting.popleft(), self._free.pop()
            part = self._parts[number]
            ticket = self._tier.device.link.fetch(part.source, part.codes, buffer.data)
            self._coming.append((number, buffer, ticket))
            self._changed.notify_all()


def _by_source(parts: Sequence[ListPart], numbers: Sequence[int]) -> Iterator[tuple[BlockFile, list[tuple[int, int]]]]:
    """Files and the byte ranges of parts in them; `numbers` are sorted by file."""
    start = 0
    while start < len(numbers):
        source = parts[numbers[start]].source
        end = start
        ranges = []
        while end < len(numbers) and parts[numbers[end]].source is source:
            extent = source.extents[parts[numbers[end]].codes]
            ranges.append((extent.offset, extent.nbytes))
            end += 1
        yield source, ranges
        start = end
