"""`cuda`: a GPU as a place for lists and layers, and the search of the lists there (`IntervalSearch`)."""

from __future__ import annotations

import importlib
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.budget import Compiling, Lease, MemoryBudget
from edge.devices.cpu import MeasuredScan
from edge.devices.cuda.card import Card, Pinned, Streams, UploadBuffers, close_card, open_card
from edge.devices.faiss_codec import PQ_CENTROIDS, Prepared, offer, prepared
from edge.ivf.base import Bytes, CodecSpec
from edge.ivf.device import Candidates, Event, ListScan, SearchRequest
from edge.link import Lane
from edge.trace import Trace

ROWS = 64
"""Rows that are scored together: an item. A row that counts is a bit of 64."""

_STEP = 32
"""Bytes or components of a row that are summed at a time. With 64 a GPU has registers for a quarter of the threads."""
_SPARE = 64
"""Rows that come back for each query beyond twice as many as are wanted. If more may be among the best, it is asked for
eight times as many."""

_MORE = 8
_LONGER = 1 + 1e-5
"""The host's length of a vector times this is no less than the device's."""

_Found = npt.NDArray[np.int32]


class IntervalSearch:
    def __init__(self, card: Card, host: MemoryBudget) -> None:
        self._card = card
        self._kernels = importlib.import_module("edge.devices.cuda.kernels") if card.has_triton else None
        self._lease = host.reserve("cuda results", 0)
        self._landing: Pinned | None = None

    def search(self, request: SearchRequest, room: Lease) -> None:
        """Merges the best rows of all lists into `request.seen`. `room` is the lease of device memory for it."""
        queries, width = request.seen.scores.shape
        self._some(request, list(request.lists), list(range(queries)), 2 * width + _SPARE, room)

    def close(self) -> None:
        if self._landing is not None:
            self._landing.close()
            self._landing = None
        self._lease.release()

    def _some(self, request: SearchRequest, lists: list[ListScan], queries: list[int], keep: int, room: Lease) -> None:
        """Searches some lists for some queries; in halves if they need more than `room`."""
        spec, width = request.codec.spec, request.seen.scores.shape[1]
        chosen = set(queries)
        lists = [scan for scan in lists if not chosen.isdisjoint(scan.queries)]
        if not lists:
            return
        longest = self._longest(lists, queries)
        keep = min(keep, longest)
        # The bounds of a row, the selection's copy of them with places; results, and what is looked up.
        values = spec.code_size * 1024 if spec.has_tables else 4 * (spec.dim + 16)
        needed = len(queries) * (longest * 17 + 2 * keep * (spec.code_size + 28) + values)
        if self._kernels is None:  # codes, and numbers or places in tables; whether a row counts, and scores
            needed += longest * (9 * spec.code_size + 8 * spec.dim + 9 * len(queries))
        if needed > room.nbytes and (len(queries) > 1 or len(lists) > 1 or lists[0].count > ROWS):
            # torch alone reads the codes of a list once for all queries.
            by_query = len(queries) > 1 and (self._kernels is not None or len(lists) == 1)
            if not by_query and len(lists) == 1:
                lists = _cut(lists[0], spec.code_size)
            half = len(queries if by_query else lists) // 2
            for cut in (slice(half), slice(half, None)):
                some, asking = (lists, queries[cut]) if by_query else (lists[cut], queries)
                self._some(request, some, asking, keep, room)
            return
        room.resize(max(needed, room.nbytes))
        own = prepared("cuda", spec, request.queries[queries])
        scan = self._alone if self._kernels is None else self._fused
        found, names = scan(spec, own, lists, queries, longest, keep)
        upper = np.ascontiguousarray(found[:, :, 0]).view(np.float32)
        codes = found.view(np.uint8)[:, :, 8 : 8 + spec.code_size]
        margin = 2 * own.margin.astype(np.float64)[:, None]
        if spec.exact:
            # Where a query has fewer rows, no code was written.
            vectors = np.where((upper > -np.inf)[:, :, None], np.ascontiguousarray(codes).view("<f4"), 0)
            margin = margin * (_LONGER * np.linalg.norm(vectors, axis=2))
        floors = np.where(request.seen.labels[queries].min(1) >= 0, request.seen.scores[queries].min(1), -np.inf)
        if keep >= width:
            floors = np.maximum(floors, np.partition(upper - margin, keep - width, axis=1)[:, keep - width])
        # The bounds fall, so the rows that may be among the best come first.
        counts = ((upper >= floors[:, None]) & (upper > -np.inf)).sum(1)
        for place, (query, count) in enumerate(zip(queries, counts.tolist(), strict=True)):
            if count < keep or keep == longest:
                offer(request, query, codes[place, :count], names[place, :count])
        for place in np.flatnonzero((counts == keep) & (keep < longest)).tolist():  # overwrites what was found
            self._some(request, lists, [queries[place]], _MORE * keep, room)

    def _longest(self, lists: list[ListScan], queries: list[int]) -> int:
        """The places for the rows of a query: of all lists, or of those that the query with most rows probes."""
        if self._kernels is None:
            return sum(scan.count for scan in lists)
        rows = np.zeros(1 + max(*queries, *(max(scan.queries) for scan in lists)), np.int64)
        for scan in lists:
            rows[list(scan.queries)] += -(-scan.count // ROWS) * ROWS
        return int(rows[queries].max())

    def _fused(
        self, spec: CodecSpec, own: Prepared, lists: list[ListScan], queries: list[int], longest: int, keep: int
    ) -> tuple[_Found, npt.NDArray[np.int64]]:
        """The rows with the highest bounds of each query, and their labels [queries, keep]."""
        card, torch, kernels, count = self._card, self._card.torch, self._kernels, len(queries)
        items, firsts, labels = _items(lists, queries, spec.code_size)
        assert kernels is not None

        def run(values: Any, heads: Any, scanned: Any, first: Any) -> Any:
            upper = torch.full((count, longest), -torch.inf, device=card.device)
            kernels.scan[(items.shape[1],)](
                scanned, values, heads, upper, longest, own.values.shape[1],
                KIND="pq" if spec.has_tables else spec.name, DIM=spec.dim, SIZE=spec.code_size, ROWS=ROWS, STEP=_STEP,
            )  # fmt: skip
            bounds, places = torch.topk(upper, keep, dim=1)
            found = torch.empty((count, keep, _words(spec)), dtype=torch.int32, device=card.device)
            kernels.gather[(count * keep,)](
                scanned, first, places, bounds, found, count * keep, keep, SIZE=spec.code_size, ROWS=ROWS,
                BLOCK=1 << (spec.code_size - 1).bit_length(), WORDS=_words(spec),
            )  # fmt: skip
            return found

        found = self._run(run, (count, keep, _words(spec)), own, items, firsts)
        places = found[:, :, 1]
        return found, labels.take(firsts[:, None] + places // ROWS, mode="clip") + places % ROWS

    def _alone(
        self, spec: CodecSpec, own: Prepared, lists: list[ListScan], queries: list[int], longest: int, keep: int
    ) -> tuple[_Found, npt.NDArray[np.int64]]:
        """As `_fused`. A row has the same place for all queries."""
        card, torch, size = self._card, self._card.torch, spec.code_size
        numbers = {query: place for place, query in enumerate(queries)}
        live = np.zeros((len(queries), longest), bool)
        labels = np.concatenate([np.arange(scan.first, scan.first + scan.count) for scan in lists])
        at = 0
        for scan in lists:
            rows = np.arange(scan.count) if scan.rows is None else scan.rows
            asking = np.array([numbers[query] for query in scan.queries if query in numbers])
            live[asking[:, None], at + rows] = True
            at += scan.count

        def run(values: Any, heads: Any, counted: Any) -> Any:
            codes = torch.cat([scan.codes.tensor[: scan.count * size] for scan in lists]).view(longest, size)
            margin = heads[:, 1:]
            if spec.has_tables:
                entries = codes.to(torch.int64) + PQ_CENTROIDS * torch.arange(size, device=card.device)
                scores = torch.nn.functional.embedding_bag(entries, values.t().contiguous(), mode="sum").t()
            else:
                components = codes.view(torch.float32) if spec.exact else codes.to(torch.float32)
                scores = values[:, : spec.dim] @ components.t()
                margin = margin * torch.linalg.vector_norm(components, dim=1) if spec.exact else margin
            upper = (scores + heads[:, :1] + margin).masked_fill_(~counted, -torch.inf)
            bounds, places = torch.topk(upper, keep, dim=1)
            found = torch.empty((len(queries), keep, _words(spec)), dtype=torch.int32, device=card.device)
            found[:, :, 0], found[:, :, 1] = bounds.view(torch.int32), places
            found.view(torch.uint8)[:, :, 8 : 8 + size] = codes[places]
            return found

        found = self._run(run, (len(queries), keep, _words(spec)), own, live)
        return found, labels[found[:, :, 1]]

    def _run(self, scan: Callable[..., Any], shape: tuple[int, ...], own: Prepared, *given: Any) -> _Found:
        """What a scan finds, `shape`: of each row its bound, its place and its code."""
        card, torch = self._card, self._card.torch
        words = math.prod(shape)
        landing = self._land(4 * words)
        arrays = own.values, np.stack((own.base, own.margin), axis=1), *given
        sizes = [x.nbytes for x in arrays]

        def run() -> None:
            there = torch.from_numpy(np.concatenate([x.reshape(-1).view(np.uint8) for x in arrays])).to(card.device)
            found = scan(*(
                part.view(getattr(torch, x.dtype.name)).view(x.shape)
                for part, x in zip(there.split(sizes), arrays, strict=True)
            ))  # fmt: skip
            landing.tensor[: 4 * words].view(torch.int32).copy_(found.view(-1), non_blocking=True)

        card.compute.run(run)
        card.compute.record().wait()
        return landing.array[: 4 * words].view(np.int32).reshape(shape)

    def _land(self, nbytes: int) -> Pinned:
        if self._landing is None or self._landing.array.nbytes < nbytes:
            self._lease.resize(max(64 << 10, nbytes))
            if self._landing is not None:
                self._landing.close()
            self._landing = Pinned(self._card, nbytes)
        return self._landing


def _words(spec: CodecSpec) -> int:
    """Words of 32 bits of a row that comes back: its bound, its place and its code."""
    return 2 + -(-spec.code_size // 4)


def _cut(scan: ListScan, size: int) -> list[ListScan]:
    """The two halves of a list, which share its memory."""
    half, rows, codes = scan.count // 2, scan.rows, scan.codes.tensor
    first, second = (None, None) if rows is None else (rows[rows < half], rows[rows >= half] - half)
    return [
        replace(scan, codes=replace(scan.codes, tensor=codes[: half * size]), count=half, rows=first),
        replace(scan, codes=replace(scan.codes, tensor=codes[half * size :]), first=scan.first + half,
                count=scan.count - half, rows=second),
    ]  # fmt: skip


def _items(
    lists: Sequence[ListScan], queries: Sequence[int], size: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The items of some queries, query by query: for each (see `kernels.scan`) [5, n], the first one of each query, and
    the label of an item's row 0."""
    asking = [scan.queries for scan in lists]
    asked = np.fromiter(chain.from_iterable(asking), np.int64)
    place_of = np.full(max(int(asked.max()), *queries) + 1, -1, np.int64)
    place_of[queries] = np.arange(len(queries))
    owners, numbers = place_of[asked], np.repeat(np.arange(len(lists)), [len(own) for own in asking])
    order = np.lexsort((numbers, owners))[np.count_nonzero(owners < 0) :]
    owners, numbers = owners[order], numbers[order]
    counts = np.array([scan.count for scan in lists], np.int64)
    cuts = -(-counts // ROWS)
    ends = np.cumsum(cuts)
    masks = np.full(int(ends[-1]), -1, np.int64)
    for scan, low, high in zip(lists, (ends - cuts).tolist(), ends.tolist(), strict=True):
        if scan.rows is not None:
            live = np.zeros((high - low) * ROWS, bool)
            live[scan.rows] = True
            masks[low:high] = np.packbits(live, bitorder="little").view("<i8")
    own = cuts[numbers]
    of = np.repeat(np.arange(len(numbers)), own)
    tile = np.arange(len(of)) - np.repeat(np.cumsum(own) - own, own)
    which, query = numbers[of], owners[of]
    firsts = np.searchsorted(query, np.arange(len(queries)))
    addresses = np.array([scan.codes.tensor.data_ptr() for scan in lists], np.int64)
    items = np.empty((5, len(of)), np.int64)
    items[0] = addresses[which] + tile * ROWS * size
    items[1] = query
    items[2] = (np.arange(len(of)) - firsts[query]) * ROWS
    items[3] = np.minimum(ROWS, counts[which] - tile * ROWS)
    items[4] = masks[(ends - cuts)[which] + tile]
    labels = np.array([scan.first for scan in lists], np.int64)[which] + tile * ROWS
    return items, firsts, labels


_JOINED_NBYTES = 8 << 20
"""Bytes of lists that cross the link together, at most. A list of 256 rows has about 100 kB."""


@dataclass(slots=True, eq=False)
class DeviceBuffer:
    """Bytes on the device, and the transfer that wrote them last."""

    tensor: Any
    filled: Event | None = None


class CudaDevice(MeasuredScan):
    """A GPU's memory under a ledger of its own, and the search of its lists. All devices on a GPU share its card."""

    name = "cuda"
    in_host_memory = False

    def __init__(
        self,
        memory: MemoryBudget,
        *,
        cap: int | str = "",
        on: str = "cuda",
        compute: str = "",
        int8: str = "",
        streams: Streams | None = None,
        trace: Trace | None = None,
    ) -> None:
        """`memory` is the host's ledger of page-locked buffers and the driver's memory; `cap`, `on`: see
        `open_card`. `compute` and `int8` are for layers of models (`CudaRuntime`)."""
        self.host = memory
        with memory.charge("cuda driver") as self._driver:
            self.card = open_card(on, cap, streams)
        self.memory = self.card.memory
        self.hardware = f"{self.card.name}, with {'our kernels in Triton' if self.card.has_triton else 'torch alone'}"
        self._stand_in = None
        self.most = min(_JOINED_NBYTES, memory.limit // 64, self.memory.limit // 16)
        self._staging: UploadBuffers | None = None
        self._landing: tuple[Any, Lease] | None = None
        self._lock = threading.RLock()
        self._closed = False
        try:
            if not self.card.on_gpu and self.card.users <= 1:  # that device's memory is the host's
                self._stand_in = memory.reserve("cuda on the cpu", self.memory.limit)
        except BaseException:
            close_card(self.card)
            self._driver.release()
            raise
        self.compiling = Compiling(memory, "cuda kernels")
        self.link = Lane("cuda link", trace=trace)
        self._search = DeviceSearch(self.card, memory, self.compiling)

    def allocate(self, nbytes: int) -> DeviceBuffer:
        """The first one takes the memory of searches and transfers, before lists take all there is."""
        self._search.prepare()
        with self._lock:
            if self._landing is None:
                lease = self.memory.reserve("list staging", self.most)
                self._landing = self.card.allocate(self.most), lease
        return DeviceBuffer(self.card.allocate(nbytes))

    def write(self, buffer: DeviceBuffer, data: Bytes) -> None:
        """Fills a buffer through page-locked memory, and waits, so that the link learns its speed."""
        with self._lock:
            # Kernels that were queued before may still read what the buffer held.
            buffer.filled = self._staged().upload(data, buffer.tensor, self.card.compute.record())
        buffer.filled.wait()

    def write_joined(self, nbytes: int, fill: Callable[[Bytes], Sequence[tuple[DeviceBuffer, Bytes]]]) -> None:
        """One copy over the link, and one on the device into all buffers."""
        card, staging = self.card, self._staged()
        with self._lock, staging.lock:
            assert self._landing is not None
            number, pinned = staging.next()
            filled, landing, start = fill(pinned.array[:nbytes]), self._landing[0], pinned.array.ctypes.data
            staging.send(number, nbytes, landing)
            into = [buffer.tensor[: codes.nbytes] for buffer, codes in filled]  # of none that is given up meanwhile
            starts = [codes.ctypes.data - start for _, codes in filled]
            given = [landing[at : at + len(own)] for at, own in zip(starts, into, strict=True)]
            card.inward.wait(card.compute.record())
            card.inward.run(lambda: card.torch._foreach_copy_(into, given))
            arrived = card.inward.record()
        for buffer, _ in filled:
            buffer.filled = arrived
        arrived.wait()

    def pinned(self, nbytes: int) -> Pinned:
        return Pinned(self.card, nbytes)

    def staging(self, nbytes: int) -> UploadBuffers:
        """A ring of page-locked buffers of so many bytes each, under a lease of the host's ledger."""
        return UploadBuffers(self.card, self.host, nbytes)

    def free(self, buffer: DeviceBuffer) -> None:
        """Gives the memory back. A kernel that still reads it comes first in the only stream that will use it anew."""
        buffer.tensor = buffer.tensor[:0].clone()

    def search(self, request: SearchRequest) -> Candidates:
        return self._search.search(request)

    def _staged(self) -> UploadBuffers:
        with self._lock:
            if self._staging is None:
                self._staging = UploadBuffers(self.card, self.host, self.most)
            return self._staging

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self.link.close()
        self._search.close()
        if self._staging is not None:
            self._staging.close()
        if self._landing is not None:
            self._landing[1].release()
            self._landing = None
        close_card(self.card)
        self.compiling.close()
        self._driver.release()
        if self._stand_in is not None:
            self._stand_in.release()


_WORKING_NBYTES = 256 << 20
"""Bytes that a search works with, at most."""

_WORKING_SHARE = 8
"""And at most such a part (1/8) of the device's memory."""


class DeviceSearch:
    """Searches on one card. Threads take turns."""

    def __init__(self, card: Card, host: MemoryBudget, compiling: Compiling) -> None:
        self._card = card
        self._compiling = compiling
        self._intervals = IntervalSearch(card, host)
        self._lock = threading.Lock()
        self._lease: Lease | None = None

    def prepare(self) -> None:
        if self._lease is None:
            memory = self._card.memory
            self._lease = memory.reserve("search", min(_WORKING_NBYTES, memory.limit // _WORKING_SHARE))

    def search(self, request: SearchRequest) -> Candidates:
        if not request.lists:
            return request.seen
        with self._lock:
            self.prepare()
            for scan in request.lists:
                if scan.codes.filled is not None:
                    self._card.compute.wait(scan.codes.filled)
            assert self._lease is not None
            with self._compiling(request.codec.spec.name):
                self._intervals.search(request, self._lease)
        return request.seen

    def close(self) -> None:
        with self._lock:
            if self._lease is not None:
                self._lease.release()
                self._lease = None
            self._intervals.close()
