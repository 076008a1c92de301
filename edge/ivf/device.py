"""What the core asks of a device: a place for lists, and a search of the lists it holds.

Each capability is a protocol of its own, and is found by asking (`isinstance(device, Search)`). Running layers is a
capability, too: `edge.runtimes.base.Runtime` is its contract. A device of that kind registers its runtime under its own
name in the entry-point group `edge.runtimes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from edge.budget import MemoryBudget
from edge.ivf.base import Bytes, Codec, Ids, Vectors
from edge.lanes import Lane


@dataclass(slots=True)
class Candidates:
    """The best rows of each query so far.

    Attributes:
        scores, labels: [q, k]: for each query a min-heap as faiss keeps it; -inf and -1 where nothing was found yet.
        prepared: what a device has made ready for these queries, such as tables; it goes with this object.
    """

    scores: Vectors
    labels: Ids
    prepared: Any = field(default=None, repr=False)

    @classmethod
    def empty(cls, queries: int, width: int) -> Candidates:
        """Nothing found yet: `width` places for each of so many queries."""
        shape = (queries, width)
        return cls(np.full(shape, -np.inf, np.float32), np.full(shape, -1, np.int64))

    @staticmethod
    def memory_needed(queries: int, width: int) -> int:
        """Bytes of the heaps."""
        return queries * width * 12

    def floor(self, query: int) -> float:
        """Rows that score at most this need not be returned: when all places are taken, the lowest score in them."""
        return float(self.scores[query].min()) if self.labels[query].min() >= 0 else -np.inf

    def offer(self, query: int, scores: Vectors, labels: Ids) -> None:
        """Takes rows [n] of one query from a device that keeps no heap of its own; of equals any may stay."""
        taken = self.labels[query] >= 0
        width = len(taken)
        scores = np.concatenate((self.scores[query][taken], scores))
        labels = np.concatenate((self.labels[query][taken], labels))
        order = np.argsort(-scores, kind="stable")[:width][::-1]  # ascending order is a min-heap
        empty = width - len(order)
        self.scores[query, :empty], self.labels[query, :empty] = -np.inf, -1
        self.scores[query, empty:], self.labels[query, empty:] = scores[order], labels[order]


@dataclass(slots=True)  # not frozen: that makes one take twice as long, and a search makes hundreds
class ListScan:
    """A list (or a part of one) that is to be scanned. Read only.

    Attributes:
        codes: the device's buffer with the codes; for devices in host memory uint8 [count, code_size].
        first: label of row 0; the label of row r is `first + r`.
        count: rows in the buffer.
        rows: numbers of the rows that count, ascending; None for all of them.
        queries: numbers of the queries that probe the list.
    """

    codes: Any
    first: int
    count: int
    rows: npt.NDArray[np.int64] | None
    queries: Sequence[int]

    @property
    def live(self) -> bool:
        """Some row counts."""
        return self.rows is None or len(self.rows) > 0


@dataclass(slots=True)
class SearchRequest:
    """Lists of one index, and the queries that probe them. Read only.

    Attributes:
        codec: how the rows are coded; `codec.spec` describes it to another process.
        queries: [q, dim].
        lists: each list once.
        labels: the numbers 0, 1, 2, ... as far as labels go, for devices that need labels as an array.
        seen: the best rows of earlier requests of the same search. `k` is its width.
    """

    codec: Codec
    queries: Vectors
    lists: Sequence[ListScan]
    labels: Ids
    seen: Candidates


@runtime_checkable
class Place(Protocol):
    """The memory of a device.

    Attributes:
        name: for messages and traces.
        memory: this place's own ledger. A buffer that somebody holds is under a lease of it.
        link: the lane that bytes come over.
        in_host_memory: buffers are numpy arrays of this process: blocks are read straight into them.
    """

    name: str
    memory: MemoryBudget
    link: Lane
    in_host_memory: bool

    def allocate(self, nbytes: int) -> Any:
        """A buffer of so many bytes. The caller holds a lease of `memory` for it.

        Raises:
            DeviceLost: the device does not answer any more.
        """

    def write(self, buffer: Any, data: Bytes) -> None:
        """Fills a buffer from host memory. Called from the link's worker.

        Raises:
            DeviceLost: the device does not answer any more.
        """

    def free(self, buffer: Any) -> None:
        """Takes a buffer back. Never raises."""

    def close(self) -> None:
        """Gives everything back. Whoever opened the device calls it."""


@runtime_checkable
class Search(Protocol):
    """A device that searches the lists it holds."""

    def search(self, request: SearchRequest) -> Candidates:
        """The best rows of each query among the lists of the request and `request.seen`, whose arrays may be reused.
        Scores are inner products of queries and codes. Called from one thread at a time for one search, and from
        several threads for several searches.

        Raises:
            DeviceLost: the device does not answer any more.
        """


class SearchPlace(Place, Search, Protocol):
    """What the index needs of a device."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a stage costs on a device under some load.

    Attributes:
        latency: seconds until one request is done.
        throughput: requests per second.
        nbytes: memory of the device it takes.
        modelled: it comes from a model of the device and was not measured.
    """

    latency: float
    throughput: float
    nbytes: int
    modelled: bool = False


@runtime_checkable
class Profile(Protocol):
    """A device that says what a stage costs on it."""

    def profile(self, stage: str, load: int) -> Estimate:
        """What `stage` costs with `load` requests at a time.

        Raises:
            CapabilityError: this device knows nothing about that stage.
        """
