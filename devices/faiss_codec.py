"""Codecs, k-means and list scanners from faiss, which is imported when the first of them is used.

No codec codes residuals: a row's code does not depend on its list's centroid, so that lists can be split while others
write to them, and parts can be merged without coding again.
"""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.errors import CapabilityError, ConfigError, StorageError
from edge.ivf.base import Bytes, CodecSpec, Ids, Scanner, Vectors

NAMES = ("flat", "sq8", "pq")

_PQ_WIDTH = 4
"""Components of a vector that product quantization codes in one byte."""

_PQ_CENTROIDS = 256

_SQ_ROOM = 0.25
"""Beyond the range of each component in the sample, on both sides, as a share of it: what lies outside is cut off, and
its error is larger than `deviation` says."""

_PQ_ITERATIONS = 10

_DECODE_ROWS = 2048
"""Rows of the sample that k-means holds as float32 at a time."""


def _faiss() -> Any:
    try:
        import faiss
    except ImportError as error:
        raise CapabilityError("the index needs faiss: pip install faiss-cpu") from error
    return faiss


class FaissCodecs:
    """The library the index trains its centroids and codecs with."""

    libraries = ("faiss",)

    def __init__(self, *, threads: int = 0) -> None:
        """
        Args:
            threads: of training; 0 takes what faiss takes by itself, all cores.
        """
        self._threads = threads

    def open(self, spec: CodecSpec) -> FaissCodec:
        """The codec a spec describes.

        Raises:
            CapabilityError: faiss is not installed.
            StorageError: the training state is not one of this codec's.
        """
        return FaissCodec(spec)

    def train(self, name: str, sample: Vectors, *, seed: int) -> CodecSpec:
        """Fits a codec on `sample` [n, dim].

        Raises:
            ConfigError: there is no codec of that name, or it cannot code vectors of this width.
            CapabilityError: faiss is not installed.
        """
        dim = sample.shape[1]
        if name == "flat":
            return CodecSpec("flat", dim, 4 * dim)
        faiss = self._faiss()
        if name == "sq8":
            index = _untrained(faiss, name, dim)
            index.sq.rangestat = faiss.ScalarQuantizer.RS_minmax
            index.sq.rangestat_arg = _SQ_ROOM
        elif name == "pq":
            if dim % _PQ_WIDTH:
                raise ConfigError(
                    f"codec pq needs vectors whose width is a multiple of {_PQ_WIDTH}, not {dim}: use sq8"
                )
            index = _untrained(faiss, name, dim)
            index.pq.cp.seed = seed
            index.pq.cp.min_points_per_centroid = 1
            index.pq.cp.niter = _PQ_ITERATIONS
        else:
            raise ConfigError(f"there is no codec {name!r}; there are {', '.join(NAMES)} and auto")
        index.train(np.ascontiguousarray(sample))
        values = faiss.vector_to_array(_trained(name, index))
        return CodecSpec(name, dim, index.sa_code_size(), np.asarray(values, "<f4").tobytes())

    def cluster(self, sample: npt.NDArray[np.float16], nlist: int, *, iterations: int, seed: int) -> Vectors:
        """Spherical k-means: unit centroids [nlist, dim] of `sample` [n, dim], n >= nlist.

        Raises:
            CapabilityError: faiss is not installed.
        """
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
    """Flat, SQ8 or PQ. Thread-safe, except for its scanners."""

    def __init__(self, spec: CodecSpec) -> None:
        if spec.exact and spec.code_size != 4 * spec.dim:
            raise StorageError(f"codes of {spec.code_size} bytes are no vectors of width {spec.dim}")
        self.spec = spec
        self._lock = threading.Lock()
        self._index: Any = None
        self._lists: Any = None
        self._steps: Vectors | None = None

    def encode(self, vectors: Vectors) -> Bytes:
        """Codes of `vectors` [n, dim]: uint8 [n, code_size]."""
        vectors = np.ascontiguousarray(vectors, np.float32)
        if self.spec.exact:
            return vectors.view(np.uint8)
        codes: Bytes = self._open().sa_encode(vectors)
        return codes

    def decode(self, codes: Bytes) -> Vectors:
        """What `codes` [n, code_size] stand for: float32 [n, dim]."""
        codes = np.ascontiguousarray(codes)
        if self.spec.exact:
            return codes.view(np.float32)
        vectors: Vectors = self._open().sa_decode(codes)
        return vectors

    def deviation(self, query: Vectors) -> float:
        """Standard deviation of a score's error: that of rounding each component to one of 255 equal steps (SQ8)."""
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
        """A scanner of one's own."""
        faiss = _faiss()
        with self._lock:
            if self._lists is None:
                self._lists = _lists(faiss, self.spec, self._opened(faiss))
        return FaissScanner(faiss, self._lists)

    def _open(self) -> Any:
        with self._lock:
            return self._opened(_faiss())

    def _opened(self, faiss: Any) -> Any:
        if self._index is None and not self.spec.exact:
            self._index = restored(faiss, self.spec)
        return self._index


class FaissScanner:
    """Scans codes in our own buffers with faiss's kernels. Belongs to one thread."""

    def __init__(self, faiss: Any, lists: Any) -> None:
        self._pointer = faiss.swig_ptr
        self._lists = lists  # the scanner refers to it
        # Never let SWIG own it (`thisown = True`): releasing an owned one breaks faiss's table of types.
        self._scanner = lists.get_InvertedListScanner(False, None, None)
        self._destroy = faiss.InvertedListScanner.__swig_destroy__
        self._query: Vectors | None = None

    def __del__(self) -> None:
        if hasattr(self, "_destroy"):
            self._destroy(self._scanner)

    def set_query(self, query: Vectors) -> None:
        """Starts a query, [dim]."""
        self._query = np.ascontiguousarray(query, np.float32)  # the scanner refers to it
        self._scanner.set_query(self._pointer(self._query))
        self._scanner.set_list(0, 0.0)

    def scan(self, codes: Bytes, labels: Ids, scores: Vectors, found: Ids) -> None:
        """Merges rows of one list into the best so far; see `edge.ivf.base.Scanner`."""
        if len(labels):
            pointer = self._pointer
            self._scanner.scan_codes(
                len(labels), pointer(codes), pointer(labels), pointer(scores), pointer(found), len(found)
            )


def _untrained(faiss: Any, name: str, dim: int) -> Any:
    """A codec of faiss before its training."""
    if name == "sq8":
        return faiss.IndexScalarQuantizer(dim, faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT)
    return faiss.IndexPQ(dim, dim // _PQ_WIDTH, 8, faiss.METRIC_INNER_PRODUCT)


def _trained(name: str, index: Any) -> Any:
    """The numbers that a training has found: lowest values and ranges (SQ8), or centroids (PQ)."""
    return index.sq.trained if name == "sq8" else index.pq.centroids


def restored(faiss: Any, spec: CodecSpec) -> Any:
    """The codec with the numbers that its training found. A collection may have come with a cloned folder, so nothing
    of it is handed to faiss's reader of serialized indexes, which trusts what it reads.

    Raises:
        StorageError: there are not as many numbers as such a codec has, or they are none.
    """
    wrong = f"the training state of codec {spec.name} is not one of this version or is damaged"
    if spec.name not in NAMES or (spec.name == "pq" and spec.dim % _PQ_WIDTH):
        raise StorageError(wrong)
    index = _untrained(faiss, spec.name, spec.dim)
    count = 2 * spec.dim if spec.name == "sq8" else _PQ_CENTROIDS * spec.dim
    if len(spec.state) != 4 * count or spec.code_size != index.sa_code_size():
        raise StorageError(wrong)
    values = np.frombuffer(spec.state, "<f4").astype(np.float32)
    if not np.isfinite(values).all():
        raise StorageError(wrong)
    faiss.copy_array_to_vector(values, _trained(spec.name, index))
    index.is_trained = True
    return index


def _lists(faiss: Any, spec: CodecSpec, index: Any) -> Any:
    """An IVF index without rows, of which only the scanner is used."""
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
