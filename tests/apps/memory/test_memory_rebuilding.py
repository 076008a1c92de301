"""Rebuilds, repairs and restores, also beside writers: what another process changes meanwhile stays as it is."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from naive.waiting import PATIENCE_S
from naive.words import WordEmbedder

from edge.apps.memory.care import MemoryCare, place_of
from edge.apps.memory.memory import Memory
from edge.apps.store import backup as backups
from edge.apps.store.backup import back_up, restore
from edge.apps.store.care import check, repair
from edge.apps.store.connections import LOCK, WriterLock
from edge.apps.store.database import Database
from edge.apps.store.rebuilding import BATCH
from edge.budget import MemoryBudget
from edge.errors import EdgeError, ModelError, StorageError
from edge.ivf.base import Connection
from tests.apps.memory.conftest import Make


def found(memory: Memory, query: str) -> list[tuple[str, float]]:
    results = memory.search(query, 5, user_id="ada", rerank=False)["results"]
    return [(result["memory"], result["score"]) for result in results]


def vectors(memory: Memory) -> np.ndarray:
    """Of everything, in the order of ids."""
    with memory.store.read() as db:
        ids = [row[0] for row in db.execute("SELECT id FROM memories ORDER BY id")]
        assert memory.store.index is not None
        return memory.store.index.vectors(db, np.array(ids, np.int64))


@pytest.fixture
def filled(make: Make) -> Memory:
    """More texts than are embedded at a time, a conversation, and a deleted turn; vectors in segments."""
    memory = make()
    rivers = [f"The river number {n} floods in spring, says page {n + 1000}." for n in range(BATCH + 5)]
    memory.add(rivers, user_id="ada", supersede=False)
    turns = ["Do you like the lake?", "Very much.", "Then come tomorrow."]
    told = memory.add([{"role": "user", "content": turn} for turn in turns], user_id="ada", run_id="r")["results"]
    memory.delete(told[0]["id"])
    memory.close()  # work in the background has ended, and nothing keeps this from being done
    memory = make()
    memory.maintain(full=True)
    return memory


TOTAL = BATCH + 5 + 2


def damage(memory: Memory, make: Make) -> Memory:
    """The same memory, opened again, without the files of its vectors."""
    memory.close()
    shutil.rmtree(memory.path / "segments")
    return make()


def test_lost_segments_are_named_and_made_again(filled: Memory, make: Make) -> None:
    before, stored = found(filled, "which river floods"), vectors(filled)
    memory = damage(filled, make)
    for refused in (
        lambda: found(memory, "which river floods"),
        lambda: memory.add("The river number 3 floods in summer.", user_id="ada"),
        lambda: memory.delete_all(user_id="ada"),
    ):
        with pytest.raises(StorageError, match="`edge memory rebuild`"):
            refused()
    steps: list[tuple[int, int]] = []
    assert memory.rebuild(progress=lambda done, total: steps.append((done, total))) == TOTAL
    assert steps == [(BATCH, TOTAL), (TOTAL, TOTAL)]
    now = vectors(memory)
    # The second turn had a share of the first one, which is gone.
    assert np.flatnonzero(np.abs(now - stored).max(axis=1) > 1e-5).tolist() == [BATCH + 5]
    assert [text for text, _ in found(memory, "which river floods")] == [text for text, _ in before]


def test_what_is_changed_meanwhile_keeps_its_own_vector(filled: Memory, make: Make) -> None:
    filled.store.upkeep.close()  # which would finish the rebuild itself
    first = filled.get_all(user_id="ada", top_k=TOTAL)["results"][-1]
    changes = [
        lambda: filled.update(first["id"], "A bridge of stone."),
        lambda: filled.add("A tower of glass.", user_id="ada"),
    ]

    class Meddling(WordEmbedder):
        def embed(self, texts: Any, *, query: bool = False) -> Any:
            if changes and len(texts) > 10:
                changes.pop(0)()
            return super().embed(texts, query=query)

    memory = make(embedder=Meddling())
    assert memory.rebuild() == TOTAL + 1
    assert not changes
    for text in ("A bridge of stone.", "A tower of glass."):
        result = memory.search(text, 1, user_id="ada", rerank=False)["results"][0]
        assert (result["memory"], round(result["score"], 5)) == (text, 1)


def test_without_the_embedder_nothing_is_forgotten(filled: Memory, make: Make) -> None:
    with pytest.raises(ModelError):
        make(embedder=WordEmbedder(fingerprint="another")).rebuild()
    assert len(vectors(filled)) == TOTAL


def test_an_empty_memory_has_nothing_to_make(memory: Memory) -> None:
    assert memory.rebuild() == 0


def test_reset_reads_no_damaged_vectors(filled: Memory, make: Make) -> None:
    memory = damage(filled, make)
    memory.reset()
    memory.add("A river.", user_id="ada")
    assert [text for text, _ in found(memory, "river")] == ["A river."]


Change = Callable[[Memory, str], object]

CHANGES: dict[str, Change] = {
    "add": lambda memory, _: memory.add("The mill stands by the pond", user_id="ann"),
    "delete": lambda memory, lacking: memory.delete(lacking),
    "update": lambda memory, lacking: memory.update(lacking, "The cat is grey"),
    "maintain": lambda memory, _: memory.maintain(full=True),
    "rebuild": lambda memory, _: memory.rebuild(),
}

DAMAGE = ("vectors", "segment")


class _Between:
    """Calls `work` before the transaction number `moment` of the databases that are opened meanwhile."""

    def __init__(self, moment: int, work: Callable[[], object]) -> None:
        self._left = moment
        self._work = work
        self._working = False

    def install(self, patch: pytest.MonkeyPatch) -> None:
        for name in ("read", "write"):
            patch.setattr(Database, name, self._wrapped(getattr(Database, name)))

    @property
    def happened(self) -> bool:
        return self._left < 0

    def _wrapped(self, real: Callable[[Database], object]) -> object:
        @contextmanager
        def begun(database: Database) -> Iterator[Connection]:
            if not self._working and database._pool.current() is None:
                self._left -= 1
                if self._left == -1:
                    self._working = True
                    self._work()
                    self._working = False
            with real(database) as db:  # type: ignore[attr-defined]
                yield db

        return begun


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_at_any_moment_of_a_repair_stays(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str, damage: str
) -> None:
    memory = make("made")
    memory.add([f"Fact {n}: the river floods in year {n}" for n in range(6)], user_id="ann")
    lacking = memory.get_all(user_id="ann")["results"][0]["id"]
    index = memory.store.index
    assert index is not None
    if damage == "segment":
        while memory.maintain(full=True).busy:  # the first write of a process maintains it, too
            time.sleep(0.01)
        (segment,) = (tmp_path / "made" / "segments").glob("*.blk")
        data = bytearray(segment.read_bytes())
        data[len(data) // 2] ^= 255
        segment.write_bytes(data)
    with memory.store.write() as db:
        number = db.execute("SELECT id FROM memories WHERE uuid = ?", (lacking,)).fetchone()[0]
        if damage == "vectors":
            index.delete(db, np.array([number]))
        index.add(db, np.array([1_000]), np.ones((1, WordEmbedder().dim), np.float32))
    memory.close()
    moment = 0
    while True:
        name = f"memory-{moment}"
        shutil.copytree(tmp_path / "made", tmp_path / name)

        def between(name: str = name) -> None:
            other = make(name)
            with suppress(EdgeError):  # a segment is damaged still
                CHANGES[change](other, lacking)
            other.close()

        try:
            with monkeypatch.context() as patch:
                clock = _Between(moment, between)
                clock.install(patch)
                report = repair(MemoryCare(tmp_path / name, lambda name=name: make(name)), budget=MemoryBudget(10**10))
        except Exception as error:
            raise AssertionError(f"before transaction {moment}: {error}") from error
        where = f"{change} before transaction {moment}"
        assert report.after.findings == [], where
        assert check(MemoryCare(tmp_path / name, lambda name=name: make(name)), read_data=True).sound, where
        with make(name) as memory:
            assert memory.health(thorough=True), where
            index = memory.store.index
            assert index is not None
            texts = {}
            with memory.store.read() as db:
                texts = dict(db.execute("SELECT id, text FROM memories").fetchall())
                vectors = index.vectors(db, list(texts))
            assert np.allclose(vectors, WordEmbedder().embed(list(texts.values()))), where
        if not clock.happened:
            break
        moment += 1
    assert moment > 5, "the change came at several moments"


def texts(memory: Memory) -> set[str]:
    return {row["memory"] for row in memory.get_all(user_id="ann", top_k=1000)["results"]}


@pytest.fixture
def saved(make: Make, tmp_path: Path) -> dict[str, set[str]]:
    """Two backups of other memories, by their folders' names, each with segments, and their content."""
    found = {}
    for name in ("first", "second"):
        with make(name) as memory:
            for n in range(30):
                memory.add(f"{name} {n}: the river floods in year {n}.", user_id="ann")
            memory.maintain(full=True)
            back_up(place_of(tmp_path / name), tmp_path / f"{name} saved")
            found[f"{name} saved"] = texts(memory)
    return found


def together(*works: Callable[[], object]) -> list[BaseException]:
    """Runs them at once; returns the errors they raised."""
    errors: list[BaseException] = []

    def run(work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:  # told to the test
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


def test_restores_at_once_leave_one_of_the_backups(make: Make, tmp_path: Path, saved: dict[str, set[str]]) -> None:
    for round_ in range(3):
        target = tmp_path / f"target{round_}"
        works = [partial(restore, place_of(target), tmp_path / name, force=True) for name in [*saved, *saved]]
        assert together(*works) == []
        with make(target.name) as memory:
            assert texts(memory) in saved.values()
        assert check(MemoryCare(target, partial(make, target.name)), read_data=True).findings == []


def test_a_restore_beside_a_rebuild_additions_and_maintenance(
    make: Make, tmp_path: Path, saved: dict[str, set[str]]
) -> None:
    live = make("live")
    for n in range(30):
        live.add(f"live {n}: the river freezes in year {n}.", user_id="ann")
    live.maintain(full=True)
    stop = threading.Event()

    def keep(work: Callable[[], object]) -> Callable[[], object]:
        def run() -> None:
            while not stop.is_set():
                work()

        return run

    def restores() -> None:
        try:
            for name in [*saved, *saved]:
                restore(place_of(tmp_path / "live"), tmp_path / name, force=True)
        finally:
            stop.set()

    errors = together(
        restores,
        keep(lambda: live.rebuild()),
        keep(lambda: live.maintain(full=True)),
        keep(lambda: live.add("added meanwhile", user_id="ann", infer=False)),
        keep(lambda: live.search("river", 5, user_id="ann", rerank=False)),
    )
    assert errors == []
    live.rebuild()
    assert texts(live) - {"added meanwhile"} == saved["second saved"]
    assert check(MemoryCare(tmp_path / "live", lambda: make("live")), read_data=True).findings == []


def test_segments_that_maintenance_removes_meanwhile_come_back(
    make: Make, tmp_path: Path, saved: dict[str, set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the database names them, nobody can know to which memory they belong."""
    live = make("live")
    live.add("live", user_id="ann")
    overwrite = backups.overwrite

    def late(*args: object, **options: object) -> object:
        deadline = time.monotonic() + PATIENCE_S
        while {file.name for file in (tmp_path / "live" / "segments").iterdir()} & named:
            assert time.monotonic() < deadline
            live.maintain(full=True)  # it does nothing while the memory's own upkeep runs
        return overwrite(*args, **options)  # type: ignore[arg-type]

    named = {file.name for file in (tmp_path / "first saved" / "segments").iterdir()}
    assert named
    monkeypatch.setattr(backups, "overwrite", late)
    restore(place_of(tmp_path / "live"), tmp_path / "first saved", force=True)
    assert texts(live) == saved["first saved"]
    assert check(MemoryCare(tmp_path / "live", lambda: make("live")), read_data=True).findings == []


def test_a_restore_waits_for_a_repair(
    make: Make, tmp_path: Path, saved: dict[str, set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    make("live").close()
    monkeypatch.setattr(vars(WriterLock.__call__)["__wrapped__"], "__defaults__", (0.1,))
    with WriterLock(tmp_path / "live" / LOCK)(), pytest.raises(StorageError, match="try again when it is done"):
        restore(place_of(tmp_path / "live"), tmp_path / "first saved", force=True)
