"""Searches by our own kernels, in Triton's interpreter, and by torch alone: the host's results to the last bit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from making.interpreted_triton import Launches, interpreted
from naive.lists import trained

from edge.budget import MemoryBudget
from edge.devices.cpu import CpuDevice
from edge.devices.cuda import device as scanning
from edge.devices.cuda.device import CudaDevice
from edge.ivf.device import Candidates, ListScan, SearchRequest

DIM = 24


@pytest.fixture(autouse=True, params=[True, False], ids=["kernels", "torch alone"])
def kernels(request: pytest.FixtureRequest) -> Iterator[bool]:
    with interpreted(request.param):
        yield request.param


class Lists:
    """A few lists on the host and on the device, some rows of which do not count, with equal rows among them."""

    def __init__(self, codec: str, counts: tuple[int, ...] = (70, 1, 9, 130)) -> None:
        random = np.random.default_rng(5)
        vectors = random.standard_normal((400, DIM)).astype(np.float32)
        self.codec = trained(codec, vectors)
        self.queries = random.standard_normal((3, DIM)).astype(np.float32)
        self.host = CpuDevice(MemoryBudget(1 << 36, baseline=0))
        self.device = CudaDevice(MemoryBudget(1 << 36, baseline=0), on="cpu")
        self.here, self.there = [], []
        first = 0
        for number, count in enumerate(counts):
            codes = self.codec.encode(vectors[:count])  # a row of one list is also in the next ones
            buffer = self.device.allocate(codes.nbytes)
            self.device.write(buffer, codes)
            rows = np.flatnonzero(random.random(count) < 0.6) if number == 3 else None
            own = ([0, 1, 2], [1], [0, 2], [1, 2])[number % 4]
            for scans, held in ((self.here, codes), (self.there, buffer)):
                scans.append(ListScan(held, first, count, rows, own))
            first += count
        self.labels = np.arange(first)

    def found(self, device: Any, lists: list[ListScan], width: int, parts: int = 1) -> list[list[tuple[float, int]]]:
        seen = Candidates.empty(len(self.queries), width)
        for part in np.array_split(np.arange(len(lists)), parts):
            some = [lists[number] for number in part.tolist()]
            seen = device.search(SearchRequest(self.codec, self.queries, some, self.labels, seen))
        return [
            sorted(zip(*pair, strict=True)) for pair in zip(seen.scores.tolist(), seen.labels.tolist(), strict=True)
        ]

    def close(self) -> None:
        self.host.close()
        self.device.close()


@pytest.mark.parametrize("codec", ["flat", "sq8", "pq", "opq"])
@pytest.mark.parametrize("width", [1, 12])
def test_results_are_those_of_the_host(codec: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanning, "_SPARE", 4)
    lists = Lists(codec)
    scores = [[[score for score, _ in query] for query in lists.found(device, own, width, parts)]
              for device, own, parts in ((lists.host, lists.here, 1), (lists.device, lists.there, 1),
                                         (lists.device, lists.there, 2))]  # fmt: skip
    assert scores[0] == scores[1] == scores[2]
    lists.close()


def test_queries_with_fewer_rows_than_others_find_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies behind their rows in the results was never written, and may be anything."""
    monkeypatch.setattr(torch, "empty", lambda *shape, **given: torch.full(*shape, -1, **given))
    lists = Lists("flat", (130, 9))
    for scans in (lists.here, lists.there):
        scans[0].queries, scans[1].queries = [0], [1, 2]
    assert lists.found(lists.device, lists.there, 12) == lists.found(lists.host, lists.here, 12)
    lists.close()


def test_more_rows_come_back_where_many_may_be_among_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    """130 equal rows: which of them stay is the host's choice, so all come back; for one of the queries only."""
    monkeypatch.setattr(scanning, "_SPARE", 2)
    lists = Lists("sq8", (130, 90))
    codes = np.repeat(lists.here[0].codes[:1], 130, axis=0)
    lists.here[0].codes = codes
    lists.device.write(lists.there[0].codes, codes)
    for scans in (lists.here, lists.there):
        scans[0].queries, scans[1].queries = [0], [1, 2]
    assert lists.found(lists.device, lists.there, 3) == lists.found(lists.host, lists.here, 3)
    lists.close()


@pytest.mark.parametrize("codec", ["sq8", "opq"])
def test_little_memory_splits_a_search(codec: str) -> None:
    lists = Lists(codec)
    expected = lists.found(lists.host, lists.here, 5)
    with Launches() as whole:
        assert lists.found(lists.device, lists.there, 5) == expected
    lists.device._search._lease.resize(9_000)
    with Launches() as mode:
        assert lists.found(lists.device, lists.there, 5) == expected
    assert mode.count > 3 * whole.count, "a scan and a selection for each query and some lists"
    lists.close()


def test_launches_of_a_search(kernels: bool) -> None:
    """As many for 3 queries in 4 lists as for one."""
    counts = []
    lists = Lists("sq8")
    for queries in (1, 3):
        scans = [
            ListScan(s.codes, s.first, s.count, s.rows, [q for q in s.queries if q < queries]) for s in lists.there
        ]
        request = SearchRequest(
            lists.codec, lists.queries[:queries], scans, lists.labels, Candidates.empty(queries, 10)
        )  # fmt: skip
        lists.device.search(request)
        with Launches() as mode:
            lists.device.search(request)
        counts.append(mode.count)
    lists.close()
    assert counts == ([6, 6] if kernels else [14, 14])
