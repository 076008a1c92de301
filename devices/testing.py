"""Checks that a device keeps its contract (`edge.ivf.device`). A package with a device runs the checks in its tests:

>>> from edge.devices.testing import check_device
>>> check_device(MyDevice)
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from edge.budget import MemoryBudget
from edge.devices.faiss_codec import FaissCodecs
from edge.errors import CapabilityError
from edge.ivf.base import Bytes, Codec, Vectors
from edge.ivf.device import Candidates, ListScan, Place, Profile, Search, SearchPlace, SearchRequest

Opener = Callable[[MemoryBudget], Place]
"""A function that opens the device under a memory budget."""

_LIMIT = 1 << 30
_DIM = 16
_ROWS = (40, 1, 257, 90, 0, 33)
"""Number of rows of each searched list; one list is empty."""

_WIDTH = 12
_TOLERANCE = 1e-4
"""Tolerance of scores, because a device may sum in another order."""


def check_device(open_device: Opener) -> None:
    """Runs every check that the device's capabilities allow. An `AssertionError` says what it breaks."""
    check_place(open_device)
    device = open_device(MemoryBudget(_LIMIT, baseline=0))
    can_search, can_profile = isinstance(device, Search), isinstance(device, Profile)
    device.close()
    if can_search:
        for codec in ("flat", "sq8", "pq", "opq"):
            check_search(open_device, codec)
    if can_profile:
        check_profile(open_device)


def check_place(open_device: Opener) -> None:
    """Allocates, fills and frees buffers, and checks that the budget is as before when the device is closed."""
    ledger = MemoryBudget(_LIMIT, baseline=0)
    device = open_device(ledger)
    assert isinstance(device, Place), "a device has name, memory, link, in_host_memory, allocate, write, free, close"
    assert device.name, "a device has a name"
    assert device.memory.limit > 0, "its ledger has a limit"
    first, second = device.allocate(4096), device.allocate(100_000)
    assert first is not second, "two buffers are two objects"
    device.write(first, np.zeros((8, 8), np.uint8))  # a buffer may be filled again, and only in part
    device.write(first, np.arange(4096, dtype=np.uint8).reshape(64, 64))
    ticket = device.link.submit("check", lambda: 1, 1)
    ticket.wait()
    device.free(first)
    device.free(second)
    device.close()
    held = {owner: nbytes for owner, nbytes in ledger.holders().items() if nbytes}
    assert not held, f"after close the ledger still holds {held}"


def check_search(open_device: Opener, codec_name: str) -> None:
    """Checks the best rows of several lists: with rows left out, with queries per list, over several requests."""
    random = np.random.default_rng(7)
    codecs = FaissCodecs(threads=1)
    sample = random.standard_normal((600, _DIM)).astype(np.float32)
    codec = codecs.open(codecs.train(codec_name, sample, seed=0))
    queries = random.standard_normal((4, _DIM)).astype(np.float32)
    device = open_device(MemoryBudget(_LIMIT, baseline=0))
    try:
        assert isinstance(device, Search)
        scans, rows = _lists(device, codec, random)
        labels = np.arange(sum(_ROWS))
        seen = Candidates.empty(len(queries), _WIDTH)
        seen = device.search(SearchRequest(codec, queries, [], labels, seen))
        assert (seen.labels == -1).all(), "nothing is found in no lists"
        for part in (scans[:2], scans[2:]):  # rows found by an earlier request must stay, unless better ones are found
            seen = device.search(SearchRequest(codec, queries, part, labels, seen))
        for query in range(len(queries)):
            _check_found(seen, query, queries[query], codec, scans, rows)
    finally:
        device.close()


def check_profile(open_device: Opener) -> None:
    """Checks that a stage that no device has is refused, and that an estimate is in seconds."""
    device = open_device(MemoryBudget(_LIMIT, baseline=0))
    try:
        assert isinstance(device, Profile)
        try:
            device.profile("no such stage", 1)
        except CapabilityError:
            pass
        else:
            raise AssertionError("a stage that the device does not know must be refused with a CapabilityError")
        estimate = device.profile("scan", 2)
        assert estimate.latency > 0, "a scan takes time"
        assert estimate.throughput > 0, "a scan ends"
    finally:
        device.close()


def _lists(device: SearchPlace, codec: Codec, random: np.random.Generator) -> tuple[list[ListScan], list[Bytes]]:
    scans, held, first = [], [], 0
    for number, count in enumerate(_ROWS):
        codes = codec.encode(random.standard_normal((count, _DIM)).astype(np.float32))
        if count:
            buffer = codes if device.in_host_memory else device.allocate(codes.nbytes)
            if not device.in_host_memory:
                device.write(buffer, codes)
            rows = None if number % 2 == 0 else np.flatnonzero(random.random(count) < 0.6)
            own = [0, 1, 2, 3] if number % 3 else [0, 2]
            scan = ListScan(buffer, first, count, rows, own)
            if scan.live:
                scans.append(scan)
                held.append(codes)
        first += count
    return scans, held


def _check_found(
    seen: Candidates, query: int, vector: Vectors, codec: Codec, scans: list[ListScan], codes: list[Bytes]
) -> None:
    scores: dict[int, float] = {}
    for scan, own in zip(scans, codes, strict=True):
        if query in scan.queries:
            rows = np.arange(scan.count) if scan.rows is None else scan.rows
            for row, score in zip(rows.tolist(), (codec.decode(own[rows]) @ vector).tolist(), strict=True):
                scores[scan.first + row] = score
    taken = seen.labels[query] >= 0
    found = dict(zip(seen.labels[query][taken].tolist(), seen.scores[query][taken].tolist(), strict=True))
    best = sorted(scores.values(), reverse=True)[:_WIDTH]
    assert len(found) == len(best), f"query {query}: {len(found)} rows were found, {len(best)} should be"
    for label, score in found.items():
        assert label in scores, f"query {query}: row {label} is in none of its lists, or does not count"
        assert abs(score - scores[label]) <= _TOLERANCE, (
            f"query {query}: row {label} scores {scores[label]}, not {score}"
        )
        assert score >= best[-1] - _TOLERANCE, f"query {query}: row {label} is not among the best"
