"""The index as a whole: opened in any state, beside a plain twin, from several processes, and with shared centroids."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import threading
from dataclasses import replace
from pathlib import Path

import faiss
import hypothesis.strategies as st
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from naive import index_child, index_memory
from naive.index import SMALL, IndexRig, held, mixture

from edge.budget import MemoryBudget
from edge.devices.cpu import CpuDevice
from edge.devices.faiss_codec import FaissCodecs
from edge.errors import ConfigError, InputError
from edge.ivf import index as module
from edge.ivf.base import Goal, Quantizer
from edge.ivf.index import VectorIndex
from edge.ivf.maintenance.maintainer import Guard
from edge.ivf.maintenance.training import outgrown, train
from edge.ivf.storage.manifest import IndexManifest, flat
from edge.plugins import load


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


SMALL_CHILD = Path(index_memory.__file__)
ROWS = 50_000


def test_the_process_stays_below_its_limit(tmp_path: Path) -> None:
    spare = 36 << 20
    command = [sys.executable, str(SMALL_CHILD), str(tmp_path), str(ROWS), str(spare), "sq8"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    figures = json.loads(said.splitlines()[-1])
    size = sum(path.stat().st_size for path in (tmp_path / "segments").glob("*.blk"))
    assert figures["rows"] == ROWS - ROWS // 10 + 300
    assert figures["lists"] > 500
    assert figures["found"] == 200
    assert figures["left"] == 0, "closing gives everything back"
    assert figures["peak"] <= figures["limit"], figures
    assert size > spare


IDS = st.integers(0, 150)
STEPS = st.one_of(
    st.tuples(st.just("add"), st.lists(IDS, max_size=40, unique=True)),
    st.tuples(st.just("delete"), st.lists(IDS, max_size=60, unique=True)),
    st.tuples(st.just("maintain"), st.booleans()),
    st.tuples(st.just("reopen"), st.none()),
    st.tuples(st.just("look"), st.none()),
)


@pytest.mark.parametrize("codec", ["flat", "sq8", "pq"])
@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(steps=st.lists(STEPS, min_size=3, max_size=14), seed=st.integers(0, 1000))
def test_any_sequence_of_operations(codec: str, steps: list[tuple[str, object]], seed: int) -> None:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        rig = IndexRig(Path(folder), options=replace(SMALL, codec=codec))
        for number, (step, what) in enumerate(steps):
            if step == "add":
                assert isinstance(what, list)
                rig.add(what, mixture(len(what), rig.dim, seed=seed + number))
            elif step == "delete":
                assert isinstance(what, list)
                rig.delete(what)
            elif step == "maintain":
                rig.maintain(full=bool(what))
            elif step == "reopen":
                rig.reopen()
            else:
                rig.check()
        rig.check()
        rig.maintain(full=True)
        rig.check()
        assert len(rig.files()) == (len(rig.twin.rows) > 0)
        rig.close()
        assert rig.budget.used == 0, rig.budget.holders()


def test_what_is_rolled_back_was_never_there(rig: IndexRig) -> None:
    rig.add(range(100), mixture(100, rig.dim))
    rig.maintain()
    for count in (3, 200):  # into the pending table; into a segment of its own
        with contextlib.suppress(ZeroDivisionError), rig.database.write() as db:
            rig.index.add(db, np.arange(50, 50 + count), mixture(count, rig.dim, seed=5))
            rig.index.delete(db, np.arange(10))
            assert rig.index.snapshot(db).rows == max(100, 50 + count) - 10
            _ = 1 / 0  # takes everything back
        for number in (7, 8):  # the same generation again, with another content
            rig.add([number], mixture(1, rig.dim, seed=number + count))
        rig.check()
    rig.maintain()
    rig.check()
    assert len(rig.files()) == len(rig.snapshot().lists[0]), "the file of the rolled-back segment is gone"


def test_a_snapshot_stays_what_it_was(rig: IndexRig) -> None:
    rig.add(range(200), mixture(200, rig.dim))
    rig.maintain()
    before = rig.snapshot()
    pending = rig.snapshot().pending_vectors.copy()
    rig.add(range(150, 300), mixture(150, rig.dim, seed=1))
    rig.delete(range(50))
    rig.maintain(full=True)
    rig.check()
    assert held(before) == list(range(200))
    assert before.rows == 200
    np.testing.assert_array_equal(before.pending_vectors, pending)
    files = len(rig.files())
    del before
    rig.maintain()
    assert len(rig.files()) < files, "files go when the last reader does"


CHILD = Path(index_child.__file__)


def start(*arguments: str) -> subprocess.Popen[str]:
    child = subprocess.Popen([sys.executable, str(CHILD), *arguments], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "ready\n"
    return child


def test_readers_in_another_process_see_committed_states_only(tmp_path: Path) -> None:
    rig = IndexRig(tmp_path, index_child.DIM, options=index_child.OPTIONS)
    with rig.database.write() as db:
        db.execute("CREATE TABLE done(count INTEGER)")
    reader = start("read", str(tmp_path))
    writer = start("write", str(tmp_path), "60")
    writer.communicate(timeout=120)
    assert writer.returncode == 0
    (tmp_path / "enough").touch()
    said, _ = reader.communicate(timeout=120)
    assert reader.returncode == 0
    looks, states = map(int, said.split())
    assert looks > 5
    assert states > 1
    rig.twin = index_child.replay(60)
    rig.check()
    rig.close()


def test_a_reader_reopens_only_what_changed(tmp_path: Path) -> None:
    rig = IndexRig(tmp_path, options=replace(SMALL, pending_limit=50))
    rig.add(range(200), mixture(200, rig.dim))
    rig.maintain(full=True)
    other = rig.open()

    def look() -> object:
        with rig.database.read() as db:
            return other.snapshot(db)

    first = look()
    assert look() is first
    rig.add([500], mixture(1, rig.dim))
    second = look()
    assert second is not first
    assert second.lists == first.lists  # type: ignore[attr-defined]
    assert second.centroids is first.centroids  # type: ignore[attr-defined]
    rig.delete([3])
    third = look()
    changed = [a is not b for a, b in zip(second.lists, third.lists, strict=True)]  # type: ignore[attr-defined]
    assert sum(changed) == 1
    assert held(third) == sorted(rig.twin.rows)  # type: ignore[arg-type]
    other.close()
    rig.close()


def test_one_maintainer_at_a_time(rig: IndexRig, tmp_path: Path) -> None:
    rig.add(range(30), mixture(30, rig.dim))
    with Guard(tmp_path / "segments" / "maintenance.lock") as guard:
        assert guard.held
        report = rig.index.maintain(rig.database.write, full=True)
        assert report.busy
        assert report.flushed == 0
    assert rig.index.maintain(rig.database.write, full=True).flushed == 0, "they had become a segment at once"
    rig.check()


def test_writers_and_readers_beside_a_maintainer(tmp_path: Path) -> None:
    """Everything that comes or goes while lists are sorted, split and merged is there, or gone, afterwards."""
    # A reader may begin its transaction before a file is retired and open the file afterwards, hence the grace period.
    rig = IndexRig(tmp_path, options=replace(SMALL, grace_seconds=60.0))
    stop = threading.Event()
    failures: list[BaseException] = []

    def guarded(work: threading.Thread | object) -> None:
        try:
            work()  # type: ignore[operator]
        except BaseException as error:
            failures.append(error)
            stop.set()

    def maintain() -> None:
        turn = 0
        while not stop.is_set():
            turn += 1
            rig.index.maintain(rig.database.write, full=turn % 5 == 0)

    def read() -> None:
        while not stop.is_set():
            with rig.database.read() as db:
                snapshot = rig.index.snapshot(db)
                assert len(held(snapshot)) == snapshot.rows
                assert len(set(held(snapshot))) == snapshot.rows
                rig.index.search(db, mixture(2, rig.dim), 3)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in (maintain, read, read)]
    for thread in threads:
        thread.start()
    random = np.random.default_rng(0)
    for turn in range(40):
        if stop.is_set():
            break
        ids = random.choice(500 + 4 * turn, 25, replace=False).tolist()
        rig.add(ids, mixture(25, rig.dim, seed=turn, centres=3))
        rig.delete(random.choice(900, 12, replace=False).tolist())
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures, failures
    rig.check()
    rig.maintain(full=True)
    rig.check()
    rig.index.discard(rig.database.write)
    with rig.database.read() as db:
        assert rig.files() == sorted(IndexManifest(db).segment_names())
    rig.check()
    rig.close()


DIM = 16
Vectors = npt.NDArray[np.float32]


def unit(random: np.random.Generator, count: int) -> Vectors:
    rows = random.standard_normal((count, DIM)).astype(np.float32)
    rows[:: max(1, count // 9)] = rows[0]  # ties
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def trained(index: VectorIndex, vectors: Vectors, codec: str, version: int = 1) -> Quantizer:
    spec, centroids, _ = train(
        len(vectors), lambda count: [(np.arange(count), vectors[:count])], load("edge.codecs", "faiss")(threads=1),
        replace(SMALL, codec=codec), DIM, None, budget=index._budget, check=lambda _: None,
    )  # fmt: skip
    return Quantizer(version, spec, centroids)


@pytest.mark.parametrize("codec", ["flat", "sq8"])
@pytest.mark.parametrize("shards", [1, 2, 4, 8])
def test_shards_find_what_one_index_finds(tmp_path: Path, codec: str, shards: int) -> None:
    random = np.random.default_rng(shards)
    vectors, queries = unit(random, 700), unit(random, 12)
    ids = np.arange(len(vectors))
    of = random.integers(shards, size=len(vectors))
    groups = [np.flatnonzero(of == shard) for shard in range(shards)]
    made = []
    for number, own in enumerate([ids, *groups]):
        (tmp_path / f"{number}").mkdir()
        rig = IndexRig(tmp_path / f"{number}", DIM)
        database, index = rig.database, rig.index
        early = own[own < 500]
        with database.write() as db:
            index.add(db, early, vectors[early])
        quantizer = Quantizer.from_bytes(trained(index, vectors, codec).to_bytes())
        curve = index.install_quantizer(database.write, quantizer)
        assert (len(curve) > 0) == (len(early) > 0)
        shared = Quantizer(1, quantizer.spec, quantizer.centroids, ((3, 0.9), (6, 1.0)))
        assert index.install_quantizer(database.write, shared) == shared.recall
        with database.write() as db:
            gone = own[own % 11 == 5]
            index.delete(db, gone[gone < 500])
            late = own[(own >= 500) & (own % 11 != 5)]
            index.add(db, late[:-7], vectors[late[:-7]])
            index.add(db, late[-7:], vectors[late[-7:]])  # these stay pending
        report = index.maintain(database.write, full=number % 2 == 0)
        assert not report.trained
        assert not report.split
        made.append((database, index))
    found = []
    for database, index in made:
        with database.read() as db:
            answer = index.search(db, queries, 20)
            found.append([list(zip((-row).tolist(), own.tolist(), strict=True)) for row, own in
                          zip(answer.scores, answer.ids, strict=True)])  # fmt: skip
            assert answer.nprobe == 6 or index.snapshot(db).rows == 0
    for query in range(len(queries)):
        merged = sorted(pair for one in found[1:] for pair in one[query] if pair[1] >= 0)[:20]
        assert merged == found[0][query]
    for _, index in made:
        index.close()


def test_a_shared_quantizer_is_the_owners_alone(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    vectors = unit(random, 400)
    rig = IndexRig(tmp_path, DIM)
    database, index = rig.database, rig.index
    with database.write() as db:
        index.add(db, np.arange(50), vectors[:50])
    index.install_quantizer(database.write, trained(index, vectors, "flat"))
    with database.write() as db:
        index.add(db, np.arange(50, 400), vectors[50:])
    report = index.maintain(database.write, full=True)
    with database.read() as db:
        state = IndexManifest(db).state()
        assert state.quantizer == 1
        assert {row[0] for row in db.execute("SELECT quantizer FROM ivf_segments")} == {1}
        assert len(index.drawn(db, 100, 0)) == 100
    assert not report.trained
    assert outgrown(state, SMALL)
    with pytest.raises(InputError, match="shares its lists"):
        index.tune(database.write, Goal(recall=0.9))
    with pytest.raises(ConfigError, match="of width 8"):
        index.install_quantizer(database.write, Quantizer(2, flat(8), np.zeros((1, 8), np.float32)))
    with database.write() as db:
        index.clear(db)
        assert IndexManifest(db).state().quantizer == 0
    index.close()
