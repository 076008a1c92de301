"""The device `metal` on mlx's CPU build: lists are read where they lie, and results are those of the host."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from naive.lists import clustered, trained, write_lists

from edge.budget import MemoryBudget
from edge.devices import metal
from edge.devices.cpu import CpuDevice
from edge.devices.metal import MetalDevice
from edge.errors import CapabilityError
from edge.ivf.search import IndexSearcher

mx = pytest.importorskip("mlx.core")
DIM = 32


@pytest.mark.parametrize("codec", ["flat", "sq8", "pq"])
@pytest.mark.parametrize("block", [1, 32 << 20])
def test_results_equal_those_of_the_host(
    tmp_path: Path, codec: str, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metal, "_BLOCK_NBYTES", block)
    vectors = clustered(2000, DIM)
    own = trained(codec, vectors[:800])
    lists = write_lists(tmp_path, vectors, codec=own, nlist=16, deleted=0.1, pending=20)
    budget = MemoryBudget(1 << 36, baseline=0)
    devices = [CpuDevice(budget), MetalDevice(budget)]
    searchers = [IndexSearcher(device) for device in devices]
    queries = clustered(9, DIM, seed=3)
    for allowed in (None, np.sort(lists.ids[::7])):
        for _ in range(2):  # read, and then resident
            expected, found = (s.search(lists.snapshot, queries, 7, nprobe=5, allowed=allowed) for s in searchers)
            assert found.ids.tolist() == expected.ids.tolist()
            assert found.scores.tobytes() == expected.scores.tobytes()
    assert found.hits > 0
    for searcher, device in zip(searchers, devices, strict=True):
        searcher.close()
        device.close()
    lists.close()
    assert not {owner: n for owner, n in budget.holders().items() if n}


def test_codes_in_its_own_memory_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    device = MetalDevice(MemoryBudget(1 << 36, baseline=0))
    buffer = device.allocate(100_000)
    device.write(buffer, np.arange(100_000).astype(np.uint8))
    part = buffer[8:40_008].reshape(-1, 8)
    before = mx.get_active_memory()
    found = device._codes(part)
    mx.eval(found)
    assert mx.get_active_memory() == before
    assert np.array(found).tobytes() == part.tobytes()
    buffer[8] = 99
    assert np.array(found)[0] == 99, "the same memory"
    foreign = device._codes(np.arange(16, dtype=np.uint8).reshape(2, 8))
    assert np.array(foreign).tolist() == list(range(16))
    device.free(buffer)
    assert not device._arrays
    device.close()


def test_without_mlx_the_refusal_has_the_line_that_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "mlx.core", None)
    with pytest.raises(CapabilityError, match=r'pip install "edge-rag\[mlx\]"'):
        MetalDevice(MemoryBudget(1 << 36, baseline=0))
