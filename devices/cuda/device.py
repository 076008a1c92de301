"""`cuda`: a GPU as a place for lists and layers, and the scan of the lists there: by our own kernels (`FusedSearch`),
or by torch alone. Then the codes of a block of lists become one matrix, which is multiplied with all queries."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.budget import Lease, MemoryBudget
from edge.devices.compiling import Compiling
from edge.devices.cpu import MeasuredScan
from edge.devices.cuda.card import Card, Pinned, Streams, UploadBuffers, close_card, open_card
from edge.devices.cuda.scanning import FusedSearch
from edge.devices.intervals import PQ_CENTROIDS, SQ_LEVELS
from edge.errors import CapabilityError
from edge.ivf.base import Bytes, Codec, CodecSpec
from edge.ivf.device import Candidates, Event, ListScan, SearchRequest
from edge.link import Lane
from edge.trace import Trace

_STAGING_NBYTES = 1 << 20
"""Bytes of each of the two buffers that lists go through. A list of 256 rows has about 100 kB."""


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
        streams: Streams | None = None,
        trace: Trace | None = None,
    ) -> None:
        """`memory` is the host's ledger of page-locked buffers and the driver's memory; `cap`, `on`: see
        `open_card`."""
        self.host = memory
        with memory.charge("cuda driver") as self._driver:
            self.card = open_card(on, cap, streams)
        self.memory = self.card.memory
        self.hardware = f"{self.card.name}, with {'our kernels in Triton' if self.card.has_triton else 'torch alone'}"
        self._stand_in = None
        self._staging: UploadBuffers | None = None
        self._lock = threading.Lock()
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
        self._search.prepare()
        return DeviceBuffer(self.card.allocate(nbytes))

    def write(self, buffer: DeviceBuffer, data: Bytes) -> None:
        """Fills a buffer through page-locked memory, and waits, so that the link learns its speed."""
        with self._lock:
            if self._staging is None:
                self._staging = UploadBuffers(self.card, self.host, _STAGING_NBYTES)
            # Kernels that were queued before may still read what the buffer held.
            buffer.filled = self._staging.upload(data, buffer.tensor, self.card.compute.record())
        buffer.filled.wait()

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

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self.link.close()
        self._search.close()
        if self._staging is not None:
            self._staging.close()
        close_card(self.card)
        self.compiling.close()
        self._driver.release()
        if self._stand_in is not None:
            self._stand_in.release()


_BLOCK_ROWS = 1 << 16
"""Rows of a block, about: 100 MB as float32 vectors of 384 components."""

_LEAST_ROWS = 64

_WORKING_NBYTES = 256 << 20
"""Bytes of the vectors and the scores of a block, at most."""

_WORKING_SHARE = 8
"""They take at most such a part of the device's memory."""


@dataclass(frozen=True, slots=True)
class Decoder:
    """A codec on the device: bytes of a code, a function from bytes [rows * size] to float32 [rows, dim], its lease."""

    size: int
    decode: Callable[[Any], Any]
    lease: Lease


@dataclass(frozen=True, slots=True)
class _Piece:
    scan: ListScan
    low: int
    high: int

    @property
    def rows(self) -> int:
        return self.high - self.low

    def live(self) -> npt.NDArray[np.bool_]:
        mask = np.full(self.rows, self.scan.rows is None)
        if self.scan.rows is not None:
            first, last = np.searchsorted(self.scan.rows, (self.low, self.high))
            mask[self.scan.rows[first:last] - self.low] = True
        return mask


class DeviceSearch:
    """Searches on one card. Threads take turns."""

    def __init__(self, card: Card, host: MemoryBudget, compiling: Compiling) -> None:
        self._card = card
        self._compiling = compiling
        self._fused = FusedSearch(card, host) if card.has_triton else None
        self._lock = threading.Lock()
        self._codecs: dict[int, tuple[Codec, Decoder]] = {}
        self._lease: Lease | None = None

    def prepare(self) -> None:
        """Takes the memory that a search works with, before lists take all there is."""
        if self._lease is None:
            memory = self._card.memory
            self._lease = memory.reserve("search", min(_WORKING_NBYTES, memory.limit // _WORKING_SHARE))

    def search(self, request: SearchRequest) -> Candidates:
        if not request.lists:
            return request.seen
        torch, card = self._card.torch, self._card
        with self._lock:
            self.prepare()
            for scan in request.lists:
                if scan.codes.filled is not None:
                    card.compute.wait(scan.codes.filled)
            if self._fused is not None:
                assert self._lease is not None
                with self._compiling(request.codec.spec.name):
                    self._fused.search(request, self._lease)
                return request.seen
            decoder = self._decoder(request.codec)
            rows = self._block_rows(request)
            found = _Found()
            matrix = np.ascontiguousarray(request.queries, np.float32).copy()

            def scan_all() -> None:
                blocks = _Blocks(torch, card.device, decoder, matrix, request.seen.scores.shape[1])
                for pieces in _blocks(request.lists, rows):
                    blocks.take(pieces)
                found.scores, found.labels = blocks.scores, blocks.labels

            card.compute.run(scan_all)
            best = found.download(torch, card, request)
        for query, (scores, labels) in enumerate(best):
            request.seen.offer(query, scores, labels)
        return request.seen

    def close(self) -> None:
        with self._lock:
            for _, decoder in self._codecs.values():
                decoder.lease.release()
            self._codecs.clear()
            if self._lease is not None:
                self._lease.release()
                self._lease = None
            if self._fused is not None:
                self._fused.close()

    def _decoder(self, codec: Codec) -> Decoder:
        known = self._codecs.get(id(codec))
        if known is None or known[0] is not codec:
            known = self._codecs[id(codec)] = (codec, _decoder(self._card, codec.spec))
        return known[1]

    def _block_rows(self, request: SearchRequest) -> int:
        """Rows of a block that fit the memory taken; a request for very many rows takes more."""
        assert self._lease is not None
        queries, width = request.seen.scores.shape
        spec = request.codec.spec
        row, fixed = _row_nbytes(spec, queries), queries * (width * 48 + spec.dim * 8)
        if self._lease.nbytes < fixed + _LEAST_ROWS * row:
            self._lease.resize(fixed + _LEAST_ROWS * row)
        rows: int = (self._lease.nbytes - fixed) // row
        return min(_BLOCK_ROWS, rows)


class _Found:
    """Results of a scan, which stay on the device: scores and labels [q, width]."""

    scores: Any
    labels: Any

    def download(
        self, torch: Any, card: Card, request: SearchRequest
    ) -> list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
        """The best rows of each query, in host memory, which scores codes that are vectors again."""
        queries, width = request.seen.scores.shape
        card.compute.synchronize()
        scores, labels = self.scores.cpu().numpy(), self.labels.cpu().numpy()
        exact = request.codec.spec.exact
        vectors = self._rows(torch, card, request, labels) if exact else None
        best = []
        for query in range(queries):
            taken = labels[query] >= 0
            own, values = labels[query][taken], scores[query][taken]
            if vectors is not None and len(own):
                heap, found = np.full(width, -np.inf, np.float32), np.full(width, -1, np.int64)
                scanner = request.codec.scanner()
                scanner.set_query(request.queries[query])
                scanner.scan(np.ascontiguousarray(vectors[query][taken]), own, heap, found)
                kept = found >= 0
                own, values = found[kept], heap[kept]
            above = values > request.seen.floor(query)
            best.append((values[above], own[above]))
        return best

    @staticmethod
    def _rows(torch: Any, card: Card, request: SearchRequest, labels: Any) -> Any:
        size = request.codec.spec.code_size
        result = np.zeros((*labels.shape, size), np.uint8)
        flat, places = labels.reshape(-1), np.flatnonzero(labels.reshape(-1) >= 0)
        firsts = np.array([scan.first for scan in request.lists])
        order = np.argsort(firsts)
        of = order[np.searchsorted(firsts[order], flat[places], side="right") - 1]
        got: list[Any] = []
        with torch.inference_mode():
            for number in np.unique(of).tolist():
                scan = request.lists[number]
                rows = torch.from_numpy(flat[places[of == number]] - scan.first).to(card.device)
                got.append(scan.codes.tensor[: scan.count * size].view(scan.count, size)[rows].cpu().numpy())
        into = result.reshape(-1, size)
        for number, codes in zip(np.unique(of).tolist(), got, strict=True):
            into[places[of == number]] = codes
        return result


class _Blocks:
    """Scans block after block, and keeps the best rows of each query [q, width]; -inf and -1 where none."""

    def __init__(self, torch: Any, device: Any, decoder: Decoder, queries: Any, width: int) -> None:
        self._torch = torch
        self._device = device
        self._decoder = decoder
        self._queries = torch.from_numpy(queries).to(device).t()
        count = self._queries.shape[1]
        self.scores = torch.full((count, width), -torch.inf, device=device)
        self.labels = torch.full((count, width), -1, dtype=torch.int64, device=device)
        self._count, self._width = count, width

    def take(self, pieces: Sequence[_Piece]) -> None:
        torch, device, size = self._torch, self._device, self._decoder.size
        counts = torch.tensor([piece.rows for piece in pieces], device=device)
        firsts = torch.tensor([piece.scan.first + piece.low for piece in pieces], device=device)
        codes = torch.cat([piece.scan.codes.tensor[piece.low * size : piece.high * size] for piece in pieces])
        scores = self._decoder.decode(codes) @ self._queries  # [rows, q]
        rows = sum(piece.rows for piece in pieces)  # else torch would wait for the device to say it
        owners = torch.repeat_interleave(torch.arange(len(pieces), device=device), counts, output_size=rows)
        labels = torch.arange(rows, device=device) + (firsts - torch.cumsum(counts, 0) + counts)[owners]
        probed = np.zeros((len(pieces), self._count), bool)
        for number, piece in enumerate(pieces):
            probed[number, list(piece.scan.queries)] = True
        if not probed.all():
            scores.masked_fill_(~torch.from_numpy(probed).to(device)[owners], -torch.inf)
        if any(piece.scan.rows is not None for piece in pieces):
            live = np.concatenate([piece.live() for piece in pieces])
            scores.masked_fill_(~torch.from_numpy(live).to(device)[:, None], -torch.inf)
        values, places = torch.topk(scores.t(), min(self._width, rows))
        merged = torch.cat((self.scores, values), 1)
        names = torch.cat((self.labels, torch.where(values > -torch.inf, labels[places], -1)), 1)
        self.scores, order = torch.topk(merged, self._width)
        self.labels = names.gather(1, order)


def _blocks(lists: Sequence[ListScan], rows: int) -> Iterator[list[_Piece]]:
    block: list[_Piece] = []
    room = rows
    for scan in lists:
        low = 0
        while low < scan.count:
            high = min(scan.count, low + room)
            block.append(_Piece(scan, low, high))
            room -= high - low
            low = high
            if not room:
                yield block
                block, room = [], rows
    if block:
        yield block


def _row_nbytes(spec: CodecSpec, queries: int) -> int:
    """Device memory for each row of a block: code, vector twice (float32), scores, and finding the best ones."""
    return spec.code_size + 8 * spec.dim + 12 * queries + 48


def _decoder(card: Card, spec: CodecSpec) -> Decoder:
    torch, device, dim = card.torch, card.device, spec.dim
    if spec.name not in ("flat", "sq8", "pq", "opq"):
        raise CapabilityError(f"device cuda scans lists of the codecs flat, sq8, pq and opq, not {spec.name}")
    lease = card.memory.reserve("codec", 2 * len(spec.state))
    state = torch.from_numpy(np.frombuffer(spec.state, "<f4").astype(np.float32)).to(device)
    if spec.name == "flat":
        return Decoder(spec.code_size, lambda codes: codes.view(torch.float32).view(-1, dim), lease)
    if spec.name == "sq8":
        low, step = state[:dim], state[dim:] / SQ_LEVELS
        start = low + step / 2  # a code stands for the middle of its step
        return Decoder(dim, lambda codes: torch.addcmul(start, codes.view(-1, dim).to(torch.float32), step), lease)
    parts = spec.code_size
    turn = state[: dim * dim].view(dim, dim) if spec.name == "opq" else None
    table = state if turn is None else state[dim * dim :]
    table = table.view(parts * PQ_CENTROIDS, -1)
    offsets = torch.arange(parts, device=device) * PQ_CENTROIDS

    def looked_up(codes: Any) -> Any:
        vectors = table[codes.view(-1, parts).to(torch.int64) + offsets].view(-1, dim)
        return vectors if turn is None else vectors @ turn

    return Decoder(parts, looked_up, lease)
