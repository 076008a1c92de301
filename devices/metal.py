"""`metal`: the GPU of an Apple machine with mlx, which shares the host's memory. On Linux mlx runs on the CPU."""

from __future__ import annotations

import bisect
import importlib
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.budget import Lease, MemoryBudget
from edge.devices.cpu import HostMemory, MeasuredScan
from edge.devices.faiss_codec import PQ_CENTROIDS, SQ_LEVELS
from edge.errors import CapabilityError
from edge.ivf.base import Bytes, Codec, CodecSpec
from edge.ivf.device import Candidates, ListScan, SearchRequest
from edge.trace import Trace

_BLOCK_NBYTES = 32 << 20
"""Approximate number of bytes in the vectors and scores of lists that are scanned together."""

Decode = Callable[[Any], Any]


class MetalDevice(HostMemory, MeasuredScan):
    """Lists in memory that host and GPU share, under one budget."""

    name = "metal"

    def __init__(self, memory: MemoryBudget, *, trace: Trace | None = None) -> None:
        try:
            self._mx = importlib.import_module("mlx.core")
        except ImportError as error:
            raise CapabilityError('device metal needs mlx: pip install "edge-rag[mlx]"') from error
        self._mx.set_cache_limit(0)  # mlx returns freed memory at once
        super().__init__(memory, trace=trace)
        self._lock = threading.RLock()  # the garbage collector may call `free` at any point
        self._starts: list[int] = []
        self._arrays: dict[int, Any] = {}
        self._codecs: dict[int, tuple[Codec, Decode, Lease]] = {}

    def allocate(self, nbytes: int) -> Bytes:
        """A buffer that numpy and mlx share. The caller holds a lease for it."""
        array = self._mx.zeros(max(1, nbytes), dtype=self._mx.uint8)
        self._mx.eval(array)
        view: Bytes = np.array(array, copy=False)
        with self._lock:
            start = view.ctypes.data
            bisect.insort(self._starts, start)
            self._arrays[start] = array
        return view[:nbytes]

    def free(self, buffer: Bytes) -> None:
        with self._lock:
            if self._arrays.pop(buffer.ctypes.data, None) is not None:
                del self._starts[bisect.bisect_left(self._starts, buffer.ctypes.data)]

    def search(self, request: SearchRequest) -> Candidates:
        """Scans lists as products of matrices. The best rows of exact codes are scored again by the host's kernel."""
        if not request.lists:
            return request.seen
        with self._lock:
            decode = self._decoder(request.codec)
        size = request.codec.spec.dim * 8 + request.codec.spec.code_size + 4 * len(request.queries)
        queries = self._mx.array(np.ascontiguousarray(request.queries.T, np.float32))
        block: list[ListScan] = []
        rows = 0
        for scan in request.lists:
            if block and (rows + scan.count) * size > _BLOCK_NBYTES:
                self._scan(request, block, decode, queries, rows * size)
                block, rows = [], 0
            block.append(scan)
            rows += scan.count
        self._scan(request, block, decode, queries, rows * size)
        return request.seen

    def close(self) -> None:
        super().close()
        with self._lock:
            for _, _, lease in self._codecs.values():
                lease.release()
            self._codecs.clear()

    def _scan(self, request: SearchRequest, lists: list[ListScan], decode: Decode, queries: Any, nbytes: int) -> None:
        mx = self._mx
        with self.memory.reserve("search", nbytes):
            products = [decode(self._codes(scan.codes)) @ queries for scan in lists]
            mx.eval(*products)
            scores = [np.array(product, copy=False) for product in products]  # [rows, q] each
            for query in range(len(request.queries)):
                own = [n for n, scan in enumerate(lists) if query in scan.queries]
                if own:
                    self._offer(request, query, [lists[n] for n in own], [scores[n][:, query] for n in own])

    @staticmethod
    def _offer(
        request: SearchRequest, query: int, lists: list[ListScan], scores: list[npt.NDArray[np.float32]]
    ) -> None:
        seen = request.seen
        rows = [np.arange(scan.count) if scan.rows is None else np.asarray(scan.rows) for scan in lists]
        values = np.concatenate([own[which] for own, which in zip(scores, rows, strict=True)])
        labels = np.concatenate([scan.first + which for scan, which in zip(lists, rows, strict=True)])
        width = seen.scores.shape[1]
        if len(values) > width:
            kept = np.argpartition(-values, width - 1)[:width]
            values, labels = values[kept], labels[kept]
        if not request.codec.spec.exact:
            seen.offer(query, values, labels)
            return
        scanner = request.codec.scanner()
        scanner.set_query(request.queries[query])
        for scan in lists:
            own = labels[(labels >= scan.first) & (labels < scan.first + scan.count)]
            if len(own):
                codes = scan.codes.reshape(scan.count, -1)[own - scan.first]
                scanner.scan(codes, own, seen.scores[query], seen.labels[query])

    def _codes(self, codes: Bytes) -> Any:
        """mlx's view of a list's codes [bytes], or a copy if they are not in this device's memory."""
        start = codes.ctypes.data
        with self._lock:
            place = bisect.bisect_right(self._starts, start) - 1
            if place >= 0:
                array, offset = self._arrays[self._starts[place]], start - self._starts[place]
                if offset + codes.nbytes <= array.size:
                    return array[offset : offset + codes.nbytes]
        return self._mx.array(codes.reshape(-1))

    def _decoder(self, codec: Codec) -> Decode:
        known = self._codecs.get(id(codec))
        if known is None or known[0] is not codec:
            lease = self.memory.reserve("codec", 2 * len(codec.spec.state))
            known = self._codecs[id(codec)] = (codec, _decoder(self._mx, codec.spec), lease)
        return known[1]


def _decoder(mx: Any, spec: CodecSpec) -> Decode:
    dim = spec.dim
    state = mx.array(np.frombuffer(spec.state, "<f4").astype(np.float32))
    if spec.name == "flat":
        return lambda codes: codes.view(mx.float32).reshape(-1, dim)
    if spec.name == "sq8":
        low, step = state[:dim], state[dim:] / SQ_LEVELS
        start = low + step / 2  # a code represents the middle of its step
        return lambda codes: codes.reshape(-1, dim).astype(mx.float32) * step + start
    if spec.has_tables:
        turn = state[: dim * dim].reshape(dim, dim) if spec.name == "opq" else None
        parts, own = spec.code_size, state if turn is None else state[dim * dim :]
        table, offsets = own.reshape(parts * PQ_CENTROIDS, -1), mx.arange(parts) * PQ_CENTROIDS

        def looked_up(codes: Any) -> Any:
            vectors = table[codes.reshape(-1, parts).astype(mx.int32) + offsets].reshape(-1, dim)
            return vectors if turn is None else vectors @ turn

        return looked_up
    raise CapabilityError(f"device metal scans lists of the codecs flat, sq8, pq and opq, not {spec.name}")
