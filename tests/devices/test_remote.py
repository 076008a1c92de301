"""A device in another process: the results of the host, and no result lost when its process dies."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest
from naive.lists import clustered, write_lists

from edge.budget import MemoryBudget
from edge.devices.cpu import CpuDevice
from edge.devices.faiss_codec import FaissCodecs
from edge.devices.limited import LimitedDevice
from edge.devices.remote import RemoteDevice
from edge.errors import BudgetExceeded, CapabilityError, DeviceLost
from edge.ivf.base import Found
from edge.ivf.device import SearchPlace
from edge.ivf.search import Searcher
from edge.lanes import Lane
from edge.trace import Trace

DIM = 32


class Both:
    """One index, searched by the host alone and with another device."""

    def __init__(self, folder: Path, codec: str, kind: type = RemoteDevice, cap: int = 8 << 20) -> None:
        vectors = clustered(2000, DIM)
        codecs = FaissCodecs(threads=1)
        self.lists = write_lists(
            folder, vectors, codec=codecs.open(codecs.train(codec, vectors[:800], seed=0)), nlist=16, deleted=0.1,
            pending=20,
        )  # fmt: skip
        self.budget = MemoryBudget(1 << 30, baseline=0)
        self.trace = Trace()
        self.lane = Lane()
        self.host = CpuDevice(self.budget, link=self.lane)
        self.device: SearchPlace = kind(self.budget, cap=cap, trace=self.trace)
        self.alone = Searcher(self.host)
        self.searcher = Searcher(self.host, places=[self.device], trace=self.trace)

    def check(self, *, nprobe: int = 5, allowed: np.ndarray | None = None) -> Found:
        queries = clustered(9, DIM, seed=3)
        expected = self.alone.search(self.lists.snapshot, queries, 7, nprobe=nprobe, allowed=allowed)
        found = self.searcher.search(self.lists.snapshot, queries, 7, nprobe=nprobe, allowed=allowed)
        assert found.ids.tolist() == expected.ids.tolist()
        assert found.scores.tobytes() == expected.scores.tobytes()
        return found

    def close(self) -> None:
        for searcher in (self.searcher, self.alone):
            searcher.close()
        self.device.close()
        self.host.close()
        self.lane.close()
        self.lists.close()
        assert not {owner: n for owner, n in self.budget.holders().items() if n}


@pytest.mark.parametrize("codec", ["flat", "sq8", "pq"])
@pytest.mark.parametrize("kind", [RemoteDevice, LimitedDevice])
def test_results_equal_those_of_the_host(tmp_path: Path, codec: str, kind: type) -> None:
    both = Both(tmp_path, codec, kind)
    for _ in range(2):  # sent, and then held there
        both.check()
    held = len(both.searcher.places[0].residency)
    assert held > 0
    both.check(nprobe=2, allowed=np.sort(both.lists.ids[::7]))
    found = both.check()
    assert found.hits >= held / 2
    both.close()


def test_what_does_not_fit_there_is_scanned_here(tmp_path: Path) -> None:
    both = Both(tmp_path, "sq8", cap=20_000)
    for nprobe in (3, 16, 5):
        both.check(nprobe=nprobe)
    assert 0 < both.device.memory.used <= 20_000
    both.close()


def test_lists_are_sent_ahead(tmp_path: Path) -> None:
    both = Both(tmp_path, "sq8")
    with both.searcher.lookahead(both.lists.snapshot, clustered(9, DIM, seed=3)[:1], nbytes=10**6) as window:
        window.wait()
        assert window.fetched > 0
    assert both.trace.snapshot()["remote link.bytes"] > 0
    both.check()
    both.close()


@pytest.mark.parametrize("when", ["before", "between"])
def test_the_host_takes_over_when_the_process_dies(tmp_path: Path, when: str) -> None:
    both = Both(tmp_path, "sq8")
    if when == "between":
        both.check()
    os.kill(both.device._process.pid, signal.SIGKILL if hasattr(signal, "SIGKILL") else signal.SIGTERM)
    both.device._process.wait()
    for _ in range(2):
        both.check()
    assert both.searcher.places[0].lost
    with pytest.raises(DeviceLost, match="ended with code"):
        both.device.allocate(100)
    both.close()


def test_its_memory_counts_here() -> None:
    ledger = MemoryBudget(1 << 30, baseline=0)
    device = RemoteDevice(ledger, cap="10MB")
    assert 10_000_000 < ledger.used < 10_000_000 + (200 << 20)
    with pytest.raises(CapabilityError, match="remote"):
        device.allocate(11_000_000)
    device.close()
    assert ledger.used == 0
    with pytest.raises(BudgetExceeded, match="remote device"):
        RemoteDevice(MemoryBudget(20 << 20, baseline=0), cap="10MB")
