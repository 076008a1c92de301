"""`Stripes`: the buffer of one list with its rows distributed over several searchers; `Share`: one searcher's part of
some lists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edge.budget import Lease
from edge.ivf.base import Bytes, Ids
from edge.ivf.device import Candidates, ListScan, SearchPlace, SearchRequest


@dataclass(slots=True, eq=False)
class StripeSearcher:
    """A device that searches for a coordinator.

    Attributes:
        lost: whether the device has stopped answering.
    """

    device: SearchPlace
    lost: bool = False


@dataclass(slots=True, eq=False)
class Stripe:
    """The rows of a list that one searcher holds: `first`, `first + step`, `first + 2 * step`, ...

    Attributes:
        lease: lease of the rows' bytes, in the searcher's budget.
        rows: number of rows.
        buffer, nbytes: the searcher's buffer and its size; None until the first write.
        codes: the codes in the searcher's memory.
    """

    searcher: StripeSearcher
    lease: Lease
    first: int
    step: int
    rows: int = 0
    buffer: Any = None
    nbytes: int = 0
    codes: Any = None

    def prepare(self, data: Bytes) -> Bytes:
        """Allocates a buffer for this stripe of a list's codes [rows, code_size], and returns the stripe's codes.

        Raises:
            BudgetExceeded: the searcher has no room.
            DeviceLost: the searcher does not answer.
        """
        own: Bytes = data[self.first :: self.step]
        self.rows = len(own)
        if own.nbytes > self.nbytes:
            self.lease.resize(own.nbytes)
            self._free()
            self.buffer, self.nbytes = self.searcher.device.allocate(own.nbytes), own.nbytes
        return own

    def fill(self, own: Bytes) -> int:
        """Sends the stripe's codes [rows, code_size], and returns their number of bytes."""
        device = self.searcher.device
        device.write(self.buffer, own)
        self.codes = self.buffer
        if device.in_host_memory:  # a list in host memory is scanned as an array of its rows
            self.codes = self.buffer.reshape(-1)[: own.nbytes].reshape(own.shape)
        return own.nbytes

    def scan(self, item: ListScan, start: int) -> ListScan | None:
        """This stripe as a list to scan, with labels from `start` on; None if no row of the stripe is selected."""
        rows = item.rows
        if rows is not None:
            rows = rows[rows % self.step == self.first] // self.step
        if not self.rows or (rows is not None and not len(rows)):
            return None
        return ListScan(self.codes, start, self.rows, rows, item.queries)

    def release(self) -> None:
        """Frees buffer and lease. Never raises."""
        self._free()
        self.lease.release()

    def _free(self) -> None:
        if self.buffer is not None:
            self.searcher.device.free(self.buffer)
            self.buffer, self.codes, self.nbytes = None, None, 0


class Stripes:
    """The stripes of one list."""

    def __init__(self, parts: list[Stripe]) -> None:
        self.parts = parts

    @property
    def lost(self) -> bool:
        """Whether a searcher with some of the rows has stopped answering."""
        return any(part.searcher.lost for part in self.parts if part.rows)


class Share:
    """One searcher's part of the lists of a request.

    Attributes:
        scans: the searcher's stripes, with labels that number its rows.
        queries: numbers of the queries that probe these lists, ascending.
    """

    def __init__(self, searcher: StripeSearcher, request: SearchRequest) -> None:
        self.searcher = searcher
        self.scans: list[ListScan] = []
        starts, firsts, steps = [], [], []
        self._rows = 0
        for item in request.lists:
            for part in item.codes.parts:
                if part.searcher is searcher and (scan := part.scan(item, self._rows)) is not None:
                    self.scans.append(scan)
                    starts.append(self._rows)
                    firsts.append(item.first + part.first)
                    steps.append(part.step)
                    self._rows += part.rows
        self.queries = sorted({query for scan in self.scans for query in scan.queries})
        self._starts, self._firsts, self._steps = np.array(starts), np.array(firsts), np.array(steps)

    def request(self, request: SearchRequest, queries: Sequence[int], kept: int) -> SearchRequest:
        """The searcher's request for some of the queries, with queues of `kept` places."""
        wanted = set(queries)
        scans = [
            ListScan(
                scan.codes, scan.first, scan.count, scan.rows, [query for query in scan.queries if query in wanted]
            )
            for scan in self.scans
        ]
        seen = Candidates.empty(len(request.queries), kept)
        scans = [scan for scan in scans if scan.queries]
        return SearchRequest(request.codec, request.queries, scans, np.arange(self._rows), seen)

    def labels(self, own: Ids) -> Ids:
        """The request's labels [n] for this searcher's own labels [n]."""
        place = np.searchsorted(self._starts, own, side="right") - 1
        labels: Ids = self._firsts[place] + (own - self._starts[place]) * self._steps[place]
        return labels
