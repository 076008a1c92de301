"""`Reader`: the parts that a search needs, as they become readable.

Resident parts are handed out first, so that reads overlap scans. Cold parts are read in one batch, sorted by file and
offset. A cold part that does not fit the cache streams through a few buffers.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from edge.blocks import BlockFile
from edge.budget import Lease
from edge.cache.buffers import page_buffer
from edge.cache.residency import Handle
from edge.errors import BudgetExceeded
from edge.ivf.base import Bytes, ListPart
from edge.ivf.tiers import Tier
from edge.link import Ticket

_STREAMS = 3
"""Buffers for streaming: one is scanned, one is full, one is being filled."""

_TOGETHER = 32
"""Parts per scan request, at most. Finished queries are noticed between requests."""

_GIVEN = 8
"""At most one of this many parts that wait for their transfer is given to another tier at a time. The parts that are
given last are then few, and both tiers end at about the same time."""


class Readable:
    """A part whose bytes are in memory. The caller must call `release` after use."""

    __slots__ = ("buffer", "number", "release")

    def __init__(self, number: int, buffer: Any, release: Callable[[], None]) -> None:
        self.number = number
        self.buffer = buffer
        self.release = release


class Reader:
    """The parts of one search as they become readable, in batches.

    One thread iterates; `release` and `close` may be called from any thread.

    Attributes:
        missing: numbers of parts that are not in this tier and were not read, either because `read` was off or for lack
            of memory.
        parts_read, bytes_read: amounts transferred over the link.
        hits: number of parts that were resident or already being read.
        round: the residency's round that this reader belongs to.
        scanned: numbers of parts that the caller has scanned. The caller appends to it.
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
        now: int | None = None,
    ) -> None:
        """Locks the resident parts and asks for the others.

        Args:
            wanted: numbers of the parts to hand out.
            read: whether cold parts are read.
            stream: whether cold parts that do not fit the cache go through a few buffers; otherwise they are `missing`.
            evict: see `Residency.admit`.
            now: the round of an earlier reader of the same search; a new round if not given.

        Raises:
            StorageError, CorruptBlock: a part cannot be read.
        """
        self.parts_read = self.bytes_read = self.hits = 0
        self.missing: list[int] = []
        self.scanned: list[int] = []
        self._tier = tier
        self._parts = parts
        self._handles: dict[int, Handle] = {}
        self._streams = _Streams(tier, parts)
        self._waiting: deque[int] = deque()
        self._begun = False
        self._taking = threading.Lock()
        self.round = now = tier.residency.begin_round() if now is None else now
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
        # The state of each part is read only once, because a part may become ready at any moment.
        self._coming = {number: not handle.ready for number, handle in self._handles.items()}
        self._waiting.extend(sorted(self._coming, key=self._coming.__getitem__))

    def __len__(self) -> int:
        """Number of parts it will hand out."""
        return len(self._handles) + len(self._streams)

    @property
    def unscanned(self) -> list[int]:
        """Numbers of resident parts that are not among `scanned`."""
        return sorted(set(self._handles) - set(self.scanned))

    def __iter__(self) -> Iterator[list[Readable]]:
        """Yields batches of parts that can be scanned now, resident ones first. The caller releases each part."""
        while batch := self._next():
            yield [self._readable(number) for number in batch]
        yield from self._streams

    def give(self, most: int) -> list[int]:
        """Gives up to `most` parts away whose transfers have not begun, and that would come last. The first part of all
        stays, so that an idle device gets one. May be called from any thread.

        Returns:
            Numbers of the parts, which this reader will not hand out.
        """
        given: list[int] = []
        with self._taking:
            most = min(most, -(-len(self._waiting) // _GIVEN))
            least = 0 if self._begun else 1
            while len(given) < most and len(self._waiting) > least and self._coming[self._waiting[-1]]:
                number = self._waiting[-1]
                if not self._tier.residency.recall(self._handles[number]):
                    break
                given.append(self._waiting.pop())
                del self._handles[number]
                self.parts_read -= 1
                self.bytes_read -= self._parts[number].nbytes
        return given

    def close(self) -> None:
        """Releases all parts. Parts that are being read into the cache still arrive there."""
        for handle in self._handles.values():
            handle.release()
        self._streams.close()

    def _next(self) -> list[int]:
        """Numbers of the next parts to hand out: several that are resident, or one that is being read; none at the
        end."""
        batch: list[int] = []
        with self._taking:
            self._begun = True
            while self._waiting and len(batch) < _TOGETHER and (not batch or not self._coming[self._waiting[0]]):
                batch.append(self._waiting.popleft())
                if self._coming[batch[0]]:
                    break
        return batch

    def _readable(self, number: int) -> Readable:
        handle = self._handles[number]
        return Readable(number, handle.wait(), handle.release)

    def _read(self, now: int, evict: bool, stream: bool) -> None:
        cold, self.missing = sorted(self.missing, key=lambda number: read_order(self._parts[number])), []
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
            if handle is not None and handle.hit:  # another thread has asked for the part in the meantime
                self.hits += 1
            else:
                self.parts_read += 1
                self.bytes_read += part.nbytes
        self._streams.start(patient=True)


def read_order(part: ListPart) -> tuple[str, int]:
    """Sort key of cold parts: file, then offset."""
    return str(part.source.path), part.source.extents[part.codes].offset


class _Streams:
    """Parts that stream through a few buffers, each as large as the largest part."""

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
        """Reserves the buffers and asks for the first parts.

        Args:
            patient: if memory is short, reserve nothing and return. More is free once the resident parts are scanned.

        Raises:
            BudgetExceeded: not even one buffer fits when everything that was being read ahead has arrived, and
                `patient` is off.
        """
        if self._lease is not None or not self._waiting:
            return
        size = max(self._parts[number].nbytes for number in self._waiting)
        memory = self._tier.device.memory
        for count in range(min(_STREAMS, len(self._waiting)), 0, -1):
            if patient and memory.free < count * size:
                continue
            try:
                lease = memory.reserve("list reading", count * size, wait=not patient and count == 1)
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
                while len(self._coming) > 1 and self._coming[0][2].done:  # the last one is read during the scan
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
    """Groups parts by file: each file with the byte ranges of its parts. `numbers` must be sorted by file."""
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
