"""`Reader`: the parts that a search needs, as they become readable.

What is resident is handed out first, so that reads hide behind scans; what is cold is read in one batch sorted by file
and offset. A cold part that finds no room streams through a few buffers.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from edge.blocks import BlockFile
from edge.budget import Lease
from edge.buffers import page_buffer
from edge.errors import BudgetExceeded
from edge.ivf.base import Bytes, ListPart
from edge.ivf.tiers import Tier
from edge.lanes import Ticket
from edge.residency import Handle

_STREAMS = 3
"""Buffers a probe streams through: one is scanned, one is full, one is being filled."""

_TOGETHER = 32
"""Parts that are scanned by one request at most: queries that are done are looked for in between."""


class Readable:
    """A part whose bytes are there. `release` lets them go."""

    __slots__ = ("buffer", "number", "release")

    def __init__(self, number: int, buffer: Any, release: Callable[[], None]) -> None:
        self.number = number
        self.buffer = buffer
        self.release = release


class Reader:
    """The parts of one search as they become readable, in batches. One thread iterates; `release` and `close` may come
    from any.

    Attributes:
        missing: numbers of parts this tier does not hold and was not asked to read, or found no room for.
        parts_read, bytes_read: what has to cross the link.
        hits: parts that were resident or on their way.
        scanned: numbers of parts that the caller is done with; it adds them.
    """

    def __init__(
        self,
        tier: Tier,
        parts: Sequence[ListPart],
        wanted: Iterable[int],
        *,
        read: bool = True,
        stream: bool = True,
        evict: bool = True,
    ) -> None:
        """Locks what is resident and asks for the rest.

        Args:
            wanted: numbers of the parts to hand out.
            read: cold parts are read, too.
            stream: those that find no room go through a few buffers; otherwise they are `missing`.
            evict: see `Residency.admit`.

        Raises:
            StorageError, CorruptBlock: the disk refuses.
        """
        self.parts_read = self.bytes_read = self.hits = 0
        self.missing: list[int] = []
        self.scanned: list[int] = []
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
                self._read(now, evict, stream)
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        """Parts it will hand out."""
        return len(self._handles) + len(self._streams)

    @property
    def unscanned(self) -> list[int]:
        """Numbers of resident parts that are not among `scanned`."""
        return sorted(set(self._handles) - set(self.scanned))

    def __iter__(self) -> Iterator[list[Readable]]:
        """Yields the parts that can be scanned now, those that are there first. Each must be released."""
        # Each is asked once whether it is ready: it may become so at any moment.
        coming = {number: not handle.ready for number, handle in self._handles.items()}
        order = sorted(coming, key=coming.__getitem__)
        start = 0
        while start < len(order):
            end = start + 1
            if not coming[order[start]]:
                while end < len(order) and end - start < _TOGETHER and not coming[order[end]]:
                    end += 1
            yield [self._readable(number) for number in order[start:end]]
            start = end
        yield from self._streams

    def close(self) -> None:
        """Lets everything go; parts that are on their way to the cache still arrive there."""
        for handle in self._handles.values():
            handle.release()
        self._streams.close()

    def _readable(self, number: int) -> Readable:
        handle = self._handles[number]
        return Readable(number, handle.wait(), handle.release)

    def _read(self, now: int, evict: bool, stream: bool) -> None:
        cold, self.missing = sorted(self.missing, key=self._place), []
        if stream:
            for source, ranges in _by_source(self._parts, cold):
                source.announce(ranges)
        for number in cold:
            part = self._parts[number]
            handle = self._tier.residency.admit(part.key, part.nbytes, self._tier.fetch(part), now, evict=evict)
            if handle is not None:
                self._handles[number] = handle
            elif stream:
                self._streams.add(number)
            else:
                self.missing.append(number)
                continue
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

    def __len__(self) -> int:
        return len(self._waiting) + len(self._coming)

    def __iter__(self) -> Iterator[list[Readable]]:
        self.start(patient=False)
        while True:
            with self._changed:
                while not self._coming and self._waiting:  # all buffers are being scanned
                    self._changed.wait()
                if not self._coming:
                    return
                arrived = [self._coming.popleft()]
                while len(self._coming) > 1 and self._coming[0][2].done:  # one is left to be read meanwhile
                    arrived.append(self._coming.popleft())
            for _, _, ticket in arrived:
                ticket.wait()
            yield [Readable(number, buffer, self._releaser(buffer)) for number, buffer, _ in arrived]

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
            ticket = self._tier.fetch(part)(buffer)
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
