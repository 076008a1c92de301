"""Data types that storage and search share. Similarity is the inner product of float32 vectors; ids are int64, not
negative, and unique."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from edge.blocks import BlockFile, BlockId, RowTable
from edge.errors import CorruptBlock, InputError


@dataclass(frozen=True, slots=True)
class Parameters:
    """How an index is trained and searched: `lists` of 1 scans all vectors exactly, `code_size` are bytes of a vector's
    code, and `rescore` exact scores are computed per result, at most."""

    lists: int
    codec: str
    code_size: int
    rescore: int


@dataclass(frozen=True, slots=True)
class Goal:
    """The wishes that parameters are chosen by: at least recall@10, at most seconds per query and bytes."""

    recall: float | None = None
    seconds: float | None = None
    nbytes: int | None = None

    def __post_init__(self) -> None:
        if self.recall is None and self.seconds is None:
            raise InputError("tuning needs a goal: a recall, or a time per query")
        if self.recall is not None and not 0 < self.recall <= 1:
            raise InputError(f"recall is above 0 and at most 1, not {self.recall}")
        if self.seconds is not None and not 0 < self.seconds < float("inf"):
            raise InputError(f"the time per query is above 0, not {self.seconds * 1e3:g} ms")
        if self.nbytes is not None and self.nbytes < 1:
            raise InputError(f"the lists have at least one byte, not {self.nbytes}")


@dataclass(frozen=True, slots=True)
class Tuned:
    """The parameters that were chosen for an index. `recall`, `seconds` and `nbytes` are predicted; searches aim at
    `aim`, the recall on the index's own curve that needs `nprobe` lists."""

    parameters: Parameters
    goal: Goal
    rows: int
    nprobe: int
    aim: float
    seconds: float
    recall: float
    nbytes: int

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Tuned:
        """The record that `to_json` wrote; CorruptBlock if the text is none."""
        try:
            values = json.loads(text)
            parameters, goal = Parameters(**values.pop("parameters")), Goal(**values.pop("goal"))
            return cls(parameters, goal, **values)
        except (ValueError, TypeError, KeyError, AttributeError, InputError) as error:
            raise CorruptBlock("the index is damaged: the record of its tuning cannot be read") from error


@dataclass(frozen=True, slots=True)
class IndexTuning:
    tuned: Tuned
    changed: bool


Ids = npt.NDArray[np.int64]
Vectors = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

CHECKSUM_NBYTES = 4
ID_NBYTES = 8

MAINTENANCE_NBYTES = 32 << 20
"""Memory that maintenance and large additions need beside the index's tables, for up to 1,000 lists."""

RESCORE = 8
"""Exact scores computed per requested result, at most, where codes are not exact and the index was not tuned."""

DEVIATIONS = 6.0
"""A candidate is scored exactly unless the score of its code is too far below that of the last result: so far that
both codes would have to be wrong by this many standard deviations, in opposite directions, for it to win."""

NO_ROWS: npt.NDArray[np.int32] = np.empty(0, np.int32)
NO_IDS: Ids = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class IndexOptions:
    """The options of an index that is opened. Only `codec` and the recall target change results.

    `codec` takes effect at the next training; up to `flat_limit` vectors are one list without codes; an `add` that
    leaves more than twice `pending_limit` rows in SQLite writes a segment; files that no state names are kept
    `grace_seconds` for readers that have not opened them yet."""

    codec: str = "auto"
    flat_limit: int = 20_000
    pending_limit: int = 2_048
    list_rows: int = 256
    recall_target: float = 0.95
    grace_seconds: float = 60.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class CodecSpec:
    """How vectors are coded: `name` is flat, sq8, pq or opq; `state` is the codec's training state, opaque here."""

    name: str
    dim: int
    code_size: int
    state: bytes = field(default=b"", repr=False)

    @property
    def exact(self) -> bool:
        return self.name == "flat"

    @property
    def has_tables(self) -> bool:
        """Whether a scanner looks the bytes of codes up in a table that it makes for each query."""
        return self.name in ("pq", "opq")


@dataclass(frozen=True, slots=True)
class Quantizer:
    """Lists that several indexes share. `version` is above 0; `recall` is empty if it is not measured yet."""

    version: int
    spec: CodecSpec
    centroids: Vectors
    recall: tuple[tuple[int, float], ...] = ()

    def to_bytes(self) -> bytes:
        about = {
            "version": self.version, "codec": self.spec.name, "dim": self.spec.dim, "code_size": self.spec.code_size,
            "state": len(self.spec.state), "recall": self.recall,
        }  # fmt: skip
        head = json.dumps(about).encode()
        return len(head).to_bytes(4, "little") + head + self.spec.state + self.centroids.tobytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> Quantizer:
        end = 4 + int.from_bytes(data[:4], "little")
        about = json.loads(data[4:end])
        state = data[end : end + about["state"]]
        spec = CodecSpec(about["codec"], about["dim"], about["code_size"], state)
        centroids = np.frombuffer(data, np.float32, offset=end + len(state)).reshape(-1, about["dim"])
        return cls(about["version"], spec, centroids, tuple((int(n), float(r)) for n, r in about["recall"]))


class Scanner(Protocol):
    """Scores coded rows against one query. Belongs to one thread; releases the interpreter lock while it scans."""

    def set_query(self, query: Vectors) -> None:
        """Starts a query, [dim]."""

    def scan(self, codes: Bytes, labels: Ids, scores: Vectors, found: Ids) -> None:
        """Merges rows of one list, `codes` [n, code_size] with the numbers `labels` [n], into `scores` and `found` [k],
        a min-heap in faiss's layout that the caller fills and sorts."""


class Codec(Protocol):
    """Encodes vectors of one index. Codes do not depend on the list. Thread-safe except for its scanners."""

    spec: CodecSpec

    def encode(self, vectors: Vectors) -> Bytes:
        """Codes of `vectors` [n, dim]: uint8 [n, code_size]."""

    def decode(self, codes: Bytes) -> Vectors:
        """The approximate vectors float32 [n, dim] that `codes` [n, code_size] represent."""

    def deviation(self, query: Vectors) -> float:
        """Standard deviation of the error of a code's inner product with `query` [dim]; infinite if unknown."""

    def scanner(self) -> Scanner:
        """A new scanner, for one thread."""


class Codecs(Protocol):
    """The library that trains centroids and codecs (`edge.devices.faiss_codec.FaissCodecs`)."""

    def open(self, spec: CodecSpec) -> Codec:
        """Opens the codec that a spec describes."""

    def train(self, name: str, sample: Vectors, *, seed: int, code_size: int = 0) -> CodecSpec:
        """Fits flat, sq8, pq or opq on `sample` [n, dim]; a `code_size` of 0 is the default."""

    def cluster(self, sample: npt.NDArray[np.float16], nlist: int, *, iterations: int, seed: int) -> Vectors:
        """Spherical k-means: unit centroids [nlist, dim] of `sample` [n, dim], n >= nlist."""


@dataclass(frozen=True, slots=True)
class ListPart:
    """Rows of one list inside one segment, at most about 4 MiB.

    The block `codes` is: int64 ids [rows], codes [rows, code_size], CRC-32 of each row's float32 vector, uint32 [rows].
    `vectors` is None when the codes are the vectors. `deleted` are ascending row numbers. `key` names the part in every
    later snapshot, and its content never changes except that `deleted` grows."""

    source: BlockFile
    codes: BlockId
    vectors: RowTable | None
    rows: int
    nbytes: int
    key: tuple[str, int]
    deleted: npt.NDArray[np.int32] = field(default_factory=lambda: NO_ROWS, repr=False)

    def split(self, block: Bytes) -> tuple[Ids, Bytes, npt.NDArray[np.uint32]]:
        """Views of a block [>= nbytes]: ids [rows], codes [rows, code_size], checksums of the float32 rows [rows]."""
        block = block[: self.nbytes]
        ids_end = self.rows * ID_NBYTES
        codes_end = self.nbytes - self.rows * CHECKSUM_NBYTES
        codes = block[ids_end:codes_end].reshape(self.rows, -1)
        return block[:ids_end].view(np.int64), codes, block[codes_end:].view(np.uint32)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One committed state of an index, immutable. It keeps its segment files open.

    `centroids` [nlist, dim], and for each list in `lists` its parts with live rows. `pending_ids` [n] and
    `pending_vectors` [n, dim] are rows outside segments, which are scored exactly; with `pending_lists` [n] only those
    in a probed list. `recall` has measured (nprobe, recall@10), ascending. `held` are leases that end with the
    snapshot."""

    generation: int
    dim: int
    codec: Codec
    centroids: Vectors
    lists: Sequence[tuple[ListPart, ...]]
    pending_ids: Ids
    pending_vectors: Vectors
    recall: tuple[tuple[int, float], ...]
    rows: int
    tuned: Tuned | None = None
    pending_lists: Ids | None = None
    held: object = field(default=None, repr=False, compare=False)

    @property
    def nlist(self) -> int:
        return len(self.centroids)

    @property
    def rescore(self) -> int:
        """Exact scores computed per requested result, at most, where codes are not exact."""
        return RESCORE if self.tuned is None else self.tuned.parameters.rescore


@dataclass(frozen=True, slots=True)
class Found:
    """Results of a search, best first: `ids` [q, k] padded with -1, `scores` [q, k] padded with -inf. `nprobe` is the
    largest of the batch, `hits` the probed lists that were resident, `lists_cut` those of each query that its deadline
    left no time for."""

    ids: Ids
    scores: Vectors
    nprobe: int = 0
    lists_read: int = 0
    bytes_read: int = 0
    hits: int = 0
    lists_cut: int = 0


@dataclass(slots=True)
class MaintenanceReport:
    """What one `maintain` did. `busy`: nothing, because another thread or process was maintaining the index."""

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
    tuned: Tuned | None = None


class Rows(Protocol):
    def __iter__(self) -> Iterator[Any]: ...

    def fetchone(self) -> Any:
        """The next row; None if there is none."""

    def fetchall(self) -> list[Any]:
        """All remaining rows."""


class Connection(Protocol):
    """An open connection with the interface of `apsw`."""

    @property
    def in_transaction(self) -> bool: ...

    def execute(self, statement: str, bindings: Any = ..., /) -> Rows:
        """Runs one statement with its bindings."""

    def executemany(self, statement: str, bindings: Any, /) -> Rows:
        """Runs one statement for each of several bindings."""

    def create_scalar_function(
        self, name: str, callable: Callable[..., Any], numargs: int, /, *, deterministic: bool = ...
    ) -> None:
        """Registers a function for use in SQL."""
