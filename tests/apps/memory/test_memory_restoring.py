"""A restore beside other restores, rebuilds, additions and maintenance: one whole state afterwards, and no error."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from naive.waiting import PATIENCE_S

from edge.apps.memory.care import MemoryCare, place_of
from edge.apps.memory.memory import Memory
from edge.apps.store import backup as backups
from edge.apps.store.backup import back_up, restore
from edge.apps.store.care import check
from edge.apps.store.connections import LOCK, WriterLock
from edge.errors import StorageError
from tests.apps.memory.conftest import Make


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
    monkeypatch.setattr(WriterLock.__init__, "__kwdefaults__", {"seconds": 0.1})
    with WriterLock(tmp_path / "live" / LOCK)(), pytest.raises(StorageError, match="try again when it is done"):
        restore(place_of(tmp_path / "live"), tmp_path / "first saved", force=True)
