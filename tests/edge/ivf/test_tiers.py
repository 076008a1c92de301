"""What a tier hands out: every part once, whenever it arrives."""

from __future__ import annotations

from pathlib import Path

import pytest
from naive.lists import NaiveCodec, clustered, gridded, write_lists
from naive.searching import Rig

from edge.budget import MemoryBudget
from edge.cache.residency import Handle
from edge.devices.cpu import CpuDevice
from edge.devices.limited import LimitedDevice
from edge.ivf.reading import Reader
from edge.ivf.search import IndexSearcher


def test_a_part_that_arrives_at_any_moment_is_handed_out_once(
    rigs: list[Rig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rigs.append(rig := Rig(tmp_path, gridded(300, 8), nlist=6))
    parts = [part for parts in rig.lists.snapshot.lists for part in parts]
    asked: set[int] = set()

    def ready(handle: Handle) -> bool:
        """On its way when first asked, there when asked again."""
        first = id(handle) not in asked
        asked.add(id(handle))
        return not first

    monkeypatch.setattr(Handle, "ready", property(ready))
    reader = Reader(rig.searcher.host, parts, range(len(parts)))
    handed = []
    for batch in reader:
        for readable in batch:
            handed.append(readable.number)
            readable.release()
    reader.close()
    assert sorted(handed) == list(range(len(parts)))


@pytest.mark.parametrize(
    ("shared", "seconds", "scans", "used"),
    [(True, 2.0, 16, False), (True, 2.0, 15, True), (True, 1.0, 16, True), (False, 2.0, 16, True)],
)
def test_a_device_in_the_hosts_memory_is_used_if_it_is_as_fast(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: bool, seconds: float, scans: int, used: bool
) -> None:
    """The best of its scans counts; the first one, which compiles kernels, takes longer."""
    lists = write_lists(tmp_path, clustered(600, 16), codec=NaiveCodec("flat", 16), nlist=6)
    budget = MemoryBudget(1 << 30, baseline=0)
    host, device = CpuDevice(budget), LimitedDevice(budget, cap=1 << 20)
    device.shared = shared  # type: ignore[attr-defined]
    searcher = IndexSearcher(host, places=[device])
    (tier,) = searcher.places
    for number in range(scans):
        searcher.host.learn(1000, 1.0)
        tier.learn(1000, seconds if number else 100.0)
    assert tier.lost is not used
    for each in (searcher.host, tier):  # what this machine takes changes nothing
        monkeypatch.setattr(each, "learn", lambda *scan: None)
    alone, query = IndexSearcher(CpuDevice(budget)), clustered(1, 16, seed=3)
    expected = alone.search(lists.snapshot, query, 5, nprobe=6)
    for _ in range(2):
        found = searcher.search(lists.snapshot, query, 5, nprobe=6)
        assert (found.ids.tolist(), found.scores.tobytes()) == (expected.ids.tolist(), expected.scores.tobytes())
    assert (tier.residency.nbytes > 0) is used
    for each in (searcher, alone, device, host):
        each.close()
    lists.close()
