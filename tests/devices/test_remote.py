"""A device in another process: the results of the host, and no result lost when its process dies."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from naive.beside import DIM, Both
from naive.lists import clustered

from edge.budget import MemoryBudget
from edge.devices.cpu import LimitedDevice
from edge.devices.cuda.device import CudaDevice
from edge.devices.remote import RemoteDevice
from edge.devices.searchers import SearchersDevice
from edge.errors import BudgetExceeded, CapabilityError, DeviceLost
from edge.ivf.device import SearchPlace


@pytest.mark.parametrize("codec", ["flat", "sq8", "pq"])
@pytest.mark.parametrize("kind", [RemoteDevice, LimitedDevice, partial(CudaDevice, on="cpu")])
def test_results_equal_those_of_the_host(tmp_path: Path, codec: str, kind: Callable[..., SearchPlace]) -> None:
    if isinstance(kind, partial):
        pytest.importorskip("torch")
    both = Both(tmp_path, codec, kind)
    with both.searcher.lookahead(both.lists.snapshot, clustered(9, DIM, seed=3)[:1], nbytes=10**4) as window:
        window.wait()
        assert window.fetched > 0, "lists are sent ahead"
    assert both.trace.snapshot()[f"{both.device.link.name}.bytes"] > 0
    for _ in range(2):  # sent, and then held there
        both.check()
    held = len(both.searcher.place.residency)
    assert held > 0
    both.check(nprobe=2, allowed=np.sort(both.lists.ids[::7]))
    found = both.check()
    assert found.hits >= held / 2
    both.close()


@pytest.mark.parametrize(
    ("kind", "cap"), [(RemoteDevice, 20_000), (partial(SearchersDevice, of="cpu", count=3), 8_000)]
)
def test_what_does_not_fit_there_is_scanned_here(tmp_path: Path, kind: Callable[..., SearchPlace], cap: int) -> None:
    both, freed = Both(tmp_path, "sq8", kind, cap=cap), list[Any]()
    free = both.device.free
    both.device.free = lambda buffer: (freed.append(buffer), free(buffer))  # type: ignore[method-assign]
    for nprobe in (3, 16, 5):
        both.check(nprobe=nprobe)
    for each in [one.device for one in getattr(both.device, "_searchers", ())] or [both.device]:
        assert 0 < each.memory.used <= cap
    both.close()
    assert freed, "all that it held"


@pytest.mark.parametrize("when", ["before", "between"])
def test_the_host_takes_over_when_the_process_dies(tmp_path: Path, when: str) -> None:
    both = Both(tmp_path, "sq8")
    if when == "between":
        both.check()
    os.kill(both.device._process.pid, signal.SIGKILL if hasattr(signal, "SIGKILL") else signal.SIGTERM)
    both.device._process.wait()
    for _ in range(2):
        both.check()
    assert both.searcher.place.lost
    with pytest.raises(DeviceLost, match="ended with code"):
        both.device.allocate(100)
    both.close()


def test_its_memory_counts_here() -> None:
    ledger = MemoryBudget(1 << 36, baseline=0)
    device = RemoteDevice(ledger, cap="10MB")
    assert 10_000_000 < ledger.used < 10_000_000 + (200 << 20)
    with pytest.raises(CapabilityError, match="remote"):
        device.allocate(11_000_000)
    device.close()
    assert ledger.used == 0
    with pytest.raises(BudgetExceeded, match="remote device"):
        RemoteDevice(MemoryBudget(20 << 20, baseline=0), cap="10MB")
