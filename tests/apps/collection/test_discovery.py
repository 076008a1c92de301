"""Files that move with their folder, or lie on a disk that is not there: none is lost, and none is read again."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from edge.apps.collection import discovery
from edge.apps.collection.collection import Collection
from edge.apps.collection.damage import CollectionCare
from edge.apps.store.care import check
from edge.config import Config


def paths(collection: Collection) -> list[str]:
    return [file.path for file in collection.files()]


@pytest.mark.parametrize("root", [".", "docs", "parent"])
def test_each_file_is_found_once_under_its_new_path(
    folder: Any, tiny_config: Config, tmp_path: Path, root: str
) -> None:
    old = folder.path / "p" / "notes"
    for name in ("rivers.md", "bread.md", "deep/ice.md"):
        folder.write(f"p/notes/docs/{name}", f"The river rises in spring. {name}")
    with Collection(old / ".edge", config=tiny_config) as collection:
        collection.index([old / "docs" if root == "docs" else old])
        collection.describe(old / "docs", "what is known")
        collection.add(["An added text about the river"], ids=["p/notes"])
    new = folder.path / "q" / "moved"
    if root == "parent":
        (folder.path / "p").rename(folder.path / "q")
        new = folder.path / "q" / "notes"
    else:
        new.parent.mkdir()
        old.rename(new)
    with Collection(new / ".edge", config=tiny_config) as collection:
        report = collection.index([] if root == "docs" else [new])
        assert (report.indexed, report.removed, report.missing) == (0, 0, ())
        expected = [str(new / "docs" / name) for name in ("bread.md", "deep/ice.md", "rivers.md")]
        assert paths(collection) == [*expected, "p/notes"]
        assert collection.roots == [str(new / "docs" if root == "docs" else new)]
        assert collection.descriptions() == {str(new / "docs"): "what is known"}
        hits = collection.search("river", 20, rerank=False)
        assert sorted(hit.path for hit in hits) == [*expected, "p/notes"]
        assert hits[0].description in ("what is known", "")
    assert check(CollectionCare(new / ".edge", tiny_config, collection.budget), read_data=True).findings == []


@pytest.mark.parametrize("way", ["copied", "another disk", "elsewhere"])
def test_what_was_not_moved_keeps_its_paths(folder: Any, tiny_config: Config, tmp_path: Path, way: str) -> None:
    for number in range(5):
        folder.write(f"disk/{number}.txt", f"The river rises in year {number}.")
    home = folder.path / ("disk" if way == "copied" else "home")
    home.mkdir(exist_ok=True)
    place = home / (".edge" if way != "elsewhere" else "collection")
    with Collection(place, config=tiny_config) as collection:
        collection.index([folder.path / "disk"])
        before = paths(collection)
    if way == "copied":
        shutil.copytree(home, folder.path / "copy")
        place = folder.path / "copy" / ".edge"
    else:
        (folder.path / "disk").rename(folder.path / "away")
        folder.write("home/0.txt", "The river rises in year 0.")  # one of the same name and size
    with Collection(place, config=tiny_config) as collection:
        collection.index()
        assert paths(collection) == before


@pytest.fixture
def disk(folder: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder below the root with files, which counts as another device while it is not empty."""
    place: Path = folder.path / "media" / "disk"
    folder.write("here.txt", "Bread needs time.")
    for number in range(5):
        folder.write(f"media/disk/deep/{number}.txt", f"The river rises in year {number}.")
    real = discovery.device

    def device(path: str) -> int:
        inside = path == str(place) or path.startswith(f"{place}/")
        return 7 if inside and any(place.iterdir()) else real(path)

    monkeypatch.setattr(discovery, "device", device)
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
