"""`Reader`: the parts that a search needs, as they become readable: resident ones first, cold ones in one batch sorted
by file and offset; what does not fit the cache streams through a few buffers."""

from __future__ import annotations

import math
import threading
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.blocks import BlockFile
from edge.budget import Lease, MemoryBudget
from edge.cache.cached_block import Fetch, Policy, page_buffer
from edge.cache.residency import Handle, Residency
from edge.errors import BudgetExceeded, DeviceLost, EdgeError, PartLost
from edge.ivf.base import CHECKSUM_NBYTES, ID_NBYTES, Bytes, Ids, ListPart
from edge.ivf.device import Joins, SearchPlace
from edge.link import Ticket
from edge.trace import Trace

_ALIGNMENT = 64
"""Parts begin at multiples of this many bytes in the memory that they are sent from."""


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


Unpacked = tuple[Ids, Any, npt.NDArray[np.uint32]]
"""Ids [rows], codes in the device's buffer, and checksums of the float32 rows [rows]."""


class Remote:
    """The buffer of a part on a device outside this process's memory. Its ids and checksums stay in host memory, under
    the lease `ids`."""

    def __init__(self, tier: DeviceTier, nbytes: int) -> None:
        self.nbytes = nbytes
        self.part: ListPart | None = None
        self.kept: Unpacked | None = None
        self.ids: Lease | None = None
        self._tier = tier
        self.codes = tier.device.allocate(nbytes)

    def __del__(self) -> None:
        if hasattr(self, "codes"):
            self._tier.device.free(self.codes)
        if self.ids is not None:
            self.ids.release()


_KNOWN_SCANS = 16
"""Scans after which the best speed of a device is known: the first ones compile kernels."""


class DeviceTier:
    """A device and the parts resident on it. `pace`: fewest seconds a byte took; infinite at first."""

    def __init__(
        self,
        device: SearchPlace,
        *,
        policy: Policy | None = None,
        capacity: int | None = None,
        trace: Trace | None = None,
        name: str = "lists",
        behind: DeviceTier | None = None,
    ) -> None:
        """A part that the tier `behind` holds is copied from there instead of being read from the file."""
        self.device = device
        self.lost = False
        self.pace = math.inf
        self._scans = 0
        self._emptied = False
        self._behind = behind
        self._waiting: defaultdict[str, deque[weakref.ref[Remote]]] = defaultdict(deque)
        self.residency = Residency(
            device.memory, policy=policy, capacity=capacity, allocate=self._allocate, name=name,
            rate=device.link.rate, trace=trace,
        )  # fmt: skip

    @property
    def host_memory(self) -> MemoryBudget:
        return (self._behind or self).device.memory

    def fetch(self, part: ListPart) -> Fetch:
        link = self.device.link
        return lambda buffer: link.submit(str(part.codes), self.filling(part, buffer), part.nbytes)

    def filling(self, part: ListPart, buffer: Any, kind: str = "needed") -> Callable[[], int]:
        """The work that fills a buffer, for the link's worker; it returns the bytes that came to the device. Parts of
        one kind that wait for a remote device come together.

        Raises:
            BudgetExceeded: the host has no room for the ids of a part on a remote device.
        """
        if not isinstance(buffer, Remote):
            return lambda: self._read(part, buffer)
        buffer.part = part
        if buffer.ids is None:
            kept = part.rows * (ID_NBYTES + CHECKSUM_NBYTES)
            buffer.ids = self.host_memory.reserve("ids of lists", kept)
        waiting = self._waiting[kind]
        waiting.append(weakref.ref(buffer))
        return lambda: self._send(buffer, waiting)

    def _read(self, part: ListPart, block: Bytes) -> int:
        held = None if self._behind is None else self._behind.residency.held(part.key)
        if held is None:
            part.source.read(part.codes, block.data)
        else:
            with held:
                block[: part.nbytes] = held.wait()[: part.nbytes]
        return part.nbytes

    def _send(self, buffer: Remote, waiting: deque[weakref.ref[Remote]]) -> int:
        """Sends a part and, if the device joins them, others that wait. An idle host takes some from the end of these,
        so half of them stay."""
        sent, nbytes, device, most = [buffer], _aligned(buffer.nbytes), self.device, 0
        if isinstance(device, Joins) and nbytes <= device.most:
            most = device.most
        left = -(-len(waiting) // 2)
        while waiting:
            other = waiting[0]()
            if other is not None and other is not buffer and other.kept is None:
                if nbytes + _aligned(other.nbytes) > most or len(waiting) <= left or buffer.kept is not None:
                    break
                sent.append(other)
                nbytes += _aligned(other.nbytes)
            waiting.popleft()
        if buffer.kept is not None:  # it came with another one
            return 0
        kept: list[tuple[Remote, Unpacked]] = []

        def fill(block: Bytes) -> list[tuple[Any, Bytes]]:
            codes_of, at = [], 0
            for into in sent:
                assert into.part is not None
                try:
                    self._read(into.part, block[at:])
                except EdgeError:
                    if into is buffer:
                        raise
                    continue  # its own transfer says so
                ids, codes, checksums = into.part.split(block[at:])
                codes_of.append((into.codes, codes))
                kept.append((into, (ids.copy(), into.codes, checksums.copy())))
                at += _aligned(into.nbytes)
            return codes_of

        if most and isinstance(device, Joins):
            device.write_joined(nbytes, fill)
        else:
            with self.host_memory.reserve("list staging", nbytes):
                device.write(*fill(page_buffer(nbytes))[0])
        for into, unpacked in kept:
            into.kept = unpacked
        return nbytes

    def unpack(self, part: ListPart, buffer: Any) -> Unpacked:
        if isinstance(buffer, Remote):
            assert buffer.kept is not None
            return buffer.kept
        return part.split(buffer)

    def fail(self, error: DeviceLost) -> None:
        """Notes that the device has failed: for good, or with its present content, so that it is filled anew."""
        if isinstance(error, PartLost):
            self._emptied = True
        else:
            self.lost = True

    def learn(self, nbytes: int, seconds: float) -> None:
        """Learns from a scan. A device in host memory that is never as fast as the host is used no more."""
        self.pace = min(self.pace, seconds / max(1, nbytes))
        self._scans += 1
        host = self._behind
        if host is None or not getattr(self.device, "shared", False) or min(self._scans, host._scans) < _KNOWN_SCANS:
            return
        self.lost = self.lost or self.pace > host.pace

    def end_round(self) -> None:
        """Ends a search. A device that has failed gives its lists up."""
        if self.lost or self._emptied:
            self._emptied = False
            self.residency.trim(0.0)

    def close(self) -> None:
        self.residency.close()

    def _allocate(self, nbytes: int) -> Any:
        return self.device.allocate(nbytes) if self.device.in_host_memory else Remote(self, nbytes)


_STREAMS = 3
"""Buffers for streaming: one is scanned, one is full, one is being filled."""

_TOGETHER = 32
"""Parts per scan request, at most. Finished queries are noticed between requests."""

_GIVEN = 8
"""At most one of this many parts that wait for their transfer is given to another tier at a time. The parts that are
given last are then few, and both tiers end at about the same time."""


class Readable:
    __slots__ = ("buffer", "number", "release")

    def __init__(self, number: int, buffer: Any, release: Callable[[], None]) -> None:
        self.number = number
        self.buffer = buffer
        self.release = release


class Reader:
    """The parts of one search as they become readable. One thread iterates; `release` and `close` may be called from
    any.

    `missing`: numbers of parts that were not read. The caller appends to `scanned` those that it has scanned."""

    def __init__(
        self,
        tier: DeviceTier,
        parts: Sequence[ListPart],
        wanted: Iterable[int],
        *,
        stream: bool = True,
        evict: bool = True,
        now: int | None = None,
    ) -> None:
        """Locks the resident parts and asks for the others. Without `stream` cold parts that do not fit the cache are
        `missing`; `now` is the round of an earlier reader of the same search."""
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
            self._read(now, evict, stream)
        except BaseException:
            self.close()
            raise
        # The state of each part is read only once, because a part may become ready at any moment.
        self._coming = {number: not handle.ready for number, handle in self._handles.items()}
        self._waiting.extend(sorted(self._coming, key=self._coming.__getitem__))

    def __len__(self) -> int:
        return len(self._handles) + len(self._streams)

    @property
    def unscanned(self) -> list[int]:
        return sorted(set(self._handles) - set(self.scanned))

    def __iter__(self) -> Iterator[list[Readable]]:
        """Yields batches of parts that can be scanned now, resident ones first. The caller releases each part."""
        while batch := self._next():
            yield [self._readable(number) for number in batch]
        yield from self._streams

    def give(self, most: int) -> list[int]:
        """Gives up to `most` parts away that have not begun; returns their numbers. The first stays."""
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
        """Numbers of the next parts to hand out: several resident ones, or one that is being read; none at the end."""
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
    return str(part.source.path), part.source.extents[part.codes].offset


class _Streams:
    """Parts that stream through a few buffers, each as large as the largest part."""

    def __init__(self, tier: DeviceTier, parts: Sequence[ListPart]) -> None:
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
        """Reserves buffers and asks for the first parts; nothing if memory is short and `patient`."""
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
