"""Each step of the maintenance: when it happens, what it leaves, and that corrupt files stop it without harm."""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from naive.index import SMALL, IndexRig, held, mixture

from edge.budget import MemoryBudget
from edge.devices.faiss_codec import FaissCodecs
from edge.errors import CorruptBlock, InputError, StorageError
from edge.ivf.base import CodecSpec, IndexOptions, Snapshot
from edge.ivf.maintenance import training
from edge.ivf.maintenance.retraining import Runs
from edge.ivf.maintenance.training import NEARNESS, choose_codec, choose_nlist, draw, due, measure, questions, sample
from edge.ivf.maintenance.work import VectorSource
from edge.ivf.plan import choose_nprobe
from edge.ivf.storage import segment_writer
from edge.ivf.storage.manifest import IndexManifest, State
from edge.ivf.storage.segment_writer import SegmentWriter
from edge.ivf.storage.segments import IndexSegment


def sizes(snapshot: Snapshot) -> list[int]:
    return sorted(sum(part.rows - len(part.deleted) for part in parts) for parts in snapshot.lists)


def test_the_leases_of_rows_that_are_flushed_or_added_are_those_of_their_arrays(
    rig: IndexRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A vector of 4 bytes a component, an id and a stamp for each row; a product and a comparison for each list."""
    asked: dict[str, list[int]] = {}
    reserve = MemoryBudget.reserve

    def noted(self: MemoryBudget, owner: str, nbytes: int, *more: Any, **named: Any) -> Any:
        asked.setdefault(owner, []).append(nbytes)
        return reserve(self, owner, nbytes, *more, **named)

    monkeypatch.setattr(MemoryBudget, "reserve", noted)

    def added(start: int, rows: int) -> int:
        """The bytes of the products with the lists of then."""
        asked.clear()
        nbytes = 5 * segment_writer._ROWS * rig.snapshot().nlist
        rig.add(range(start, start + rows), mixture(rows, rig.dim))
        return nbytes

    products = added(0, 9)
    rig.maintain(full=True)
    assert asked["index flush"] == [9 * (4 * rig.dim + 8 + 8) + products]
    products = added(100, 300)
    assert asked["index writer"][0] == products, "they are written as they came"
    rig.maintain()
    added(500, 7)
    products = added(600, 30)
    assert asked["index writer"][0] == 37 * 4 * rig.dim + products, "with those that waited"
    products = added(700, 6)
    rig.maintain(full=True)
    assert asked["index flush"] == [6 * (4 * rig.dim + 8 + 8) + products]
    assert rig.snapshot().nlist > 1


def test_when_and_what_to_train() -> None:
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
    for _ in range(2):  # what was trained on has drifted no more
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
    with rig.database.read() as db:
        assert IndexManifest(db).state().measured_lists == after.nlist, "recall was measured again"
    rig.add(range(2000, 2300), np.repeat(mixture(1, rig.dim, seed=1), 300, axis=0))
    splits = rig.trace.counters["index.splits"]
    rig.maintain()
    assert rig.trace.counters["index.splits"] == splits, "a list of equals cannot be split"
    rig.maintain(full=True)
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
        assert rig.index.search(db, mixture(1, rig.dim), 3).nprobe == choose_nprobe(snapshot, 0.95)
        for wrong in (0, 1.1):
            with pytest.raises(InputError, match="recall"):
                choose_nprobe(snapshot, wrong)


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


def test_files_are_kept_for_readers_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    (tmp_path / "later").mkdir()
    rig = IndexRig(tmp_path / "later", options=replace(SMALL, grace_seconds=60))
    rig.add(range(200), mixture(200, rig.dim))
    with monkeypatch.context() as patch:
        now = time.time()
        patch.setattr("time.time", lambda: now + 10**6)
        rig.maintain()
    assert len(rig.files()) == 2
    rig.maintain()
    assert len(rig.files()) == 1, "a clock that was set back keeps no file for ever"
    rig.close()


DIM = 4
SPEC = CodecSpec("flat", DIM, 4 * DIM)
RECORD = 4 + 8 + 4 * DIM


@settings(max_examples=40)
@given(
    lists=st.lists(st.integers(0, 11), min_size=1, max_size=120),
    room=st.integers(1, 200),
    seed=st.integers(0, 99),
)
def test_sorted_by_list_in_any_room(lists: list[int], room: int, seed: int) -> None:
    """Also a list that is larger than the room. The rows of a list come as they went in."""
    random = np.random.default_rng(seed)
    numbers = np.array(lists, np.int32)
    ids = random.permutation(len(lists)).astype(np.int64)
    vectors = random.standard_normal((len(lists), DIM)).astype(np.float32)
    ledger = MemoryBudget(1 << 36, baseline=0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with SegmentWriter(folder, SPEC, ledger) as writer, Runs(folder, DIM, 12, room * RECORD) as runs:
            for start in range(0, len(lists), 17):
                cut = slice(start, start + 17)
                runs.add(numbers[cut], ids[cut], vectors[cut])
            written = list(runs.drain(writer, FaissCodecs().open(SPEC)))
            assert written[-1] == len(lists)
            # A step takes half the room, or a list that is larger.
            most = max(room // 2, int(np.bincount(numbers).max()), 1)
            assert all(0 <= step <= most for step in np.diff([0, *written]))
            entry = writer.finish()
        assert [path.name for path in folder.iterdir()] == [entry.name]
        segment = IndexSegment(folder, entry, SPEC, ledger)
        got = {}
        order = []
        for block in segment.stream(np.empty(0, np.int64)):
            order.append(block.list)
            for number, vector in zip(block.ids.tolist(), block.vectors, strict=True):
                got[number] = (block.list, vector.tolist())
        assert order == sorted(order)
        assert list(got) == ids[np.argsort(numbers, kind="stable")].tolist()
        assert got == {
            number: (row, vector.tolist()) for number, row, vector in zip(ids.tolist(), lists, vectors, strict=True)
        }
        segment.close()


def test_scratch_files_go_when_it_fails(tmp_path: Path) -> None:
    writer: Any = None
    with Runs(tmp_path, DIM, 4, 4 * RECORD) as runs:
        runs.add(np.zeros(4, np.int32), np.arange(4), np.zeros((4, DIM), np.float32))
        (scratch,) = tmp_path.iterdir()
        os.truncate(scratch, RECORD - 1)
        with pytest.raises(StorageError, match="cut off"):
            list(runs.drain(writer, writer))
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="scratch"):
        Runs(tmp_path / "file" / "below", DIM, 4, 10)


def sources_of(rig: IndexRig) -> list[VectorSource]:
    with rig.database.read() as db:
        manifest = IndexManifest(db)
        segments = rig.index._snapshots.segments(manifest)
        return [VectorSource(segment, manifest.all_deleted_rows(name)) for name, segment in segments.items()]


def test_samples_are_of_rows_that_count_and_of_all_of_them_alike(tmp_path: Path) -> None:
    rig = IndexRig(tmp_path, options=replace(SMALL, flat_limit=1000))
    rig.add(range(60), mixture(60, rig.dim))
    rig.add(range(60, 90), mixture(30, rig.dim, seed=1))
    rig.delete([0, 1, 5, 59, 60, 61, 89, *range(20, 30)])
    sources = sources_of(rig)
    assert len(sources) == 2
    live = sorted(rig.twin.rows)
    seen: Counter[int] = Counter()
    for seed in range(400):
        ids = np.concatenate([part for part, _ in sample(sources, 20, seed)])
        assert len(set(ids.tolist())) == 20
        seen.update(ids.tolist())
    assert sorted(seen) == live
    expected = 400 * 20 / len(live)
    assert max(abs(count - expected) for count in seen.values()) < 6 * np.sqrt(expected)
    ids, vectors = (np.concatenate(part) for part in zip(*sample(sources, 10**6, 0), strict=True))
    assert sorted(ids.tolist()) == live
    np.testing.assert_array_equal(vectors, [rig.twin.rows[number] for number in ids.tolist()])
    assert list(draw(sources, 0, np.random.default_rng(0))) == []
    rig.close()


def test_stand_ins_are_as_far_from_rows_as_questions_are() -> None:
    rows = np.random.default_rng(1).standard_normal((50, 24)).astype(np.float32)
    made = questions(rows, 3)
    lengths = np.linalg.norm(rows, axis=1)
    assert np.linalg.norm(made, axis=1) == pytest.approx(lengths, rel=1e-4)
    assert np.einsum("ij,ij->i", made, rows) / lengths**2 == pytest.approx(np.full(50, NEARNESS), abs=1e-4)
    assert np.isfinite(questions(rows[:1], 3)).all()
    assert np.isfinite(questions(np.zeros((2, 24), np.float32), 3)).all()


@pytest.mark.parametrize("codec", ["flat", "sq8", "pq"])
def test_the_curve_is_the_recall_of_searches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codec: str) -> None:
    monkeypatch.setattr(training, "BLOCK", 37)
    monkeypatch.setattr(training, "_GROUP", 7)
    monkeypatch.setattr(training, "QUERIES", 40)
    rig = IndexRig(tmp_path, options=replace(SMALL, codec=codec))
    rig.add(range(500), mixture(500, rig.dim, spread=0.8))
    rig.maintain()
    rig.add(range(600, 700), mixture(100, rig.dim, seed=1, spread=0.8))
    rig.delete(range(0, 500, 9))
    snapshot = rig.snapshot()
    sources = sources_of(rig)
    read: list[int] = []
    curve = measure(sources, snapshot.codec, snapshot.centroids, budget=rig.budget, seed=4, check=read.append)
    assert read[-1] == len(rig.twin.rows)
    queries = questions(np.concatenate([rows for _, rows in sample(sources, 40, 4)]), 4)
    everything = np.array(list(rig.twin.rows.values()))
    ids = np.array(list(rig.twin.rows))
    for nprobe, measured in curve:
        found = 0
        with rig.database.read() as db:
            for query in queries:
                true = set(ids[np.argsort(-(everything @ query))[:10]].tolist())
                found += len(true & set(rig.index.search(db, query[None], 10, nprobe=nprobe).ids[0].tolist()))
        # With PQ a neighbour may be kept where few lists are probed that all lists would crowd out.
        room = 0.03 if codec == "pq" else 0.002
        assert abs(found / 400 - measured) <= room, (nprobe, found / 400, measured)
    assert curve[0][1] < 0.7 < curve[-1][1]
    rig.close()
