"""Devices: found by name, held to their caps, and refusing requests that they cannot serve."""

from __future__ import annotations

import math
import time
from importlib.metadata import entry_points
from typing import Any

import numpy as np
import pytest
from naive.lists import trained

from edge.budget import MemoryBudget
from edge.devices.cpu import CpuDevice, LimitedDevice, MeasuredScan
from edge.errors import BudgetExceeded, CapabilityError, ConfigError
from edge.ivf.device import (
    GROUP,
    Candidates,
    ListScan,
    Profile,
    Search,
    SearchPlace,
    SearchRequest,
    capabilities,
    open_device,
)
from edge.link import Lane
from edge.plugins import parse_device


def budget(limit: int = 1 << 36) -> MemoryBudget:
    return MemoryBudget(limit, baseline=0)


def test_devices_are_found_by_name_with_their_options() -> None:
    assert {"cpu", "limited"} <= {point.name for point in entry_points(group=GROUP)}
    for name, kind in (("cpu", CpuDevice), ("limited", LimitedDevice)):
        device = open_device(name, budget())
        assert isinstance(device, kind)
        assert capabilities(device) == ["place", "search", "profile"]
        device.close()
    with pytest.raises(CapabilityError, match=r"abacus.*cpu"):
        open_device("abacus", budget())
    assert parse_device("cpu") == ("cpu", {})
    assert parse_device("fpga:simulate, units=4") == ("fpga", {"simulate": "yes", "units": "4"})
    assert parse_device("limited:cap=64MB,bandwidth=1GB") == ("limited", {"cap": "64MB", "bandwidth": "1GB"})
    device = open_device("limited:cap=2MB,bandwidth=1MB,latency=0.5", budget())
    assert device.memory.limit == 2_000_000
    device.link.submit("x", lambda: 0, 0)
    device.close()


def test_a_device_is_a_device() -> None:
    """The contract holds for types, too: mypy reads this."""
    ledger = budget()
    devices: list[SearchPlace] = [CpuDevice(ledger), LimitedDevice(ledger, cap=8 << 20)]
    for device in devices:
        assert device.allocate(100).shape == (100,)
        assert isinstance(device, Search)
        assert isinstance(device, Profile)
        with pytest.raises(CapabilityError, match="telepathy"):
            device.profile("telepathy", 1)
        estimate = device.profile("scan", 2)
        assert estimate.latency > 0
        assert estimate.throughput == pytest.approx(2 / estimate.latency)
        assert not estimate.modelled
        device.close()
    assert ledger.used == 0
    with Lane() as lane:
        CpuDevice(ledger, link=lane).close()
        lane.submit("a link that is shared is left open", lambda: 0, 0).wait()


def test_a_limited_devices_cap_is_held_where_its_bytes_are() -> None:
    ledger = budget(10_000)
    device = LimitedDevice(ledger, cap=6_000)
    assert (ledger.used, device.memory.limit, device.memory.used) == (6_000, 6_000, 0)
    with pytest.raises(BudgetExceeded):
        device.memory.reserve("lists", 6_001)
    with pytest.raises(BudgetExceeded):
        LimitedDevice(ledger, cap=6_000)
    device.close()
    assert ledger.used == 0


WRONG = [
    "limited:cap", "limited:cap=", "limited:=3", "limited:cap=much", "limited:color=red", "limited:latency=long",
    "limited:latency=-1", "limited:scan=0", "limited:scan=fast", "limited:depth=0", "limited:depth=two",
    "limited:depth=1.5", "cpu:cap=3", "limited:latency=nan", "limited:latency=inf", "fpga:latency=1e9",
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "kind", "says"),
    [
        *((text, ConfigError, None) for text in WRONG),
        ("fpga:units=12", ConfigError, "power of two"),
        ("fpga:units=0", ConfigError, "whole number"),
        ("fpga:results=many", ConfigError, "whole number"),
        ("fpga:simulate=maybe", ConfigError, "yes"),
        ("searchers:count=0", ConfigError, "from 1 to 64"),
        ("searchers:count=few", ConfigError, "from 1 to 64"),
        ("limited:count=many", ConfigError, "from 1 to 64"),
        ("limited:count=65", ConfigError, "from 1 to 64"),
        ("limited:count=2,of=cpu", ConfigError, "cannot be opened with these options"),
        ("searchers:of=cpu,lists=halved", ConfigError, "striped or whole"),
        ("searchers:of=cpu,confidence=high", ConfigError, "is a number"),
        ("searchers:of=cpu,confidence=1.5", ConfigError, "from 1e-06 to 0.99"),
        ("searchers:of=cpu,lists=whole,confidence=0.9", ConfigError, "dealt evenly"),
        ("searchers:of=cpu+abacus", CapabilityError, "there is no device 'abacus'"),
        ("searchers:of=searchers", ConfigError, "no searchers"),
        ("searchers:of=cpu,color=red", ConfigError, "color"),
        ("searchers:of=cpu,count=4,cap=30GB", BudgetExceeded, "limited"),
    ],
)
def test_what_cannot_be_opened_is_refused_and_holds_nothing(text: str, kind: type[Exception], says: str | None) -> None:
    ledger = budget()
    with pytest.raises(kind, match=says):
        open_device(text, ledger)
    assert ledger.used == 0


@pytest.mark.parametrize("rows", [None, np.arange(0, 400, 4)])
def test_a_limited_scan_is_as_slow_as_it_says(rows: np.ndarray | None) -> None:
    """A list counts for each query that probes it, with the rows that count."""
    vectors = np.ones((400, 8), np.float32)
    codec = trained("flat", vectors)
    counted = 400 if rows is None else len(rows)
    seconds = {}
    for scan in (2 * counted * 32 / 0.02, math.inf):
        device = LimitedDevice(budget(), cap=1 << 20, scan=scan)
        codes = device.allocate(vectors.nbytes)[: vectors.nbytes].reshape(400, 32)
        device.write(codes.reshape(-1), codec.encode(vectors))
        seen = Candidates.empty(3, 2)
        request = SearchRequest(codec, vectors[:3], [ListScan(codes, 0, 400, rows, [0, 2])], np.arange(400), seen)
        started = time.perf_counter()
        found = device.search(request)
        seconds[scan] = time.perf_counter() - started
        assert found.scores[0].tolist() == [8.0, 8.0]
        assert found.labels[1].tolist() == [-1, -1]
        device.close()
    assert next(iter(seconds.values())) >= 0.02 * 0.999


class Watched(MeasuredScan):
    name = "watched"
    in_host_memory = False

    def __init__(self) -> None:
        self.memory = MemoryBudget(1 << 23, baseline=0)
        self.requests: list[SearchRequest] = []
        self.vectors: Any = None

    def allocate(self, nbytes: int) -> str:
        return "place"

    def write(self, buffer: str, data: Any) -> None:
        self.vectors = data.view(np.float32).reshape(4096, 256)

    def search(self, request: SearchRequest) -> None:
        self.requests.append(request)

    def free(self, buffer: str) -> None:
        assert buffer == "place"


def test_the_second_of_two_equal_searches_is_measured() -> None:
    device = Watched()
    estimate = device.profile("scan", 3)
    assert len(device.requests) == 2
    assert estimate.nbytes == 4 << 20
    for request in device.requests:
        scores = request.queries @ device.vectors.T
        assert len(np.unique(scores)) > 0.99 * scores.size
        assert list(request.lists[0].queries) == [0, 1, 2]
    assert device.memory.used == 0
