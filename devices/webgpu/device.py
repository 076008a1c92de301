"""`webgpu`: a GPU as a place for lists, through Vulkan, Metal or DirectX 12, and the scan of lists there.

For each block of rows the GPU computes scores and finds the k-th largest maximum of small groups: at least k rows reach
this floor. Only rows above it come back, and the host scores them itself: a score there is an interval that contains
the host's."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.budget import Lease, MemoryBudget
from edge.devices.cpu import MeasuredScan
from edge.devices.faiss_codec import offer, prepared
from edge.devices.webgpu.card import ListBuffer, SharedGpu, Slab, Slabs
from edge.errors import CapabilityError
from edge.ivf.base import Bytes, CodecSpec, Vectors
from edge.ivf.device import Candidates, ListScan, SearchRequest
from edge.link import Lane
from edge.trace import Trace


class WebGpuDevice(MeasuredScan):
    """A GPU's memory under a ledger of its own, and the search of its lists. All devices on it share the card."""

    name = "webgpu"
    in_host_memory = False

    def __init__(
        self,
        memory: MemoryBudget,
        *,
        cap: int | str = "",
        on: str = "",
        always: bool | str = False,
        trace: Trace | None = None,
    ) -> None:
        """`memory` covers what the library and driver take here, and the cap if the GPU has the host's memory. `cap`
        defaults to 64 MB of such a GPU, and 1 GB of another. `on` is a part of the GPU's name. `always` keeps one in
        use that is slower than the host."""
        self._hold = SharedGpu(memory, on, cap)
        self.card = self._hold.card
        self.host = memory
        self.compiling = self._hold.compiling
        self.hardware = self.card.hardware
        self.memory = self.card.memory
        self.shared = self.card.shared and not always
        self.link = Lane("webgpu link", trace=trace)
        self._search = GpuSearch(self._hold)
        self._slabs = Slabs(self.card, self._search.scratch)
        self.card.makes_room = self._slabs.shrink
        self._closed = False

    def allocate(self, nbytes: int) -> ListBuffer:
        self._search.prepare()
        with self.card.lock:
            idle = self._search.turn.acquire(blocking=False)
            try:
                return self._slabs.allocate(nbytes, kept=self._search.kept, move=idle)
            finally:
                if idle:
                    self._search.turn.release()

    def write(self, buffer: ListBuffer, data: Bytes) -> None:
        """Sends bytes and waits until they have arrived, so that the link learns how fast it is."""
        with self.card.lock:
            self.card.write(buffer.slab.buffer, buffer.offset, data)
        self.card.synchronize()

    def download(self, buffer: Any, nbytes: int) -> npt.NDArray[np.uint8]:
        """The first bytes of a buffer of the card, after everything that was submitted."""
        with self.host.reserve("webgpu results", 2 * nbytes):
            landing = self.card.landing(nbytes)
            with self.card.lock, self.card.answering():
                encoder = self.card.device.create_command_encoder()
                encoder.copy_buffer_to_buffer(buffer, 0, landing, 0, nbytes)
                self.card.device.queue.submit([encoder.finish()])
            found = self.card.read(landing, nbytes)
            landing.destroy()
        return found

    def free(self, buffer: ListBuffer) -> None:
        """Gives the room back. Commands that read it were submitted before those that will write to it anew."""
        self._slabs.free(buffer)

    def search(self, request: SearchRequest) -> Candidates:
        """Scans all lists of the request, for eight queries at a time."""
        return self._search.search(request)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self.link.close()
        self._search.close()
        with self.card.lock:
            self._slabs.close()
        self._hold.close()


ROWS = 64
"""Rows that a workgroup scores."""

TOGETHER = 8
"""Queries that are scored together."""

_SCORES_SHARE = 16
_MOST_SLOTS = 1 << 13
_SLOT_NBYTES = 2 * 4 * ROWS + 4
"""A slot is 64 rows of one query: scores, maxima and number. A block has at most so many slots, of at most such a part
of the memory."""

_WORKING_NBYTES, _WORKING_SHARE = 32 << 20, 8
"""Bytes kept for searches to work with, and their largest part of the device's memory."""

_GROUPS, _MANY = 16, 2
"""Groups of the rows of a slot, if a query then has so many times k of them; otherwise each row is a group."""

_UNIFORM_NBYTES = 1 << 16
"""Bytes of the queries of flat and sq8, which lie in memory that all threads read fast."""

_LEAST_FOUND = 512
_NONE = np.float32(-3.4e38)
_SCAN, _SELECT = (Path(__file__).with_name(name) for name in ("scan.wgsl", "select.wgsl"))

Items = npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class _Batch:
    """At most eight queries: their numbers, values [queries, n] float32, and heads [8, 4]: base, margin, floor."""

    numbers: list[int]
    values: Vectors
    heads: Vectors


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows to scan, in items [n, 5] uint32 (see scan.wgsl) of at most 64 rows of one list, with each item's slab,
    queries at once (1 or 8), and label of row 0."""

    items: Items
    slabs: list[Slab]
    together: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.items)

    def part(self, low: int, high: int) -> _Rows:
        return _Rows(self.items[low:high], self.slabs[low:high], self.together[low:high], self.labels[low:high])


class GpuSearch:
    """Searches on one card. Threads take turns: `turn` is held during a search, and lists do not move meanwhile."""

    def __init__(self, hold: SharedGpu) -> None:
        self._hold = hold
        self._card = hold.card
        self.turn = threading.Lock()
        self._buffers: dict[str, Any] = {}
        self._landing: Any = None
        self._lease: Lease | None = None
        self._landed = hold.host.reserve("webgpu results", 0)

    def prepare(self) -> None:
        """Takes the memory that a search works with, before lists take all there is."""
        with self._card.lock:
            if self._lease is None:
                limit = self._card.memory.limit
                self._lease = self._card.memory.reserve("search", min(_WORKING_NBYTES, limit // _WORKING_SHARE))
                self._room("scores", self._slots * ROWS * 4)
                self._room("maxima", self._slots * ROWS * 4)
                self._room("slots", (self._slots + TOGETHER + 1) * 4)

    @property
    def kept(self) -> int:
        return 0 if self._lease is None else self._lease.nbytes - self._working

    def scratch(self) -> Any:
        """A buffer of no content between searches."""
        return self._buffers["scores"]

    def search(self, request: SearchRequest) -> Candidates:
        if not request.lists:
            return request.seen
        with self.turn:
            self.prepare()
            step = _batch_size(request.codec.spec)
            for first in range(0, len(request.queries), step):
                numbers = list(range(first, min(first + step, len(request.queries))))
                own = prepared("webgpu", request.codec.spec, request.queries[numbers])
                heads = np.zeros((TOGETHER, 4), np.float32)
                heads[: len(numbers), 0], heads[: len(numbers), 1] = own.base, own.margin
                batch = _Batch(numbers, own.values, heads)
                rows = _rows(request.lists, numbers, request.codec.spec.code_size)
                low = 0
                while low < len(rows):
                    high = self._end(rows, low)
                    self._scan(request, batch, rows.part(low, high))
                    low = high
        return request.seen

    def close(self) -> None:
        with self.turn, self._card.lock:
            for buffer in self._buffers.values():
                self._card.destroy(buffer)
            self._buffers.clear()
            if self._landing is not None:
                self._landing.destroy()
                self._landing = None
            self._landed.release()
            if self._lease is not None:
                self._lease.release()
                self._lease = None

    @property
    def _slots(self) -> int:
        return max(TOGETHER, min(_MOST_SLOTS, self._card.memory.limit // _SCORES_SHARE // _SLOT_NBYTES))

    def _end(self, rows: _Rows, low: int) -> int:
        slots = np.cumsum(rows.together[low : low + self._slots])
        return low + max(1, int(np.searchsorted(slots, self._slots, side="right")))

    def _scan(self, request: SearchRequest, batch: _Batch, rows: _Rows) -> None:
        """Scans a block of rows and merges the best of them, in halves if too many rows are above the floor."""
        seen, size = request.seen, request.codec.spec.code_size
        width = seen.scores.shape[1]
        for place, number in enumerate(batch.numbers):
            batch.heads[place, 2] = max(_NONE, np.float32(seen.floor(number)))
        most = int(rows.together.sum()) * ROWS
        capacity = min(most, max(_LEAST_FOUND, len(batch.numbers) * (2 * width + ROWS)))
        words = -(-size // 4) if size % 4 == 0 else (size + 6) // 4
        found = self._run(request.codec.spec, batch, rows, width, capacity, words)
        if found is None:
            half = len(rows) // 2
            if not half:
                raise AssertionError("an item has no more rows than may be found")
            self._scan(request, batch, rows.part(0, half))
            self._scan(request, batch, rows.part(half, len(rows)))
            return
        items, row = np.divmod(found[:, 0], ROWS)
        labels = rows.labels[items] + row
        codes = _cut(found[:, 2:], rows.items[items, 0] + row * size, size)
        for query in np.unique(found[:, 1]).tolist():
            own = np.flatnonzero(found[:, 1] == query)
            offer(request, batch.numbers[query], codes[own], labels[own])

    def _run(
        self, spec: CodecSpec, batch: _Batch, rows: _Rows, k: int, capacity: int, words: int
    ) -> npt.NDArray[np.int64] | None:
        """Runs the kernels on a block. Returns the rows that may be among the best, [n, 2 + words]: item and row,
        query, and the code; None if there are more than `capacity`."""
        card, size = self._card, spec.code_size
        ranges, slots, groups = _ranges(rows, batch, k)
        nbytes = capacity * (2 + words) * 4
        with card.lock:
            card.write(self._room("items", rows.items.nbytes), 0, rows.items)
            card.write(self._room("heads", batch.heads.nbytes), 0, batch.heads)
            card.write(self._room("slots", slots.nbytes), 0, slots)
            sizes = {int(each) for each in rows.together}
            if 1 in sizes:
                card.write(self._room("one", max(_UNIFORM_NBYTES, batch.values.nbytes)), 0, batch.values)
            if TOGETHER in sizes:
                wide = np.zeros((batch.values.shape[1], TOGETHER), np.float32)
                wide[:, : len(batch.values)] = batch.values.T
                card.write(self._room("eight", max(_UNIFORM_NBYTES, wide.nbytes)), 0, wide)
            table = np.zeros((len(ranges), 64), np.uint32)
            for number, (_, _, item, slot, together) in enumerate(ranges):
                table[number, :8] = item, slot, together, groups, capacity, k, size, words
            card.write(self._room("ranges", table.nbytes), 0, table)
            for name, needed in (("floors", 4 * TOGETHER), ("number", 4), ("found", nbytes)):
                self._room(name, needed)
            landing = self._land(4 + nbytes)
        with self._hold.compiling((spec.name, spec.dim, size, *sorted(sizes))):
            with card.lock:
                self._submit(spec, ranges, nbytes, landing)
            landed = card.read(landing, 4 + nbytes)
        count = int(landed[:4].view(np.uint32)[0])
        if count > capacity:
            return None
        return landed[4 : 4 + count * (2 + words) * 4].view(np.uint32).reshape(count, 2 + words).astype(np.int64)

    def _submit(self, spec: CodecSpec, ranges: list[_Range], nbytes: int, landing: Any) -> None:
        card, own = self._card, self._buffers
        kind = "pq" if spec.has_tables else spec.name
        size = spec.code_size
        bound = {4: own.get("one"), 5: own.get("eight")}
        if not spec.has_tables:
            bound = {place: (buffer, 0, _UNIFORM_NBYTES) for place, buffer in bound.items()}
        floor_of, survivors = (card.pipeline(_SELECT, entry) for entry in ("floor_of", "survivors"))
        with card.answering():
            encoder = card.device.create_command_encoder()
            encoder.clear_buffer(own["number"])
            work = encoder.begin_compute_pass()
            for number, (count, slab, _, _, together) in enumerate(ranges):
                entry = f"{kind}_{'one' if together == 1 else 'eight'}"
                scan = card.pipeline(_SCAN, entry, DIM=spec.dim, SIZE=size, WIDE=size % 16 == 0)
                group = {
                    0: slab.buffer, 1: own["items"], 2: (own["ranges"], 256 * number, 32), 3: own["heads"],
                    6: own["scores"], 7: own["maxima"],
                }  # fmt: skip
                place = 4 if together == 1 else 5
                group[place] = bound[place]
                self._dispatch(work, scan, group, count)
            group = {
                0: own["slots"], 2: (own["ranges"], 0, 32), 3: own["heads"], 4: own["maxima"], 5: own["floors"],
            }  # fmt: skip
            self._dispatch(work, floor_of, group, TOGETHER)
            for number, (count, slab, _, _, together) in enumerate(ranges):
                group = {
                    1: own["items"], 2: (own["ranges"], 256 * number, 32), 5: own["floors"], 6: own["scores"],
                    7: slab.buffer, 8: own["number"], 9: own["found"],
                }  # fmt: skip
                self._dispatch(work, survivors, group, count * together)
            work.end()
            encoder.copy_buffer_to_buffer(own["number"], 0, landing, 0, 4)
            encoder.copy_buffer_to_buffer(own["found"], 0, landing, 4, nbytes)
            card.device.queue.submit([encoder.finish()])

    def _dispatch(self, work: Any, pipeline: Any, buffers: dict[int, Any], count: int) -> None:
        work.set_pipeline(pipeline)
        work.set_bind_group(0, self._card.bind(pipeline, buffers))
        work.dispatch_workgroups(count)

    def _room(self, name: str, nbytes: int) -> Any:
        buffer = self._buffers.get(name)
        if buffer is not None and buffer.size >= nbytes:
            return buffer
        assert self._lease is not None
        nbytes = -(-nbytes // 256) * 256
        had = 0 if buffer is None else buffer.size
        self._lease.resize(max(self._lease.nbytes, self._working - had + nbytes))
        if buffer is not None:
            del self._buffers[name]
            self._card.destroy(buffer)
        made = self._buffers[name] = self._card.buffer(nbytes)
        return made

    @property
    def _working(self) -> int:
        return sum(buffer.size for buffer in self._buffers.values())

    def _land(self, nbytes: int) -> Any:
        if self._landing is None or self._landing.size < nbytes:
            size = -(-nbytes // 4096) * 4096
            self._landed.resize(4 * size)  # as it lands, and as the host reads it
            if self._landing is not None:
                self._landing.destroy()
            self._landing = self._card.landing(size)
        return self._landing


_Range = tuple[int, Slab, int, int, int]
"""Neighbouring items of one slab for one command: number, slab, first item and slot, and slots of each."""


def _ranges(rows: _Rows, batch: _Batch, k: int) -> tuple[list[_Range], npt.NDArray[np.uint32], int]:
    """The commands that score a block, the slots of each query (bounds [9] and numbers), and the groups of a slot."""
    ranges: list[_Range] = []
    starts = np.concatenate(([0], np.cumsum(rows.together)[:-1])).astype(np.int64)
    low = 0
    for high in range(1, len(rows) + 1):
        if high == len(rows) or rows.slabs[high] is not rows.slabs[low] or rows.together[high] != rows.together[low]:
            ranges.append((high - low, rows.slabs[low], low, int(starts[low]), int(rows.together[low])))
            low = high
    one = rows.together == 1
    queries = rows.items[:, 4]
    own = [
        np.concatenate((starts[one & (queries == query)], starts[~one & ((queries >> query) & 1 == 1)] + query))
        for query in range(TOGETHER)
    ]
    bounds = np.concatenate(([0], np.cumsum([len(each) for each in own])))
    fewest = min((len(each) for each in own if len(each)), default=0)
    groups = _GROUPS if fewest * _GROUPS >= _MANY * k else ROWS
    return ranges, np.concatenate((bounds, *own)).astype(np.uint32), groups


def _rows(lists: Any, numbers: list[int], size: int) -> _Rows:
    """The rows of the lists that some of these queries probe, those of one slab together."""
    chosen: list[tuple[ListScan, list[int]]] = []
    place = {number: at for at, number in enumerate(numbers)}
    for scan in lists:
        own = [place[query] for query in scan.queries if query in place]
        if own and scan.count:
            chosen.append((scan, own))
    chosen.sort(key=lambda each: (id(each[0].codes.slab), len(each[1]) > 1))
    if not chosen:
        return _Rows(np.zeros((0, 5), np.uint32), [], np.zeros(0, np.int64), np.zeros(0, np.int64))
    counts = np.array([scan.count for scan, _ in chosen])
    cuts = -(-counts // ROWS)
    of = np.repeat(np.arange(len(chosen)), cuts)
    first = (np.arange(len(of)) - np.repeat(np.cumsum(cuts) - cuts, cuts)) * ROWS
    items = np.empty((len(of), 5), np.uint32)
    items[:, 0] = np.array([scan.codes.offset for scan, _ in chosen])[of] + first * size
    items[:, 1] = np.minimum(ROWS, counts[of] - first)
    items[:, 2:4] = 0xFFFFFFFF
    items[:, 4] = np.array([own[0] if len(own) == 1 else sum(1 << each for each in own) for _, own in chosen])[of]
    ends = np.cumsum(cuts)
    for number, (scan, _) in enumerate(chosen):
        if scan.rows is not None:
            mask = np.zeros(int(cuts[number]) * ROWS, bool)
            mask[scan.rows] = True
            bits = np.packbits(mask, bitorder="little").view("<u4").reshape(-1, 2)
            items[ends[number] - cuts[number] : ends[number], 2:4] = bits
    slabs = [chosen[number][0].codes.slab for number in of.tolist()]
    together = np.array([1 if len(own) == 1 else TOGETHER for _, own in chosen], np.int64)[of]
    return _Rows(items, slabs, together, np.array([scan.first for scan, _ in chosen])[of] + first)


def _batch_size(spec: CodecSpec) -> int:
    """Queries of one batch: eight, or one if the vectors are wide."""
    most = _UNIFORM_NBYTES // (4 * (spec.dim + -spec.dim % 16))
    if not most and not spec.has_tables:
        raise CapabilityError(
            f"device webgpu scans vectors of at most {_UNIFORM_NBYTES // 4} components, not {spec.dim}"
        )
    return TOGETHER if most >= TOGETHER or spec.has_tables else 1


def _cut(words: npt.NDArray[np.int64], starts: npt.NDArray[np.int64], size: int) -> Bytes:
    """The codes [n, size] within words [n, w] that begin at the last multiple of 4 before each code's first byte."""
    whole: Bytes = words.astype("<u4").view(np.uint8)
    if size % 4 == 0:
        return whole
    return np.take_along_axis(whole, (starts % 4)[:, None] + np.arange(size), axis=1)
