"""Killed at any moment, the index holds what was committed last, and the next maintenance tidies up."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from apsw import Connection
from naive.copies import Copies
from naive.index import SMALL, IndexRig, mixture


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
def test_a_full_disk_changes_nothing(rig: IndexRig, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    from edge.errors import StorageError

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


def test_stopping_a_maintenance_leaves_nothing_behind(rig: IndexRig) -> None:
    import threading

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


Action = Callable[[int], None]


def maintain(rig: IndexRig, stage: str, action: Action, times: int, *, full: bool = False) -> int:
    """Maintains; whenever `stage` begins, at most so many times, somebody else does something. Returns how often."""
    done = 0
    before = ""

    def progress(now: str, _: int, __: int) -> None:
        nonlocal before, done
        if now == stage and before != stage and done < times:
            done += 1
            before = now  # the action may not be interrupted by itself
            action(done)
        before = now

    rig.index.maintain(rig.database.write, full=full, progress=progress)
    return done


def disturb(rig: IndexRig, seed: int, rows: int) -> None:
    """Replaces, adds and deletes rows, some of them just added; leaves the twin right."""
    choose = random.Random(seed)
    ids = choose.sample(range(600), rows)
    rig.add(ids, mixture(rows, rig.dim, seed=seed))
    rig.delete(choose.sample(ids, rows // 3))
    rig.delete(choose.sample(range(600), 30))


@pytest.mark.parametrize("rows", [4, 50])
@pytest.mark.parametrize("stage", ["flush", "train", "sort", "write", "measure"])
def test_while_training(rig: IndexRig, stage: str, rows: int) -> None:
    """Four times, so that three rounds of catching up are not enough and the last happens inside the transaction."""
    rig.add(range(200), mixture(200, rig.dim))
    rig.add(range(200, 209), mixture(9, rig.dim, seed=1))
    done = maintain(rig, stage, lambda turn: disturb(rig, turn, rows), times=4)
    assert done == (4 if stage in ("sort", "write") and rows == 50 else 1)
    assert rig.trace.counters["index.trainings"] == 1
    rig.check()
    rig.maintain(full=True)
    rig.check()
    assert len(rig.files()) == 1


def test_a_segment_that_comes_and_goes_while_training(rig: IndexRig) -> None:
    rig.add(range(200), mixture(200, rig.dim))

    def come_and_go(turn: int) -> None:
        rig.add(range(1000, 1100), mixture(100, rig.dim, seed=turn))
        rig.delete(range(1000, 1100))

    assert maintain(rig, "sort", come_and_go, times=1) == 1
    rig.check()
    with rig.database.read() as db:
        assert rig.index.status(db).deleted == 0, "it was not taken over"


@pytest.mark.parametrize("codec", ["flat", "sq8"])
def test_while_merging(tmp_path: Path, codec: str) -> None:
    rig = IndexRig(tmp_path, options=replace(SMALL, codec=codec))
    rig.add(range(200), mixture(200, rig.dim))
    rig.maintain()
    rig.add(range(300, 400), mixture(100, rig.dim, seed=1))
    rig.delete(range(40))
    for turn in range(5):
        disturb(rig, turn, 50)
        assert maintain(rig, "merge", lambda turn: disturb(rig, 100 + turn, 50), times=1, full=True) == 1
        rig.check()
    rig.close()


def test_while_splitting(tmp_path: Path) -> None:
    rig = IndexRig(tmp_path, options=replace(SMALL, list_rows=8))
    rig.add(range(200), mixture(200, rig.dim))
    rig.maintain()
    rig.add(range(200, 500), mixture(300, rig.dim, seed=1, centres=2, spread=0.1))

    def more_of_the_same(turn: int) -> None:
        rig.add(range(600, 640), mixture(40, rig.dim, seed=turn, centres=2, spread=0.1))
        rig.delete(range(200, 500, 5))
        rig.add(range(201, 500, 50), mixture(6, rig.dim, seed=9))

    assert maintain(rig, "split", more_of_the_same, times=1) == 1
    assert rig.trace.counters["index.splits"] > 0
    rig.check()
    rig.maintain(full=True)
    rig.check()
    rig.close()


def saved(rig: IndexRig, folder: Path) -> Callable[[], None]:
    """Saves the state; what is returned puts it in place again, in one transaction and beside its files."""
    kept, twin = Connection(str(folder / "saved.db")), dict(rig.twin.rows)
    with kept.backup("main", rig.database.connect(), "main") as copying:
        copying.step(-1)
    shutil.copytree(rig.folder / "segments", folder / "saved")

    def put_back() -> None:
        shutil.copytree(folder / "saved", rig.folder / "segments", dirs_exist_ok=True)
        with rig.database.connect().backup("main", kept, "main") as copying:
            copying.step(-1)
        rig.twin.rows = dict(twin)

    return put_back


@pytest.mark.parametrize("what", ["an earlier state", "nothing"])
@pytest.mark.parametrize("stage", ["flush", "train", "sort", "measure", "split", "merge"])
def test_another_state_that_takes_the_place(tmp_path: Path, stage: str, what: str) -> None:
    """No row that was copied from the old state comes into the new one, and none of the new one is lost."""
    rig = IndexRig(tmp_path, options=replace(SMALL, list_rows=8) if stage == "split" else SMALL)
    rig.add(range(200), mixture(200, rig.dim))
    if stage not in ("train", "sort", "measure"):
        rig.maintain()
    rig.add(range(200, 230), mixture(30, rig.dim, seed=2))
    put_back = saved(rig, tmp_path)
    rig.delete(range(0, 230, 3))
    few = 6 if stage == "flush" else 300  # few rows wait in the database
    rig.add(range(300, 300 + few), mixture(few, rig.dim, seed=1, centres=2, spread=0.1))
    rig.delete(range(300, 300 + few, 7))

    def clear() -> None:
        with rig.database.write() as db:
            rig.index.clear(db)
        rig.twin.rows.clear()

    assert maintain(rig, stage, lambda _: put_back() if what != "nothing" else clear(), times=1, full=True) == 1
    rig.check()
    rig.maintain(full=True)
    rig.check()
    rig.close()
