"""A backup is one moment of a collection, made while others write; a damaged one is refused."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from edge.apps.collection.collection import DATABASE, Collection
from edge.apps.collection.damage import CollectionCare, place_of
from edge.apps.collection.schema import migrations
from edge.apps.store.backup import Store, back_up, restore
from edge.apps.store.care import check
from edge.apps.store.database import Database
from edge.budget import MemoryBudget
from edge.config import Config
from edge.errors import InputError, StorageError

Make = Callable[..., Collection]


def found(collection: Collection) -> list[tuple[str, float]]:
    return [(hit.path, hit.score) for hit in collection.search("which river floods", 5, rerank=False)]


@pytest.fixture
def filled(make: Make) -> Collection:
    collection = make()
    collection.add([f"The river number {n} floods in spring." for n in range(60)], ids=[f"t{n}" for n in range(60)])
    collection.compact()
    collection.add("A bridge of stone.", ids=["bridge"])
    return collection


def test_what_was_backed_up_comes_back(filled: Collection, make: Make, tmp_path: Path, tiny_config: Config) -> None:
    right = found(filled)
    size = back_up(place_of(filled.path), tmp_path / "backup")
    assert size == sum(
        file.stat().st_size for file in (tmp_path / "backup").rglob("*") if file.is_file() and file.suffix != ".json"
    )
    assert restore(place_of(tmp_path / "new"), tmp_path / "backup", force=False) == size
    with make("new") as copy:
        assert found(copy) == right
        copy.add("Something else.", ids=["else"])
    for _ in range(2):  # over one that is there, in which more was committed, and that somebody has open
        reader = make("new", read_only=True)
        assert reader.status().indexed > 60
        with pytest.raises(InputError, match="--force puts the backup in its place"):
            restore(place_of(tmp_path / "new"), tmp_path / "backup", force=False)
        restore(place_of(tmp_path / "new"), tmp_path / "backup", force=True)
        assert found(reader) == right
        with make("new") as again:
            assert again.status().indexed == 61
            assert again.health()
            again.add("More.", ids=["more"])
    report = check(CollectionCare(tmp_path / "new", tiny_config, MemoryBudget(10**10)), read_data=True)
    assert report.findings == []


def test_a_backup_is_one_moment_while_others_write(filled: Collection, make: Make, tmp_path: Path) -> None:
    stop = threading.Event()

    def write() -> None:
        number = 0
        with make() as writer:
            while not stop.is_set():
                writer.add([f"first {number}", f"second {number}"], ids=[f"a{number}", f"b{number}"])
                if number % 5 == 0:
                    writer.compact()
                number += 1

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for n in range(4):
            back_up(place_of(filled.path), tmp_path / f"backup{n}")
    finally:
        stop.set()
        thread.join()
    for n in range(4):
        restore(place_of(tmp_path / f"copy{n}"), tmp_path / f"backup{n}", force=False)
        with make(f"copy{n}") as copy:
            status = copy.status()
            assert status.vectors is not None
            with copy.database.read() as db:
                waiting = db.execute("SELECT value FROM settings WHERE name = 'rebuilding'").fetchone()
                late = db.execute("SELECT count(*) FROM chunks WHERE id > ?", waiting or (10**9,)).fetchone()[0]
            assert status.vectors.rows == status.chunks - late
            kinds = {trouble.kind for trouble in status.health}
            assert kinds <= {"compacting", "rebuilding"}, "the moment may lie in a compaction"
            assert found(copy)


def test_what_is_no_whole_backup_is_refused(filled: Collection, make: Make, tmp_path: Path) -> None:
    back_up(place_of(filled.path), tmp_path / "backup")
    files = sorted(file for file in (tmp_path / "backup").rglob("*") if file.is_file())
    for file in files:
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
        with pytest.raises((StorageError, InputError)):
            restore(place_of(tmp_path / "new"), tmp_path / "backup", force=False)
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
    assert not (tmp_path / "new" / DATABASE).exists()
    with pytest.raises(InputError, match=r"`edge restore` puts it back"):
        restore(Store("memory", tmp_path / "m", "memory.db", "edge memory", []), tmp_path / "backup", force=False)
    with pytest.raises(InputError, match="is no backup"):
        restore(place_of(tmp_path / "new"), tmp_path, force=False)
    with pytest.raises(InputError, match="name a new folder"):
        back_up(place_of(filled.path), tmp_path / "backup")
    with pytest.raises(StorageError, match="there is no collection"):
        back_up(place_of(tmp_path / "none"), tmp_path / "backup2")


def test_links_lead_to_stores_and_backups(filled: Collection, make: Make, tmp_path: Path) -> None:
    right = found(filled)
    for name in ("empty", "missing"):
        (tmp_path / f"to {name}").symlink_to(tmp_path / name)
    (tmp_path / "empty").mkdir()
    for name in ("empty", "missing"):
        back_up(place_of(filled.path), tmp_path / f"to {name}")
        assert (tmp_path / f"to {name}").is_symlink()
        assert (tmp_path / name / DATABASE).is_file()
    (tmp_path / "home").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "home")
    restore(place_of(tmp_path / "link" / "new"), tmp_path / "to empty", force=False)
    with make("link/new") as copy, make("home/new") as same:
        assert found(copy) == right
        copy.add("Something else.", ids=["else"])
        assert same.status().indexed == 62
    (tmp_path / "home" / "file").symlink_to(tmp_path / "home" / "new" / DATABASE)
    with (
        Database(tmp_path / "home" / "file", migrations(), budget=MemoryBudget(10**10)) as database,
        database.read() as db,
    ):
        assert db.execute("SELECT count(*) FROM files").fetchone() == (62,)
