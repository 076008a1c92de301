"""The files of a disk that is mounted below a root stay while the disk is not there."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from edge.apps.collection import mounts
from edge.apps.collection.collection import Collection


@pytest.fixture
def disk(folder: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder below the root with files, which counts as another device while it is not empty."""
    place: Path = folder.path / "media" / "disk"
    folder.write("here.txt", "Bread needs time.")
    for number in range(5):
        folder.write(f"media/disk/deep/{number}.txt", f"The river rises in year {number}.")
    real = mounts.device

    def device(path: str) -> int:
        inside = path == str(place) or path.startswith(f"{place}/")
        return 7 if inside and any(place.iterdir()) else real(path)

    monkeypatch.setattr(mounts, "device", device)
    return place


@pytest.mark.parametrize("way", ["empty", "gone", "below a file's change"])
def test_a_missing_mount_keeps_its_files(collection: Collection, folder: Any, disk: Path, way: str) -> None:
    assert collection.index([folder.path]).indexed == 6
    away = disk.rename(folder.path.parent / "away")
    if way != "gone":
        disk.mkdir()
    if way == "below a file's change":
        report = collection.update([disk / "deep" / "1.txt", disk, disk.parent])
    else:
        report = collection.index()
    assert report.removed == 0
    assert report.unreadable == (str(disk),)
    assert len(collection.files()) == 6
    assert len(collection.search("river", 9, rerank=False)) >= 5
    assert collection.index().removed == 0, "it is known in the next runs, too"
    if disk.exists():
        disk.rmdir()
    away.rename(disk)
    (disk / "deep" / "2.txt").unlink()
    report = collection.index()
    assert (report.removed, report.unreadable) == (1, ()), "with the disk, what is not on it is gone"


def test_a_folder_that_took_the_place_of_a_mount_counts(collection: Collection, folder: Any, disk: Path) -> None:
    collection.index([folder.path])
    shutil.rmtree(disk)
    folder.write("media/disk/new.txt", "The disk was copied into this folder.")
    assert collection.index().removed == 5


def test_the_files_of_a_missing_mount_can_be_removed(collection: Collection, folder: Any, disk: Path) -> None:
    collection.index([folder.path])
    shutil.rmtree(disk)
    assert collection.index().removed == 0
    assert collection.delete([disk]) == 5
    assert collection.index().removed == 0


@pytest.mark.parametrize("value", ["{", "[1]", '["relative"]', "3", "[" * 100_000])
def test_a_foreign_list_of_mounts_is_damage(collection: Collection, folder: Any, value: str) -> None:
    folder.write("here.txt", "Bread needs time.")
    collection.index([folder.path])
    with collection.database.write() as db:
        db.execute("INSERT OR REPLACE INTO settings VALUES ('mounts', ?)", (value,))
    with pytest.raises(Exception, match="the setting of mounts"):
        collection.index()
