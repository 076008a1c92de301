"""Opening an index: what it takes from installed packages, what it refuses, and that nothing is kept when it closes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import faiss
import pytest
from naive import index_memory
from naive.index import IndexRig, SimpleDatabase, mixture

from edge.budget import MemoryBudget
from edge.devices.cpu import CpuDevice
from edge.devices.faiss_codec import FaissCodecs
from edge.errors import CapabilityError
from edge.ivf import index as module
from edge.ivf.index import VectorIndex
from edge.ivf.maintenance.maintainer import Guard
from edge.plugins import load


def test_by_default_the_host_scans_and_faiss_codes(tmp_path: Path) -> None:
    database = SimpleDatabase(tmp_path / "edge.db")
    budget = MemoryBudget(1 << 36, baseline=0)
    vectors = mixture(30, 8)
    with VectorIndex(tmp_path / "segments", 8, budget=budget) as index, database.write() as db:
        index.add(db, range(30), vectors)
        assert index.search(db, vectors[:3], 1).ids[:, 0].tolist() == [0, 1, 2]
    assert budget.used == 0
    database.close()


def test_threads_reach_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def codecs(*, threads: int) -> FaissCodecs:
        seen.append(threads)
        return FaissCodecs(threads=threads)

    monkeypatch.setattr(module, "load", lambda group, name: codecs if group == "edge.codecs" else CpuDevice)
    budget = MemoryBudget(1 << 36, baseline=0)
    with VectorIndex(tmp_path, 8, budget=budget, threads=1):
        assert seen == [1]
    before = faiss.omp_get_max_threads()
    try:
        FaissCodecs(threads=1).train("sq8", mixture(50, 8), seed=0)
        assert faiss.omp_get_max_threads() == 1
    finally:
        faiss.omp_set_num_threads(before)


def test_what_is_not_installed_is_named() -> None:
    with pytest.raises(CapabilityError, match=r"no codec 'abacus'.*faiss"):
        load("edge.codecs", "abacus")


def test_an_index_that_is_only_read_makes_no_folder(tmp_path: Path) -> None:
    rig = IndexRig(tmp_path)
    rig.check()
    rig.add([1], mixture(1, rig.dim))
    rig.check()
    assert not (tmp_path / "segments").exists()
    rig.close()
    assert rig.budget.used == 0


def test_importing_the_index_loads_no_faiss(tmp_path: Path) -> None:
    code = "import edge.ivf.index, edge.devices.faiss_codec, sys; assert 'faiss' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)


def test_the_guard_is_free_again_after_its_holder(tmp_path: Path) -> None:
    path = tmp_path / "below" / "a.lock"
    with Guard(path) as first:
        assert first.held
        with Guard(path) as second:
            assert not second.held
        with Guard(path) as third:
            assert not third.held, "who did not get it does not let it go either"
    with Guard(path) as fourth:
        assert fourth.held
    code = f"""
import os, signal
from pathlib import Path
from edge.ivf.maintenance.maintainer import Guard
with Guard(Path({str(path)!r})) as guard:
    assert guard.held
    os._exit(9)
"""
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path).returncode == 9
    with Guard(path) as fifth:
        assert fifth.held, "it dies with its holder"


CHILD = Path(index_memory.__file__)
ROWS = 50_000


def test_the_process_stays_below_its_limit(tmp_path: Path) -> None:
    spare = 36 << 20
    command = [sys.executable, str(CHILD), str(tmp_path), str(ROWS), str(spare), "sq8"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    figures = json.loads(said.splitlines()[-1])
    size = sum(path.stat().st_size for path in (tmp_path / "segments").glob("*.blk"))
    assert figures["rows"] == ROWS - ROWS // 10 + 300
    assert figures["lists"] > 500
    assert figures["found"] == 200
    assert figures["left"] == 0, "closing gives everything back"
    assert figures["peak"] <= figures["limit"], figures
    assert size > spare
