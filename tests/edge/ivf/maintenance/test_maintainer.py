"""Each step of the maintenance: when it happens, what it leaves, and that corrupt files stop it without harm."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from naive.index import SMALL, IndexRig, held, mixture

from edge.errors import CorruptBlock, InputError
from edge.ivf.base import IndexOptions, Snapshot
from edge.ivf.maintenance.training import choose_codec, choose_nlist, due
from edge.ivf.plan import choose_nprobe
from edge.ivf.storage.manifest import IndexManifest, State


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[IndexRig]:
    rig = IndexRig(tmp_path)
    yield rig
    rig.close()


def sizes(snapshot: Snapshot) -> list[int]:
    return sorted(sum(part.rows - len(part.deleted) for part in parts) for parts in snapshot.lists)


def test_when_to_train() -> None:
    options = IndexOptions()

    def state(**values: float) -> State:
        known = dict.fromkeys(State.__dataclass_fields__, 0) | {"training": 1, "trained_misfit": 0.2, **values}
        return State(**known)  # type: ignore[arg-type]

    assert not due(state(training=0, rows=20_000), options), "a small collection stays flat"
    assert due(state(training=0, rows=20_001), options)
    assert not due(state(rows=100_000, trained_rows=50_000), options)
    assert due(state(rows=200_000, trained_rows=50_000), options), "outgrown"
    assert due(state(rows=50_000, trained_rows=200_000), options), "shrunk"
    assert due(state(rows=10_000, trained_rows=30_000), options), "small enough to be flat"
    drifted = {"rows": 100_000, "trained_rows": 90_000, "newer_rows": 10_000}
    assert due(state(**drifted, newer_misfit=10_000 * 0.24), options)
    assert not due(state(**drifted, newer_misfit=10_000 * 0.22), options)
    assert not due(state(**(drifted | {"newer_rows": 9_000}), newer_misfit=9_000 * 0.5), options), "too few to tell"


def test_what_to_train() -> None:
    options = IndexOptions()
    assert [choose_nlist(rows, options) for rows in (20_000, 25_600, 1_000_000, 16_000_000)] == [1, 100, 3906, 16_000]
    assert choose_codec(options, 20_000, 384, 1 << 40) == "flat"
    assert choose_codec(options, 1_000_000, 384, 256 << 20) == "sq8"
    assert choose_codec(options, 4_000_000, 384, 256 << 20) == "pq"
    assert choose_codec(options, 4_000_000, 383, 256 << 20) == "sq8", "pq cannot cut 383 components into fours"
    assert choose_codec(replace(options, codec="flat"), 1_000_000, 384, 1 << 40) == "flat"


def test_a_drifting_collection_is_trained_again(rig: IndexRig) -> None:
    rig.add(range(300), mixture(300, rig.dim, centres=3, spread=0.1))
    rig.maintain()
    assert rig.trace.counters["index.trainings"] == 1
    rig.add(range(300, 360), mixture(60, rig.dim, seed=1, centres=3, spread=0.1))
    rig.maintain()
    assert rig.trace.counters["index.trainings"] == 1, "more of the same"
    strange = -mixture(60, rig.dim, seed=2, centres=3, spread=0.1)
    rig.add(range(400, 460), strange)
    rig.maintain()
    assert rig.trace.counters["index.trainings"] == 2
    rig.check()


def test_a_list_that_grows_is_split(tmp_path: Path) -> None:
    rig = IndexRig(tmp_path, options=replace(SMALL, list_rows=8))
    rig.add(range(200), mixture(200, rig.dim))
    rig.maintain()
    lists = rig.snapshot().nlist
    rig.add(range(1000, 1300), mixture(300, rig.dim, seed=1, centres=2, spread=0.1))
    before = sizes(rig.snapshot())[-1]
    generation = rig.snapshot().generation
    rig.maintain()
    rig.check()
    assert rig.trace.counters["index.splits"] > 0
    assert rig.trace.counters["index.trainings"] == 1
    after = rig.snapshot()
    assert after.nlist > lists
    assert after.generation > generation
    assert sizes(after)[-1] < before
    assert len(after.lists) == after.nlist
    np.testing.assert_allclose(np.linalg.norm(after.centroids, axis=1), 1, rtol=1e-5)
    rig.maintain(full=True)
    rig.check()
    rig.close()


def test_a_list_of_equals_cannot_be_split(tmp_path: Path) -> None:
    rig = IndexRig(tmp_path, options=replace(SMALL, list_rows=8))
    rig.add(range(200), mixture(200, rig.dim))
    rig.maintain()
    rig.add(range(1000, 1300), np.repeat(mixture(1, rig.dim, seed=1), 300, axis=0))
    rig.maintain()
    assert rig.trace.counters["index.splits"] == 0
    rig.check()
    rig.close()


def test_segments_stay_few(tmp_path: Path) -> None:
    rig = IndexRig(tmp_path, options=replace(SMALL, flat_limit=100))
    written = 0
    for start in range(0, 1500, 15):
        rig.add(range(start, start + 15), mixture(15, rig.dim, seed=start))
        rig.maintain()
        written = int(rig.trace.counters["index.merged"])
        with rig.database.read() as db:
            status = rig.index.status(db)
        assert status.segments <= 6
        assert status.pending < 10 + 15
    assert written < 1500 * 12, "a row is copied a few times, not at every addition"
    rig.check()


def test_what_is_deleted_is_reclaimed(rig: IndexRig) -> None:
    rig.add(range(500), mixture(500, rig.dim))
    rig.maintain()
    with rig.database.read() as db:
        whole = rig.index.status(db).nbytes
    rig.delete(range(0, 40))
    rig.maintain()
    with rig.database.read() as db:
        assert rig.index.status(db).deleted == 40, "not worth writing everything again"
    rig.delete(range(40, 300))
    rig.maintain()
    with rig.database.read() as db:
        status = rig.index.status(db)
    assert status.deleted == 0
    assert status.nbytes < 0.6 * whole
    rig.check()


def test_status_and_nprobe(rig: IndexRig) -> None:
    rig.add(range(400), mixture(400, rig.dim))
    rig.maintain()
    rig.add([900], mixture(1, rig.dim))
    rig.delete([3])
    with rig.database.read() as db:
        status = rig.index.status(db)
        assert (status.rows, status.pending, status.deleted, status.segments) == (400, 1, 1, 1)
        assert status.nbytes == sum(path.stat().st_size for path in (rig.folder / "segments").glob("*.blk"))
        assert status.lists == 25
        assert status.codec == "sq8"
        snapshot = rig.index.snapshot(db)
        curve = snapshot.recall
        assert curve == status.recall
        assert [n for n, _ in curve] == sorted({n for n, _ in curve})
        assert [r for _, r in curve] == sorted(r for _, r in curve)
        middle = curve[len(curve) // 2]
        assert choose_nprobe(snapshot, middle[1]) <= middle[0]
        assert choose_nprobe(snapshot, 1.0) == curve[-1][0]
        assert choose_nprobe(replace(snapshot, recall=()), 0.5) == 25
        assert rig.index.search(db, mixture(1, rig.dim), 3, recall=0.2).nprobe == choose_nprobe(snapshot, 0.2)
        assert rig.index.search(db, mixture(1, rig.dim), 3).nprobe == choose_nprobe(snapshot, 0.95)
        for wrong in (0, 1.1):
            with pytest.raises(InputError, match="recall"):
                rig.index.search(db, mixture(1, rig.dim), 3, recall=wrong)


@pytest.mark.parametrize(("first", "last"), [(300, 500), (500, 300)], ids=["come", "gone"])
def test_recall_is_measured_again_when_much_has_come_or_gone(rig: IndexRig, first: int, last: int) -> None:
    rows = mixture(500, rig.dim, centres=3, spread=0.1)
    rig.add(range(first), rows[:first])
    rig.maintain()
    if last > first:
        rig.add(range(first, last), rows[first:])
    else:
        rig.delete(range(first - last))
    rig.maintain()
    with rig.database.read() as db:
        assert IndexManifest(db).state().measured_rows == last
    assert rig.trace.counters["index.trainings"] == 1


@pytest.mark.parametrize("codec", ["flat", "sq8"])
def test_a_corrupt_segment_stops_the_maintenance_and_loses_nothing_else(tmp_path: Path, codec: str) -> None:
    rig = IndexRig(tmp_path, options=replace(SMALL, codec=codec))
    rig.add(range(300), mixture(300, rig.dim))
    rig.maintain()
    name = rig.files()[0]
    rig.reopen()
    part = rig.snapshot().lists[0][0]
    at = part.source.extents[part.codes].offset + 8 * part.rows + 1
    del part
    path = rig.folder / "segments" / name
    rig.reopen()
    damaged = bytearray(path.read_bytes())
    damaged[at] ^= 1
    path.write_bytes(damaged)
    rig.add(range(1000, 1005), mixture(5, rig.dim, seed=2))
    rig.delete(range(290, 300))
    for _ in range(2):
        with pytest.raises(CorruptBlock, match=rf"{name}.*codes\.0"):
            rig.maintain(full=True)
    assert name in rig.files(), "it may be the only copy of what can still be read"
    damaged[at] ^= 1
    path.write_bytes(damaged)
    rig.reopen()
    rig.check()
    rig.maintain(full=True)
    rig.check()
    rig.close()


def test_files_are_kept_for_readers_elsewhere(tmp_path: Path) -> None:
    rig = IndexRig(tmp_path, options=replace(SMALL, grace_seconds=3600))
    rig.add(range(200), mixture(200, rig.dim))
    other = IndexRig(tmp_path)
    before = other.snapshot()
    rig.maintain()
    rig.delete(range(10))
    rig.maintain(full=True)
    assert len(rig.files()) == 3, "the flat one, the trained one, the reclaimed one"
    assert held(before) == list(range(200))
    other.twin = rig.twin
    del before
    other.maintain()  # keeps nothing for others
    assert len(rig.files()) == 1
    other.check()
    other.close()
    rig.close()


def test_a_clock_that_was_set_back_keeps_no_file_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = IndexRig(tmp_path, options=replace(SMALL, grace_seconds=60))
    rig.add(range(200), mixture(200, rig.dim))
    with monkeypatch.context() as patch:
        now = time.time()
        patch.setattr("time.time", lambda: now + 10**6)
        rig.maintain()
    assert len(rig.files()) == 2
    rig.maintain()
    assert len(rig.files()) == 1
    rig.close()


def test_recall_is_measured_again_when_lists_were_split(tmp_path: Path) -> None:
    rig = IndexRig(tmp_path, options=replace(SMALL, list_rows=8))
    rig.add(range(128), mixture(128, rig.dim))
    rig.maintain()
    rig.add(range(1000, 1050), mixture(50, rig.dim, seed=1, centres=1, spread=0.05))
    rig.maintain()
    assert rig.trace.counters["index.splits"] > 0
    assert rig.trace.counters["index.trainings"] == 1
    with rig.database.read() as db:
        assert IndexManifest(db).state().measured_lists == IndexManifest(db).list_count()
    rig.close()


def test_what_was_trained_on_has_drifted_no_more(rig: IndexRig) -> None:
    rig.add(range(300), mixture(300, rig.dim, centres=3, spread=0.1))
    rig.maintain()
    rig.add(range(400, 460), -mixture(60, rig.dim, seed=2, centres=3, spread=0.1))
    rig.maintain()
    assert rig.trace.counters["index.trainings"] == 2
    rig.maintain()
    assert rig.trace.counters["index.trainings"] == 2
