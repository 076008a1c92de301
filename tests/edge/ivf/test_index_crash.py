"""Killed at any moment, the index holds what was committed last, and the next maintenance tidies up."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from naive import index_child
from naive.copies import Copies
from naive.index import SMALL, IndexRig, mixture

CHILD = Path(index_child.__file__)


def test_kill_9_while_adding_and_maintaining(tmp_path: Path) -> None:
    choose = random.Random(1)
    count = kills = 0
    while kills < 8 or count < 20:
        child = subprocess.Popen(
            [sys.executable, str(CHILD), "write", str(tmp_path), "100000"], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        time.sleep(choose.uniform(0, 0.4))
        child.kill()
        kills += 1
        said = [int(line) for line in child.stdout.read().split()]
        child.wait()
        rig = IndexRig(tmp_path, index_child.DIM, options=index_child.OPTIONS)
        count = index_child.done(rig)
        assert not said or said[-1] <= count, "what was committed is there"
        rig.twin = index_child.replay(count)
        rig.check()
        rig.close()
    rig = IndexRig(tmp_path, index_child.DIM, options=SMALL)
    rig.twin = index_child.replay(count)
    rig.maintain(full=True)
    rig.check()
    assert len(rig.files()) == 1, "nothing is left behind"
    rig.close()


def test_every_moment_between_two_file_operations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = tmp_path / "index", tmp_path / "copies"
    source.mkdir()
    rig = IndexRig(source, options=replace(SMALL, list_rows=8))
    copies = Copies(source, target)
    copies.twin = rig.twin
    copies.watch(monkeypatch)
    rig.add(range(100), mixture(100, rig.dim))
    copies.committed = dict(rig.twin.rows)
    rig.maintain()
    rig.add(range(500, 650), mixture(150, rig.dim, seed=2, centres=1, spread=0.1))
    copies.committed = dict(rig.twin.rows)
    rig.maintain()
    assert rig.trace.counters["index.splits"] > 0
    for start, gone in ((95, 0), (300, 40)):
        rig.add(range(start, start + 9), mixture(9, rig.dim, seed=start))
        rig.delete(range(gone, gone + 10))
        copies.committed = dict(rig.twin.rows)
        rig.maintain(full=gone > 0)
        rig.check()
    assert rig.trace.counters["index.merged"] > 0
    rig.close()
    monkeypatch.undo()
    assert len(copies.taken) > 40
    copies.check()


@pytest.mark.parametrize("step", ["replace", "fsync"])
def test_a_full_disk_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    from edge.errors import StorageError

    rig = IndexRig(tmp_path)
    rig.add(range(100), mixture(100, rig.dim))
    before = rig.snapshot().generation

    def full(*args: Any, **options: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, step, full)
    with pytest.raises(StorageError, match="No space left"):
        rig.maintain()
    with pytest.raises(StorageError, match="No space left"):
        rig.add(range(1000, 1200), mixture(200, rig.dim))
    monkeypatch.undo()
    rig.check()
    assert rig.snapshot().generation == before
    rig.maintain()
    rig.check()
    assert rig.snapshot().nlist > 1
    assert len(rig.files()) == 1
    rig.close()


def test_stopping_a_maintenance_leaves_nothing_behind(tmp_path: Path) -> None:
    import threading

    rig = IndexRig(tmp_path)
    rig.add(range(400), mixture(400, rig.dim))
    stages: list[str] = []
    for after in range(1, 200, 9):
        stop = threading.Event()
        calls = 0

        def progress(stage: str, done: int, total: int, *, after: int = after, stop: threading.Event = stop) -> None:
            nonlocal calls
            calls += 1
            stages.append(stage)
            assert 0 <= done <= total
            if calls == after:
                stop.set()

        rig.index.maintain(rig.database.write, stop=stop, progress=progress, full=True)
        rig.check()
        assert not [name for name in rig.files() if name.endswith(".tmp")]
        if not stop.is_set():
            break
    else:
        raise AssertionError("it never came to an end")
    assert {"train", "sort", "write", "measure"} <= set(stages)
    np.testing.assert_equal(len(rig.files()), 1)
    rig.close()
