"""What the two halves of the index agree on: one committed state (`Snapshot`), its lists, codecs, and results.

Storage and maintenance make snapshots; the searcher reads them. Similarity is the inner product of float32 vectors;
ids are int64, not negative, and unique.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from edge.blocks import BlockFile, BlockId, RowTable

Ids = npt.NDArray[np.int64]
Vectors = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

CHECKSUM_NBYTES = 4
ID_NBYTES = 8

RESCORE = 8
"""Candidates for each result asked for that are scored exactly at most, where codes are not exact; the measured recall
counts on it."""

DEVIATIONS = 6.0
"""A candidate is scored exactly while its vector may beat that of the last result by its code, both being wrong by so
many standard deviations against it."""

NO_ROWS: npt.NDArray[np.int32] = np.empty(0, np.int32)
NO_IDS: Ids = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class IndexOptions:
    """What can be chosen when an index is opened. Only `codec` and the recall target change results.

    Attributes:
        codec: flat, sq8, pq, or auto (see `edge.ivf.training.choose_codec`); takes effect at the next training.
        flat_limit: up to so many vectors there is one list, scanned exactly, without codes.
        pending_limit: rows kept in SQLite before maintenance moves them to a segment; an `add` that would leave more
            than twice as many writes a segment itself.
        list_rows: vectors per list that training aims at.
        recall_target: recall@10 that a search without `nprobe` or `recall` is held to.
        grace_seconds: how long files that no committed state names any more are kept for readers in other processes.
        seed: of samples and of k-means.
    """

    codec: str = "auto"
    flat_limit: int = 20_000
    pending_limit: int = 2_048
    list_rows: int = 256
    recall_target: float = 0.95
    grace_seconds: float = 60.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class CodecSpec:
    """How vectors are coded: `name` is flat, sq8 or pq; `state` is the codec's training state, opaque to the index."""

    name: str
    dim: int
    code_size: int
    state: bytes = field(default=b"", repr=False)

    @property
    def exact(self) -> bool:
        """The codes are the float32 vectors themselves."""
        return self.name == "flat"


class Scanner(Protocol):
    """Scores coded rows against one query. Belongs to one thread; releases the interpreter lock while it scans."""

    def set_query(self, query: Vectors) -> None:
        """Starts a query, [dim]."""

    def scan(self, codes: Bytes, labels: Ids, scores: Vectors, found: Ids) -> None:
        """Merges rows of one list into the best so far.

        Args:
            codes: [n, code_size], C-contiguous.
            labels: [n], what to report for each row (ids, or row numbers).
            scores, found: [k] each, a min-heap as faiss keeps it: begin with -inf and -1, pass the same arrays for
                every list of the query, sort in the end.
        """


class Codec(Protocol):
    """Codes vectors of one index. Codes do not depend on the list. Thread-safe except for its scanners."""

    spec: CodecSpec

    def encode(self, vectors: Vectors) -> Bytes:
        """Codes of `vectors` [n, dim]: uint8 [n, code_size]."""

    def decode(self, codes: Bytes) -> Vectors:
        """What `codes` [n, code_size] stand for: float32 [n, dim]."""

    def deviation(self, query: Vectors) -> float:
        """Standard deviation of the difference between a code's inner product with `query` [dim] and its vector's.
        Infinite where the codec cannot tell."""

    def scanner(self) -> Scanner:
        """A scanner of one's own."""


class Codecs(Protocol):
    """The library that trains centroids and codecs (`edge.devices.faiss_codec.FaissCodecs`)."""

    def open(self, spec: CodecSpec) -> Codec:
        """The codec a spec describes."""

    def train(self, name: str, sample: Vectors, *, seed: int) -> CodecSpec:
        """Fits codec `name` (flat, sq8 or pq) on `sample` [n, dim]."""

    def cluster(self, sample: npt.NDArray[np.float16], nlist: int, *, iterations: int, seed: int) -> Vectors:
        """Spherical k-means: unit centroids [nlist, dim] of `sample` [n, dim], n >= nlist."""


@dataclass(frozen=True, slots=True)
class ListPart:
    """Rows of one list inside one segment (a list can have several parts in a segment: no block exceeds 4 MiB by much).

    The block `codes` is: int64 ids [rows], then codes [rows, code_size], then CRC-32 of each row's float32 vector,
    uint32 [rows]. `split` takes it apart.

    Attributes:
        source: the open segment; read with `source.read(part.codes, into)` or a lane. Safe in many threads.
        vectors: the same rows as float32 for exact re-scoring (`source.read_scattered`; compare with the checksums), or
            None when the codes are the vectors (codec flat).
        rows: rows stored, deleted ones included.
        nbytes: bytes of the block `codes`.
        deleted: ascending numbers of rows (0 <= row < rows) that do not count.
        key: names this part for ever, in this and every later snapshot: (segment's file name, part's number); a
            cache may use it. What it names is immutable; only `deleted` grows.
    """

    source: BlockFile
    codes: BlockId
    vectors: RowTable | None
    rows: int
    nbytes: int
    key: tuple[str, int]
    deleted: npt.NDArray[np.int32] = field(default_factory=lambda: NO_ROWS, repr=False)

    @property
    def live(self) -> int:
        """Rows that count."""
        return self.rows - len(self.deleted)

    def split(self, block: Bytes) -> tuple[Ids, Bytes, npt.NDArray[np.uint32]]:
        """Views of a block that was read into `block` [>= nbytes]: ids [rows], codes [rows, code_size], checksums of
        the float32 rows [rows]."""
        block = block[: self.nbytes]
        ids_end = self.rows * ID_NBYTES
        codes_end = self.nbytes - self.rows * CHECKSUM_NBYTES
        codes = block[ids_end:codes_end].reshape(self.rows, -1)
        return block[:ids_end].view(np.int64), codes, block[codes_end:].view(np.uint32)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One committed state; immutable; kept by readers while a newer one is made. Holding it keeps its segment files
    open. No id occurs twice among the rows that count (those of all parts less their `deleted`, and the pending ones).

    Attributes:
        generation: grows with every change; 0 is the empty index.
        codec: the open codec of every list; `codec.spec.exact` says whether re-scoring is needed.
        centroids: [nlist, dim]; nlist == 1 means flat and exact.
        lists: for each list, its parts that have rows that count.
        pending_ids, pending_vectors: [n], [n, dim]: not yet in segments, scanned exactly.
        recall: measured (nprobe, recall@10), ascending; empty before the first measurement and for one list.
        rows: rows that count.
        held: keeps what the snapshot needs (leases) until nobody refers to it any more.
    """

    generation: int
    dim: int
    codec: Codec
    centroids: Vectors
    lists: Sequence[tuple[ListPart, ...]]
    pending_ids: Ids
    pending_vectors: Vectors
    recall: tuple[tuple[int, float], ...]
    rows: int
    held: object = field(default=None, repr=False, compare=False)

    @property
    def nlist(self) -> int:
        return len(self.centroids)


@dataclass(frozen=True, slots=True)
class Found:
    """Results of a search: `ids` int64 [q, k] padded with -1, `scores` float32 [q, k] padded with -inf, best first.

    Attributes:
        nprobe: lists probed per query (the largest of the batch).
        lists_read, bytes_read: what had to be read from disk for this search.
        hits: probed lists that were resident already.
    """

    ids: Ids
    scores: Vectors
    nprobe: int = 0
    lists_read: int = 0
    bytes_read: int = 0
    hits: int = 0


@dataclass(frozen=True, slots=True)
class MaintenanceReport:
    """What one `maintain` did: rows flushed, merged and reclaimed, lists split, whether it trained, files removed;
    `busy` if it did nothing because another thread or process was at it."""

    flushed: int = 0
    merged: int = 0
    reclaimed: int = 0
    split: int = 0
    trained: bool = False
    removed_files: int = 0
    busy: bool = False
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class IndexStatus:
    """The state of an index in numbers: sizes in bytes and rows."""

    generation: int
    rows: int
    pending: int
    deleted: int
    lists: int
    codec: str
    segments: int
    nbytes: int
    recall: tuple[tuple[int, float], ...]
