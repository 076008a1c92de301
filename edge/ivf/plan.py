"""`Plan`: the parts of all probed lists, each once, with the queries that probe them, and what their labels mean."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from edge.ivf.base import Bytes, Ids, ListPart, Snapshot

_RUN_ROWS = 32
"""Rows that count are scanned where they lie if they come in runs of at least so many on average, else copied."""

_COPY_NBYTES = 1 << 20
"""Copied at a time."""

_ROW_NBYTES = 20
"""A label, an id and a checksum."""


class Plan:
    """What a batch scans. A row's label is its id where codes are exact; else it counts through the rows of all parts,
    because a candidate's vector must be found again.

    Attributes:
        parts: each part of a probed list, once; the best-ranked lists first.
        queries: for each part the numbers of the queries that probe its list.
        expected: parts of each query.
    """

    def __init__(self, snapshot: Snapshot, probes: npt.NDArray[np.int64], allowed: Ids | None) -> None:
        """
        Args:
            probes: lists of each query [q, n], best first.
            allowed: ids that may be returned, ascending; None for all.
        """
        self._allowed = allowed
        self._exact = snapshot.codec.spec.exact
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
        rows = 0 if self._exact else self._starts[-1]
        # Made once: numpy lets other threads run while it counts, which takes longer than to scan a small part.
        self._labels = np.arange(rows)
        self._ids = np.empty(rows, np.int64)
        self._checksums = np.empty(rows, np.uint32)

    @staticmethod
    def memory_needed(snapshot: Snapshot, probes: npt.NDArray[np.int64]) -> int:
        """Bytes a plan holds, copies of single pieces included."""
        parts = [part for number in np.unique(probes).tolist() for part in snapshot.lists[number]]
        largest = max((part.rows for part in parts), default=0)
        labels = 0 if snapshot.codec.spec.exact else sum(part.rows for part in parts) * _ROW_NBYTES
        copied = min(_COPY_NBYTES, largest * snapshot.codec.spec.code_size)
        # For one part at a time: which rows count, their numbers and labels; two pieces of copied codes.
        return labels + largest * 32 + 2 * copied + probes.nbytes * 4 + len(parts) * 512

    def pieces(self, number: int, block: Bytes) -> Iterator[tuple[Bytes, Ids]]:
        """The rows of part `number` that count: codes [n, code_size] and labels [n], in pieces that are contiguous."""
        part = self.parts[number]
        ids, codes, checksums = part.split(block)
        labels = ids
        if not self._exact:
            base, end = self._starts[number], self._starts[number + 1]
            labels = self._labels[base:end]
            self._ids[base:end] = ids
            self._checksums[base:end] = checksums
        rows = self._live(part, ids)
        if rows is None:
            yield codes, labels
            return
        starts = np.concatenate(([0], np.flatnonzero(np.diff(rows) != 1) + 1))
        if len(rows) >= _RUN_ROWS * len(starts):
            ends = np.concatenate((starts[1:], [len(rows)])) - 1
            for first, last in zip(rows[starts].tolist(), rows[ends].tolist(), strict=True):
                yield codes[first : last + 1], labels[first : last + 1]
            return
        step = max(1, _COPY_NBYTES // codes.shape[1])
        for start in range(0, len(rows), step):
            some = rows[start : start + step]
            yield codes[some], labels[some]

    def locate(self, labels: Ids) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Part and row [n] of each label [n] that is not an id."""
        parts = np.searchsorted(self._bases, labels, side="right") - 1
        return parts, labels - self._bases[parts]

    def ids(self, labels: Ids) -> Ids:
        """The ids [n] that `labels` [n] of scanned rows mean."""
        return labels if self._exact else self._ids[labels]

    def checksums(self, labels: Ids) -> npt.NDArray[np.uint32]:
        """CRC-32 [n] of the float32 vectors of `labels` [n], where codes are not exact."""
        return self._checksums[labels]

    def _live(self, part: ListPart, ids: Ids) -> npt.NDArray[np.int64] | None:
        """Numbers of the rows that count, ascending; None for all."""
        if self._allowed is None and not len(part.deleted):
            return None
        keep = np.ones(part.rows, np.bool_) if self._allowed is None else member(self._allowed, ids)
        keep[part.deleted] = False
        return None if keep.all() else np.flatnonzero(keep)


class PartScan:
    """One readable part of a plan (see `edge.ivf.tiers.Scan`)."""

    __slots__ = ("_block", "_number", "_plan", "close", "queries")

    def __init__(self, plan: Plan, number: int, block: Bytes, release: Callable[[], None]) -> None:
        self.queries = plan.queries[number]
        self.close = release
        self._plan = plan
        self._number = number
        self._block = block

    def pieces(self) -> Iterator[tuple[Bytes, Ids]]:
        return self._plan.pieces(self._number, self._block)


def member(sorted_ids: Ids, ids: Ids) -> npt.NDArray[np.bool_]:
    """Which of `ids` [n] are among `sorted_ids`."""
    if not len(sorted_ids):
        return np.zeros(len(ids), np.bool_)
    at = np.searchsorted(sorted_ids, ids)
    at[at == len(sorted_ids)] = 0
    found: npt.NDArray[np.bool_] = sorted_ids[at] == ids
    return found
