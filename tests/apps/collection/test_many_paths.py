"""More paths at once than SQLite takes conditions in one statement."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from edge.apps.collection.collection import Collection

COUNT = 1_000


def test_a_thousand_paths_are_indexed_updated_and_removed(
    collection: Collection, folder: Any, consistent: Callable[[Collection], None]
) -> None:
    paths = [folder.write(f"{number}.txt", f"Text {number}.") for number in range(COUNT)]
    first = collection.index(paths)
    assert (first.indexed, first.failed, len(collection.roots)) == (COUNT, 0, COUNT)
    assert collection.index().unchanged == COUNT
    for path in paths[:3]:
        folder.write(path.name, "Something else.")
    changed = collection.update(paths)
    assert (changed.indexed, changed.unchanged) == (3, COUNT - 3)
    assert collection.delete(paths[1:]) == COUNT - 1
    assert (collection.roots, len(collection.files())) == ([str(paths[0])], 1)
    consistent(collection)


def test_a_thousand_paths_below_one_root(collection: Collection, folder: Any) -> None:
    folder.write("kept.txt", "Kept.")
    collection.index(folder.path)
    paths = [folder.write(f"{number % 7}/{number}.txt", "The same.") for number in range(COUNT)]
    assert collection.update(paths).indexed == COUNT
    for path in paths:
        path.unlink()
    assert collection.update(paths).removed == COUNT
    assert [file.path for file in collection.files()] == [str(folder.path / "kept.txt")]
