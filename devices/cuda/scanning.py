"""`FusedSearch`: all searches of a request by one launch over the lists' rows, one selection and one read back."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.budget import Lease, MemoryBudget
from edge.devices.cuda.card import Card, Pinned
from edge.devices.intervals import Prepared, offer, prepared
from edge.ivf.base import CodecSpec
from edge.ivf.device import ListScan, SearchRequest

ROWS = 64
"""Rows that are scored together: an item. A row that counts is a bit of 64."""

_STEP = 32
"""Bytes or components of a row that are summed at a time. With 64 a GPU has registers for a quarter of the threads."""
_SPARE = 64
"""Rows that come back for each query beyond twice as many as are wanted. If more may be among the best, it is asked for
eight times as many."""

_MORE = 8
_LONGER = 1 + 1e-5
"""The host's length of a vector times this is no less than the kernel's."""


class FusedSearch:
    def __init__(self, card: Card, host: MemoryBudget) -> None:
        self._card = card
        self._kernels = importlib.import_module("edge.devices.cuda.kernels")
        self._lease = host.reserve("cuda results", 0)
        self._landing: Pinned | None = None

    def search(self, request: SearchRequest, room: Lease) -> None:
        """Merges the best rows of all lists into `request.seen`. A list with very many rows makes `room`, the lease of
        device memory, larger."""
        queries, width = request.seen.scores.shape
        self._some(request, list(request.lists), list(range(queries)), 2 * width + _SPARE, room)

    def close(self) -> None:
        if self._landing is not None:
            self._landing.close()
            self._landing = None
        self._lease.release()

    def _some(self, request: SearchRequest, lists: list[ListScan], queries: list[int], keep: int, room: Lease) -> None:
        """Searches some lists for some queries; in halves if they need more than `room`."""
        spec, width = request.codec.spec, request.seen.scores.shape[1]
        chosen = set(queries)
        lists = [scan for scan in lists if not chosen.isdisjoint(scan.queries)]
        if not lists:
            return
        rows = np.zeros(len(request.queries), np.int64)
        for scan in lists:
            rows[list(scan.queries)] += -(-scan.count // ROWS) * ROWS
        longest = int(rows[queries].max())
        keep = min(keep, longest)
        # Bounds, the selection's copy of them with places, and 40 bytes for each item; results, and what is looked up.
        values = spec.code_size * 1024 if spec.has_tables else 4 * (spec.dim + 16)
        needed = len(queries) * (longest * 17 + 2 * keep * (spec.code_size + 28) + values)
        if needed > room.nbytes:
            if len(queries) > 1:
                half = len(queries) // 2
                for part in (queries[:half], queries[half:]):
                    self._some(request, lists, part, keep, room)
                return
            if len(lists) > 1:
                half = len(lists) // 2
                for some in (lists[:half], lists[half:]):
                    self._some(request, some, queries, keep, room)
                return
            room.resize(needed)
        own = prepared("cuda", spec, request.queries[queries])
        items, firsts, labels = _items(lists, queries, spec.code_size)
        found = self._run(spec, own, items, firsts, longest, keep)
        upper = np.ascontiguousarray(found[:, :, 0]).view(np.float32)
        codes = found.view(np.uint8)[:, :, 8 : 8 + spec.code_size]
        margin = 2 * own.margin.astype(np.float64)[:, None]
        if spec.exact:
            # Where a query has fewer rows, no code was written.
            vectors = np.where((upper > -np.inf)[:, :, None], np.ascontiguousarray(codes).view("<f4"), 0)
            margin = margin * (_LONGER * np.linalg.norm(vectors, axis=2))
        floors = np.where(request.seen.labels[queries].min(1) >= 0, request.seen.scores[queries].min(1), -np.inf)
        if keep >= width:
            floors = np.maximum(floors, np.partition(upper - margin, keep - width, axis=1)[:, keep - width])
        kept = (upper >= floors[:, None]) & (upper > -np.inf)
        # The bounds fall, so the rows that may be among the best come first.
        counts = kept.sum(1)
        places = found[:, :, 1]
        names = np.where(kept, labels[np.where(kept, firsts[:, None] + places // ROWS, 0)] + places % ROWS, -1)
        for place, (query, count) in enumerate(zip(queries, counts.tolist(), strict=True)):
            if count < keep or keep == longest:
                offer(request, query, codes[place, :count], names[place, :count])
        for place in np.flatnonzero((counts == keep) & (keep < longest)).tolist():  # overwrites what was found
            self._some(request, lists, [queries[place]], _MORE * keep, room)

    def _run(
        self, spec: CodecSpec, own: Prepared, items: npt.NDArray[np.int64], firsts: Any, longest: int, keep: int
    ) -> npt.NDArray[np.int32]:
        """The rows with the highest bounds of each query, [queries, keep, 2 + words]: bound, place and code."""
        card, torch, queries = self._card, self._card.torch, len(firsts)
        words = 2 + -(-spec.code_size // 4)
        landing = self._land(4 * queries * keep * words)
        given = own.values, items, firsts, np.stack((own.base, own.margin), axis=1)
        sizes = [x.nbytes for x in given]
        kind = "pq" if spec.has_tables else spec.name

        def run() -> None:
            there = torch.from_numpy(np.concatenate([x.reshape(-1).view(np.uint8) for x in given])).to(card.device)
            values, scanned, first, head = (
                part.view(getattr(torch, x.dtype.name)) for part, x in zip(there.split(sizes), given, strict=True)
            )
            upper = torch.full((queries, longest), -torch.inf, device=card.device)
            self._kernels.scan[(items.shape[1],)](
                scanned, values, head, upper, longest, own.values.shape[1],
                KIND=kind, DIM=spec.dim, SIZE=spec.code_size, ROWS=ROWS, STEP=_STEP,
            )  # fmt: skip
            bounds, places = torch.topk(upper, keep, dim=1)
            found = torch.empty((queries, keep, words), dtype=torch.int32, device=card.device)
            self._kernels.gather[(queries * keep,)](
                scanned, first, places, bounds, found, queries * keep, keep,
                SIZE=spec.code_size, ROWS=ROWS, BLOCK=1 << (spec.code_size - 1).bit_length(), WORDS=words,
            )  # fmt: skip
            landing.tensor[: 4 * found.numel()].view(torch.int32).copy_(found.view(-1), non_blocking=True)

        card.compute.run(run)
        card.compute.record().wait()
        return landing.array[: 4 * queries * keep * words].view(np.int32).reshape(queries, keep, words)

    def _land(self, nbytes: int) -> Pinned:
        if self._landing is None or self._landing.array.nbytes < nbytes:
            self._lease.resize(max(64 << 10, nbytes))
            if self._landing is not None:
                self._landing.close()
            self._landing = Pinned(self._card, nbytes)
        return self._landing


def _items(
    lists: Sequence[ListScan], queries: Sequence[int], size: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The items of some queries, query by query: for each (see `kernels.scan`) [5, n], the first one of each query, and
    the label of an item's row 0."""
    asking = [scan.queries for scan in lists]
    asked = np.fromiter(chain.from_iterable(asking), np.int64)
    place_of = np.full(max(int(asked.max()), *queries) + 1, -1, np.int64)
    place_of[queries] = np.arange(len(queries))
    owners, numbers = place_of[asked], np.repeat(np.arange(len(lists)), [len(own) for own in asking])
    order = np.lexsort((numbers, owners))[np.count_nonzero(owners < 0) :]
    owners, numbers = owners[order], numbers[order]
    counts = np.array([scan.count for scan in lists], np.int64)
    cuts = -(-counts // ROWS)
    ends = np.cumsum(cuts)
    masks = np.full(int(ends[-1]), -1, np.int64)
    for scan, low, high in zip(lists, (ends - cuts).tolist(), ends.tolist(), strict=True):
        if scan.rows is not None:
            live = np.zeros((high - low) * ROWS, bool)
            live[scan.rows] = True
            masks[low:high] = np.packbits(live, bitorder="little").view("<i8")
    own = cuts[numbers]
    of = np.repeat(np.arange(len(numbers)), own)
    tile = np.arange(len(of)) - np.repeat(np.cumsum(own) - own, own)
    which, query = numbers[of], owners[of]
    firsts = np.searchsorted(query, np.arange(len(queries)))
    addresses = np.array([scan.codes.tensor.data_ptr() for scan in lists], np.int64)
    items = np.empty((5, len(of)), np.int64)
    items[0] = addresses[which] + tile * ROWS * size
    items[1] = query
    items[2] = (np.arange(len(of)) - firsts[query]) * ROWS
    items[3] = np.minimum(ROWS, counts[which] - tile * ROWS)
    items[4] = masks[(ends - cuts)[which] + tile]
    labels = np.array([scan.first for scan in lists], np.int64)[which] + tile * ROWS
    return items, firsts, labels
