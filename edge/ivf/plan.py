"""`Plan`: the parts of all probed lists, each once, with the queries that probe them, and what their labels mean."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.ivf.base import CHECKSUM_NBYTES, Ids, ListPart, Snapshot
from edge.ivf.device import ListScan

COPY_NBYTES = 1 << 20
"""Codes that a device copies together at a time, where the rows that count do not lie beside each other."""

_ROW_NBYTES = 16
"""A label and an id."""


class Plan:
    """What a search scans. A row's label counts through the rows of all parts, so that its id, its checksum and its
    vector can be found again.

    Attributes:
        parts: each part of a probed list, once; the best-ranked lists first.
        queries: for each part the numbers of the queries that probe its list.
        expected: parts of each query.
        labels: 0, 1, 2, ... for all rows.
    """

    def __init__(self, snapshot: Snapshot, probes: npt.NDArray[np.int64], allowed: Ids | None) -> None:
        """
        Args:
            probes: lists of each query [q, n], best first.
            allowed: ids that may be returned, ascending; None for all.
        """
        self._allowed = allowed
        self.parts: list[ListPart] = []
        self.queries: list[list[int]] = []
        self.expected = [0] * len(probes)
        who: dict[int, list[int]] = {}
        for rank in probes.T.tolist():  # by rank, so that a list stands where it is ranked best
            for query, number in enumerate(rank):
                who.setdefault(number, []).append(query)
        for number, queries in who.items():
            parts = snapshot.lists[number]
            self.parts += parts
            self.queries += [queries] * len(parts)
            for query in queries:
                self.expected[query] += len(parts)
        self._starts = [0, *accumulate(part.rows for part in self.parts)]
        self._bases = np.array(self._starts)
        # Made once: numpy lets other threads run while it counts, which takes longer than to scan a small part.
        self.labels = np.arange(self._starts[-1])
        self._ids = np.empty(self._starts[-1], np.int64)
        # Exact codes are the vectors themselves, which were checked when their block was read.
        self._checksums = np.empty(0 if snapshot.codec.spec.exact else self._starts[-1], np.uint32)

    @staticmethod
    def memory_needed(snapshot: Snapshot, probes: npt.NDArray[np.int64]) -> int:
        """Bytes a plan holds, and what a device copies of one part that has gaps."""
        parts = [part for number in np.unique(probes).tolist() for part in snapshot.lists[number]]
        largest = max((part.rows for part in parts), default=0)
        rows = sum(part.rows for part in parts)
        copied = min(COPY_NBYTES, largest * snapshot.codec.spec.code_size)
        # For one part at a time: which rows count, their numbers and labels; two pieces of copied codes.
        per_row = _ROW_NBYTES + (0 if snapshot.codec.spec.exact else CHECKSUM_NBYTES)
        return int(rows * per_row + largest * 32 + 2 * copied + probes.nbytes * 4 + len(parts) * 512)

    def scan(self, number: int, ids: Ids, codes: Any, checksums: npt.NDArray[np.uint32]) -> ListScan:
        """Part `number` for a device; remembers whose rows they are.

        Args:
            codes: the buffer where the device finds the codes.
        """
        first, end = self._starts[number], self._starts[number + 1]
        self._ids[first:end] = ids
        if len(self._checksums):
            self._checksums[first:end] = checksums
        return ListScan(codes, first, end - first, self._live(self.parts[number], ids), self.queries[number])

    def locate(self, labels: Ids) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Part and row [n] of each label [n]."""
        parts = np.searchsorted(self._bases, labels, side="right") - 1
        return parts, labels - self._bases[parts]

    def ids(self, labels: Ids) -> Ids:
        """The ids [n] that `labels` [n] of scanned rows mean."""
        return self._ids[labels]

    def checksums(self, labels: Ids) -> npt.NDArray[np.uint32]:
        """CRC-32 [n] of the float32 vectors of `labels` [n]."""
        return self._checksums[labels]

    def _live(self, part: ListPart, ids: Ids) -> npt.NDArray[np.int64] | None:
        """Numbers of the rows that count, ascending; None for all."""
        if self._allowed is None and not len(part.deleted):
            return None
        keep = np.ones(part.rows, np.bool_) if self._allowed is None else member(self._allowed, ids)
        keep[part.deleted] = False
        return None if keep.all() else np.flatnonzero(keep)


def member(sorted_ids: Ids, ids: Ids) -> npt.NDArray[np.bool_]:
    """Which of `ids` [n] are among `sorted_ids`."""
    if not len(sorted_ids):
        return np.zeros(len(ids), np.bool_)
    at = np.searchsorted(sorted_ids, ids)
    at[at == len(sorted_ids)] = 0
    found: npt.NDArray[np.bool_] = sorted_ids[at] == ids
    return found
