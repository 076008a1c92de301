"""The interface of a device to the core: memory for lists, and a search of the lists it holds.

Each capability is a protocol, and `isinstance(device, Search)` tests for it. Running layers is a capability, too; its
protocol is `edge.runtimes.base.Runtime`. A device that runs layers registers its runtime under the device's name in the
entry-point group `edge.runtimes`. Devices are found and opened by name through the entry-point group `edge.devices`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from edge.budget import MemoryBudget
from edge.errors import CapabilityError, ConfigError
from edge.ivf.base import Bytes, Codec, Ids, Vectors
from edge.link import Lane
from edge.plugins import load, names, parse_device
from edge.trace import Trace


@dataclass(slots=True)
class Candidates:
    """The best rows of each query so far.

    Attributes:
        scores, labels: [q, k]: a min-heap for each query, in faiss's layout, with -inf and -1 in the empty places.
        prepared: data that a device has computed for these queries, such as tables. It lives as long as this object.
    """

    scores: Vectors
    labels: Ids
    prepared: Any = field(default=None, repr=False)

    @classmethod
    def empty(cls, queries: int, width: int) -> Candidates:
        """Empty heaps: `width` places for each of `queries` queries."""
        shape = (queries, width)
        return cls(np.full(shape, -np.inf, np.float32), np.full(shape, -1, np.int64))

    @staticmethod
    def memory_needed(queries: int, width: int) -> int:
        return queries * width * 12

    def floor(self, query: int) -> float:
        """The score a row must exceed to be returned: the lowest of the best rows, or -inf while a place is empty."""
        return float(self.scores[query].min()) if self.labels[query].min() >= 0 else -np.inf

    def offer(self, query: int, scores: Vectors, labels: Ids) -> None:
        """Merges rows [n] of one query, for a device that keeps no heap. Among equal scores any may stay."""
        taken = self.labels[query] >= 0
        width = len(taken)
        scores = np.concatenate((self.scores[query][taken], scores))
        labels = np.concatenate((self.labels[query][taken], labels))
        order = np.argsort(-scores, kind="stable")[:width][::-1]  # ascending order is a min-heap
        empty = width - len(order)
        self.scores[query, :empty], self.labels[query, :empty] = -np.inf, -1
        self.scores[query, empty:], self.labels[query, empty:] = scores[order], labels[order]


@dataclass(slots=True)  # not frozen: a frozen one takes twice as long to make, and a search makes hundreds
class ListScan:
    """A list (or a part of one) to be scanned. Read only.

    Attributes:
        codes: the device's buffer with the codes; for devices in host memory uint8 [count, code_size].
        first: label of row 0; the label of row r is `first + r`.
        count: rows in the buffer.
        rows: numbers of the live rows, ascending; None for all of them.
        queries: numbers of the queries that probe the list.
    """

    codes: Any
    first: int
    count: int
    rows: npt.NDArray[np.int64] | None
    queries: Sequence[int]

    @property
    def live(self) -> bool:
        return self.rows is None or len(self.rows) > 0


@dataclass(slots=True)
class SearchRequest:
    """Lists of one index, and the queries that probe them. Read only.

    Attributes:
        codec: how the rows are coded; `codec.spec` describes it to another process.
        queries: [q, dim].
        lists: the lists to scan, each once.
        labels: the numbers 0, 1, 2, ... up to the highest label, for devices that need labels as an array.
        seen: the best rows of earlier requests of the same search; its width is `k`.
    """

    codec: Codec
    queries: Vectors
    lists: Sequence[ListScan]
    labels: Ids
    seen: Candidates


class Event(Protocol):
    """A point in a stream: the end of all the work that was put into the stream before."""

    @property
    def done(self) -> bool:
        """Whether the stream has passed the event."""

    def wait(self) -> None:
        """Blocks the calling thread until the stream has passed the event."""


class Stream(Protocol):
    """A device's queue of work. Several threads may share one.

    A thread puts work into a stream and goes on. The work of one stream runs in order. Two streams are independent
    unless one waits for an event of the other. So a transfer on its own stream can cross the link while another stream
    computes, and no thread waits for it.
    """

    def run(self, work: Callable[[], object]) -> None:
        """Puts work into the queue.

        `work` may be called now or later, so it must not return anything that the caller needs. The data that it reads
        must not change until an event after it is done.
        """

    def record(self) -> Event:
        """Returns an event after all the work that is in the queue now."""

    def wait(self, event: Event) -> None:
        """Makes the work that is queued from now on wait for `event`. The calling thread goes on."""

    def synchronize(self) -> None:
        """Blocks the calling thread until all the work in the queue is done."""


@runtime_checkable
class Place(Protocol):
    """The memory of a device.

    Attributes:
        name: the device's name in messages and traces.
        memory: the ledger of this device's memory. It holds a lease for each buffer in use.
        link: the lane that bytes are transferred over.
        in_host_memory: whether buffers are numpy arrays of this process, so that blocks are read straight into them.
    """

    name: str
    memory: MemoryBudget
    link: Lane
    in_host_memory: bool

    def allocate(self, nbytes: int) -> Any:
        """A buffer of `nbytes` bytes. The caller holds a lease of `memory` for it.

        Raises:
            DeviceLost: the device does not answer any more.
        """

    def write(self, buffer: Any, data: Bytes) -> None:
        """Fills a buffer from host memory. Called from the link's worker.

        Raises:
            DeviceLost: the device does not answer any more.
        """

    def free(self, buffer: Any) -> None:
        """Frees a buffer. Never raises."""

    def close(self) -> None:
        """Frees all memory. Must be called by the code that opened the device."""


@runtime_checkable
class Joins(Protocol):
    """A device that takes several blocks in one transfer, of at most `most` bytes."""

    most: int

    def write_joined(self, nbytes: int, fill: Callable[[Bytes], Sequence[tuple[Any, Bytes]]]) -> None:
        """As `write` for several buffers: `fill` gets host memory [nbytes], and returns each buffer with its bytes
        there."""


@runtime_checkable
class Search(Protocol):
    """A device that searches the lists it holds."""

    def search(self, request: SearchRequest) -> Candidates:
        """The best rows of each query among the lists of the request and `request.seen`, whose arrays may be reused.

        Scores are inner products of queries and codes. For one search, one thread calls at a time; several searches may
        call from several threads.

        Raises:
            DeviceLost: the device does not answer any more.
        """


class SearchPlace(Place, Search, Protocol):
    """A device the index can use: it holds lists and searches them."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """The cost of a stage on a device under some load.

    Attributes:
        latency: seconds until one request is done.
        throughput: requests per second.
        nbytes: bytes of the device's memory that the stage takes.
        modelled: the figures come from a model of the device and were not measured.
    """

    latency: float
    throughput: float
    nbytes: int
    modelled: bool = False


@runtime_checkable
class Profile(Protocol):
    """A device that can tell the cost of a stage on it."""

    def profile(self, stage: str, load: int) -> Estimate:
        """The cost of `stage` with `load` requests at a time.

        Raises:
            CapabilityError: this device knows nothing about that stage.
        """


GROUP = "edge.devices"


def open_device(text: str, memory: MemoryBudget, *, trace: Trace | None = None, **options: Any) -> Place:
    """Opens an installed device. The caller closes it.

    Args:
        text: the device's name and options, as `parse_device` reads them. So many of a kind, `count=2`, are one device
            of that many searchers, each of which holds whole lists.
        memory: the process's ledger.
        options: further options.

    Raises:
        CapabilityError: there is no such device. The message names the installed ones.
        ConfigError: the device does not have such an option, or the option does not take such a value.
        BudgetExceeded: the device's memory does not fit the limit.
    """
    name, written = parse_device(text)
    kind = load(GROUP, name)
    if "count" in written and "of" not in written and "count" not in inspect.signature(kind).parameters:
        kind, written = load(GROUP, "searchers"), {"of": name, "lists": "whole", **written}
    try:
        device = kind(memory, trace=trace, **written, **options)
    except TypeError as error:
        raise ConfigError(f"device {name} cannot be opened with these options: {error}") from error
    if not isinstance(device, Place):
        raise CapabilityError(f"device {name} is no place for lists: it lacks a part of the contract")
    return device


def capabilities(device: Place) -> list[str]:
    """The capabilities of an open device: place, search, profile, layers."""
    found = ["place"]
    found += ["search"] if isinstance(device, Search) else []
    found += ["profile"] if isinstance(device, Profile) else []
    return found + (["layers"] if device.name in names("edge.runtimes") else [])
