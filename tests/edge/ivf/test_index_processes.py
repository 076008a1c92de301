"""Several processes, and several threads, at one index."""

from __future__ import annotations

import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
from naive import index_child
from naive.index import SMALL, IndexRig, held, mixture

from edge.ivf.maintenance.maintainer import Guard
from edge.ivf.storage.manifest import IndexManifest

CHILD = Path(index_child.__file__)


def start(*arguments: str) -> subprocess.Popen[str]:
    child = subprocess.Popen([sys.executable, str(CHILD), *arguments], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    return child


def test_readers_in_another_process_see_committed_states_only(tmp_path: Path) -> None:
    rig = IndexRig(tmp_path, index_child.DIM, options=index_child.OPTIONS)
    index_child.done(rig)
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


def test_one_maintainer_at_a_time(tmp_path: Path) -> None:
    rig = IndexRig(tmp_path)
    rig.add(range(30), mixture(30, rig.dim))
    with Guard(tmp_path / "segments" / "maintenance.lock") as guard:
        assert guard.held
        report = rig.index.maintain(rig.database.write, full=True)
        assert report.busy
        assert report.flushed == 0
    assert rig.index.maintain(rig.database.write, full=True).flushed == 0, "they had become a segment at once"
    rig.check()
    rig.close()


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
    for turn in range(120):
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
