"""A folder that is moved with its `.edge`: each file stays one file, under its new path, and is not read again."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from edge.apps.collection.collection import Collection
from edge.apps.collection.damage import CollectionCare
from edge.apps.store.checking import check
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
