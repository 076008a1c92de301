"""Codecs, k-means and list scanners from faiss, imported at first use. No codec encodes residuals: a code does not
depend on its list, so lists can be split and merged without new codes.

For devices that sum in another order, scores of rows are intervals that contain the host's scores (`Prepared`). Rows
that may be among the best come back with their codes, and the host's scanner scores them, so results equal the host's
to the last bit."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.errors import CapabilityError, ConfigError, StorageError
from edge.ivf.base import Bytes, CodecSpec, Ids, Scanner, Vectors
from edge.ivf.device import SearchRequest

NAMES = ("flat", "sq8", "pq", "opq")
_QUANTIZED = ("pq", "opq")

_PQ_WIDTH = 4
"""Number of vector components that product quantization encodes in one byte, if no size of codes is given."""

_PQ_CENTROIDS = 256

_SQ_ROOM = 0.25
"""The range of each component is that of the sample, extended by this share. Values outside are clipped."""

_PQ_ITERATIONS = 10

_DECODE_ROWS = 2048
"""Number of rows of the sample that k-means holds as float32 at a time."""


def _faiss() -> Any:
    try:
        import faiss
    except ImportError as error:
        raise CapabilityError("the index needs faiss: pip install faiss-cpu") from error
    return faiss


class FaissCodecs:
    """The library with which the index trains its centroids and codecs."""

    libraries = ("faiss",)

    def __init__(self, *, threads: int = 0) -> None:
        self._threads = threads

    def open(self, spec: CodecSpec) -> FaissCodec:
        return FaissCodec(spec)

    def train(self, name: str, sample: Vectors, *, seed: int, code_size: int = 0) -> CodecSpec:
        dim = sample.shape[1]
        if name == "flat":
            return CodecSpec("flat", dim, 4 * dim)
        faiss = self._faiss()
        if name == "sq8":
            index = _untrained(faiss, name, dim, dim)
            index.sq.rangestat = faiss.ScalarQuantizer.RS_minmax
            index.sq.rangestat_arg = _SQ_ROOM
        elif name in _QUANTIZED:
            parts = code_size or dim // _PQ_WIDTH
            if dim % _PQ_WIDTH and not code_size:
                raise ConfigError(
                    f"codec {name} needs vectors whose width is a multiple of {_PQ_WIDTH}, not {dim}: use sq8"
                )
            if dim % parts:
                raise ConfigError(f"codec {name} cannot cut vectors of width {dim} into {parts} equal parts")
            index = _untrained(faiss, name, dim, parts)
            index.pq.cp.seed = seed
            index.pq.cp.min_points_per_centroid = 1
            index.pq.cp.niter = _PQ_ITERATIONS
        else:
            raise ConfigError(f"there is no codec {name!r}; there are {', '.join(NAMES)} and auto")
        turn = rotation(sample, parts) if name == "opq" else np.empty((0, dim), np.float32)
        index.train(np.ascontiguousarray(sample @ turn.T if len(turn) else sample))
        values = faiss.vector_to_array(_trained(name, index))
        state = np.concatenate((turn.reshape(-1), values))
        return CodecSpec(name, dim, index.sa_code_size(), np.asarray(state, "<f4").tobytes())

    def cluster(self, sample: npt.NDArray[np.float16], nlist: int, *, iterations: int, seed: int) -> Vectors:
        faiss = self._faiss()
        dim = sample.shape[1]
        clustering = faiss.Clustering(dim, nlist)
        clustering.niter = iterations
        clustering.seed = seed
        clustering.spherical = True
        clustering.min_points_per_centroid = 1
        clustering.max_points_per_centroid = len(sample)
        clustering.decode_block_size = _DECODE_ROWS
        halves = faiss.IndexScalarQuantizer(dim, faiss.ScalarQuantizer.QT_fp16)
        codes = np.ascontiguousarray(sample).view(np.uint8)
        clustering.train_encoded(codes, halves, faiss.IndexFlatIP(dim))
        return np.array(faiss.vector_to_array(clustering.centroids).reshape(nlist, dim))

    def _faiss(self) -> Any:
        faiss = _faiss()
        if self._threads:
            faiss.omp_set_num_threads(self._threads)
        return faiss


class FaissCodec:
    """Flat, SQ8, PQ, or PQ of rotated vectors. Thread-safe, except for its scanners."""

    def __init__(self, spec: CodecSpec) -> None:
        if spec.exact and spec.code_size != 4 * spec.dim:
            raise StorageError(f"codes of {spec.code_size} bytes are no vectors of width {spec.dim}")
        self.spec = spec
        self._lock = threading.Lock()
        self._index: Any = None
        self._lists: Any = None
        self._steps: Vectors | None = None
        self._rotation = turn_of(spec)

    def encode(self, vectors: Vectors) -> Bytes:
        vectors = np.ascontiguousarray(vectors, np.float32)
        if self.spec.exact:
            return vectors.view(np.uint8)
        if self._rotation is not None:
            vectors = np.ascontiguousarray(vectors @ self._rotation.T)
        codes: Bytes = self._open().sa_encode(vectors)
        return codes

    def decode(self, codes: Bytes) -> Vectors:
        codes = np.ascontiguousarray(codes)
        if self.spec.exact:
            return codes.view(np.float32)
        vectors: Vectors = self._open().sa_decode(codes)
        return vectors if self._rotation is None else vectors @ self._rotation

    def deviation(self, query: Vectors) -> float:
        """Standard deviation of a score's error, from rounding each component to one of 255 equal steps (SQ8)."""
        if self.spec.exact:
            return 0.0
        if self.spec.name != "sq8":
            return math.inf
        steps = self._steps
        if steps is None:
            trained = _faiss().vector_to_array(self._open().sq.trained)  # lowest values, then ranges
            steps = self._steps = np.array(trained[self.spec.dim :], np.float32) / np.float32(255)
        return float(np.linalg.norm(query * steps)) / math.sqrt(12)

    def scanner(self) -> Scanner:
        faiss = _faiss()
        with self._lock:
            if self._lists is None:
                self._lists = _lists(faiss, self.spec, self._opened(faiss))
        return FaissScanner(faiss, self._lists, self._rotation)

    def _open(self) -> Any:
        with self._lock:
            return self._opened(_faiss())

    def _opened(self, faiss: Any) -> Any:
        if self._index is None and not self.spec.exact:
            self._index = restored(faiss, self.spec)
        return self._index


class FaissScanner:
    """Scans codes in our own buffers with faiss's kernels. A scanner is used by one thread."""

    def __init__(self, faiss: Any, lists: Any, rotation: Vectors | None = None) -> None:
        self._pointer = faiss.swig_ptr
        self._lists = lists  # the scanner refers to it
        self._code_size = int(lists.code_size)
        # SWIG must not own the scanner (`thisown = True`): the release of an owned one breaks faiss's table of types.
        self._scanner = lists.get_InvertedListScanner(False, None, None)
        self._destroy = faiss.InvertedListScanner.__swig_destroy__
        self._query: Vectors | None = None
        self._rotation = rotation

    def __del__(self) -> None:
        if hasattr(self, "_destroy"):
            self._destroy(self._scanner)

    def set_query(self, query: Vectors) -> None:
        turned = query if self._rotation is None else self._rotation @ query
        if turned.shape != (self._lists.d,):
            raise ValueError(f"a query has {self._lists.d} values, not the shape {turned.shape}")
        self._query = np.ascontiguousarray(turned, np.float32)  # the scanner refers to it
        self._scanner.set_query(self._pointer(self._query))
        self._scanner.set_list(0, 0.0)

    def scan(self, codes: Bytes, labels: Ids, scores: Vectors, found: Ids) -> None:
        """See `edge.ivf.base.Scanner`. ValueError if the arrays are of other types or lengths, or have gaps."""
        if self._query is None:
            raise ValueError("no query is set")
        gaps = not all(array.flags.c_contiguous for array in (codes, labels, scores, found))
        types = [array.dtype.str[1:] for array in (labels, scores, found)] != ["i8", "f4", "i8"]
        if gaps or types or codes.nbytes != len(labels) * self._code_size or scores.shape != found.shape:
            raise ValueError(f"{len(labels)} rows need codes of {self._code_size} bytes, and arrays without gaps")
        if len(labels):
            pointer = self._pointer
            self._scanner.scan_codes(
                len(labels), pointer(codes), pointer(labels), pointer(scores), pointer(found), len(found)
            )


def rotation(sample: Vectors, parts: int) -> Vectors:
    """A rotation [dim, dim] after which all parts of a vector vary about equally: principal directions of `sample` [n,
    dim], the strongest first, each to the part with the smallest product of variances (Ge et al., Optimized Product
    Quantization, 2013: the parametric solution)."""
    dim = sample.shape[1]
    centred = sample - sample.mean(axis=0)
    strengths, directions = np.linalg.eigh((centred.T @ centred).astype(np.float64) / max(1, len(sample)))
    logs = np.log(np.maximum(strengths, np.finfo(np.float64).tiny))
    members: list[list[int]] = [[] for _ in range(parts)]
    totals = [0.0] * parts
    for number in range(dim - 1, -1, -1):
        part = min((p for p in range(parts) if len(members[p]) < dim // parts), key=lambda p: (totals[p], p))
        members[part].append(number)
        totals[part] += logs[number] - logs[0]
    order = [number for part in members for number in part]
    return np.ascontiguousarray(directions[:, order].T, np.float32)


def turn_of(spec: CodecSpec) -> Vectors | None:
    """The rotation [dim, dim] in the training state of opq; None for other codecs."""
    if spec.name != "opq":
        return None
    values = np.frombuffer(spec.state[: 4 * spec.dim**2], "<f4").astype(np.float32)
    if len(values) != spec.dim**2 or not np.isfinite(values).all():
        raise StorageError("the training state of codec opq is not one of this version or is damaged")
    return values.reshape(spec.dim, spec.dim)


def _untrained(faiss: Any, name: str, dim: int, parts: int) -> Any:
    if name == "sq8":
        return faiss.IndexScalarQuantizer(dim, faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT)
    return faiss.IndexPQ(dim, parts, 8, faiss.METRIC_INNER_PRODUCT)


def _trained(name: str, index: Any) -> Any:
    return index.sq.trained if name == "sq8" else index.pq.centroids


def restored(faiss: Any, spec: CodecSpec) -> Any:
    """The codec with the numbers of its training. faiss's reader does not check its input, which may be untrusted."""
    wrong = f"the training state of codec {spec.name} is not one of this version or is damaged"
    if spec.name not in NAMES or (spec.has_tables and (spec.code_size < 1 or spec.dim % spec.code_size)):
        raise StorageError(wrong)
    index = _untrained(faiss, spec.name, spec.dim, spec.code_size)
    count = 2 * spec.dim if spec.name == "sq8" else _PQ_CENTROIDS * spec.dim
    state = spec.state[4 * spec.dim**2 :] if spec.name == "opq" else spec.state
    if len(state) != 4 * count or spec.code_size != index.sa_code_size():
        raise StorageError(wrong)
    values = np.frombuffer(state, "<f4").astype(np.float32)
    if not np.isfinite(values).all():
        raise StorageError(wrong)
    faiss.copy_array_to_vector(values, _trained(spec.name, index))
    index.is_trained = True
    return index


def _lists(faiss: Any, spec: CodecSpec, index: Any) -> Any:
    """An IVF index without rows. Only its scanner is used."""
    quantizer = faiss.IndexFlatIP(spec.dim)
    quantizer.add(np.zeros((1, spec.dim), np.float32))
    metric = faiss.METRIC_INNER_PRODUCT
    if spec.name == "flat":
        lists = faiss.IndexIVFFlat(quantizer, spec.dim, 1, metric)
    elif spec.name == "sq8":
        lists = faiss.IndexIVFScalarQuantizer(quantizer, spec.dim, 1, index.sq.qtype, metric, False)
        lists.sq = index.sq
    else:
        lists = faiss.IndexIVFPQ(quantizer, spec.dim, 1, index.pq.M, index.pq.nbits, metric)
        lists.by_residual = False
        lists.pq = index.pq
        lists.precompute_table()
    lists.is_trained = True
    return lists


SQ_LEVELS = 255.0
PQ_CENTROIDS = 256

_BLOCK = 64
"""A device sums blocks of a score in any order, with at most so many partial sums beside its components."""

_ROUNDING = 2.0**-23
"""Twice the rounding of one float32 operation, for the device's sum and the host's."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a device multiplies rows with or looks up, [queries, n], what it adds to each score [queries], and a bound
    of the error, [queries]; for flat per unit of a vector's length."""

    values: Vectors
    base: Vectors
    margin: Vectors


def prepared(device: str, spec: CodecSpec, queries: Vectors) -> Prepared:
    dim = spec.dim
    own = np.ascontiguousarray(queries, np.float32)
    state = np.frombuffer(spec.state, "<f4").astype(np.float32)
    base = np.zeros(len(own))
    if spec.name == "flat":
        values = np.pad(own, ((0, 0), (0, -dim % 4)))
        margin = np.linalg.norm(own, axis=1)
    elif spec.name == "sq8":
        low, step = state[:dim].astype(np.float64), state[dim:].astype(np.float64) / SQ_LEVELS
        start = low + step / 2  # a code represents the middle of its step
        values = np.pad((own * step).astype(np.float32), ((0, 0), (0, -dim % 16)))
        base = own @ start
        margin = np.abs(own) @ (np.abs(start) + SQ_LEVELS * np.abs(step))
    elif spec.has_tables:
        turn = turn_of(spec)
        if turn is not None:
            own = np.stack([turn @ query for query in own])
            state = state[dim * dim :]
        parts = spec.code_size
        table = state.reshape(parts, PQ_CENTROIDS, dim // parts)
        cut = own.reshape(len(own), parts, -1)
        values = np.einsum("pcd,qpd->qpc", table, cut).reshape(len(own), -1)
        margin = np.einsum("pd,qpd->q", np.abs(table).max(axis=1), np.abs(cut))
    else:
        raise CapabilityError(f"device {device} scans lists of the codecs flat, sq8, pq and opq, not {spec.name}")
    bound = margin * (dim + _BLOCK) * _ROUNDING + math.ulp(0.0)
    return Prepared(np.ascontiguousarray(values, np.float32), base.astype(np.float32), bound.astype(np.float32))


def offer(request: SearchRequest, query: int, codes: Bytes, labels: npt.NDArray[np.int64]) -> None:
    """Scores rows of a query, codes [n, code_size], as the host does, and merges them with the best ones so far."""
    seen = request.seen
    if seen.prepared is None:
        seen.prepared = {}
    scanners: dict[int, Scanner] = seen.prepared
    scanner = scanners.get(query)
    if scanner is None:
        scanner = scanners[query] = request.codec.scanner()
        scanner.set_query(request.queries[query])
    order = np.argsort(labels)
    scanner.scan(np.ascontiguousarray(codes[order]), labels[order], seen.scores[query], seen.labels[query])
