"""Vectors made anew from the stored texts, after any damage to the files that held them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from edge.apps.collection.collection import Collection
from edge.apps.store.rebuilding import BATCH
from edge.errors import StorageError

Make = Callable[..., Collection]


def found(collection: Collection, query: str) -> list[tuple[str, float]]:
    return [(hit.path, hit.score) for hit in collection.search(query, 5, rerank=False)]


@pytest.fixture
def filled(make: Make, tmp_path: Path) -> Collection:
    """A folder of files and a text, more passages than are embedded at a time, with their vectors in segments."""
    (tmp_path / "docs").mkdir()
    for n in range(BATCH + 40):
        (tmp_path / "docs" / f"{n}.txt").write_text(f"The river number {n} floods in spring, says page {n * 7}.")
    collection = make()
    collection.index(tmp_path / "docs")
    collection.add("A text without a file, about a bridge.", ids=["mine"])
    collection.compact()
    return collection


def test_lost_segments_are_named_and_made_again(filled: Collection, make: Make, tmp_path: Path) -> None:
    before = found(filled, "which river floods")
    filled.close()
    shutil.rmtree(tmp_path / "collection" / "segments")
    collection = make()
    with pytest.raises(StorageError, match="edge index --rebuild"):
        found(collection, "which river floods")
    steps: list[tuple[int, int]] = []
    total = BATCH + 41
    assert collection.rebuild(progress=lambda done, of: steps.append((done, of))) == total
    assert steps == [(BATCH, total), (total, total)]
    after = found(collection, "which river floods")
    assert [path for path, _ in after] == [path for path, _ in before]
    assert [score for _, score in after] == pytest.approx([score for _, score in before], abs=1e-5)
    assert found(collection, "a bridge without a file")[0][0] == "mine"
    assert collection.index().unchanged == BATCH + 40


@pytest.mark.parametrize("goes_on", ["rebuild", "index", "nothing new", "add"])
def test_an_interrupted_rebuild_is_finished_by_what_comes_next(
    filled: Collection, make: Make, tmp_path: Path, goes_on: str
) -> None:
    before = found(filled, "which river floods")

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        filled.rebuild(progress=stop)
    assert found(filled, "river number 290")[0][0].endswith("290.txt"), "words are found meanwhile"
    (trouble,) = filled.health()
    assert str(trouble) == (
        "passages that can be searched by their words, and not yet by meaning: 41; `edge index` goes on with it"
    )
    assert filled.status().health.state == "unfinished"
    filled.close()
    collection = make()
    new = tmp_path / "docs" / "again" / f"{BATCH + 39}.txt"
    if goes_on == "rebuild":
        assert collection.rebuild() == 41, "not from the beginning"
    elif goes_on == "index":
        new.parent.mkdir()
        new.write_text((tmp_path / "docs" / new.name).read_text())
        assert collection.index().reused == 1, "of a passage that had no vector"
        new.unlink()
        collection.index()
    elif goes_on == "nothing new":
        assert not collection.index().changed
    else:
        collection.add("Another text.", ids=["another"])
        collection.delete("another")
    status = collection.status()
    assert status.chunks == BATCH + 41
    with collection.database.read() as db:
        index = collection.vectors
        assert index is not None
        assert index.status(db).rows == BATCH + 41
    assert [path for path, _ in found(collection, "which river floods")] == [path for path, _ in before]
