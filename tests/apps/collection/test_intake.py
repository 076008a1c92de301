"""An intake whose batches need more memory than is free beside the process that reads files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from edge.apps.collection.collection import Collection
from edge.apps.collection.preparation import with_more_memory
from edge.apps.documents.extraction import Extractor
from edge.errors import BudgetExceeded
from edge.ivf.index import VectorIndex
from tests.apps.collection.conftest import Folder, Make


def refusal() -> BudgetExceeded:
    return BudgetExceeded("index writer needs more", owner="index writer", asked=1, free=0, needed=1)


class Reading:
    """An extractor that can be paused."""

    def __init__(self) -> None:
        self.is_paused = False

    def extract(self, path: Path) -> Any:
        raise AssertionError("nothing is read here")

    def interrupt(self) -> None:
        raise AssertionError("nothing is read here")

    @contextmanager
    def paused(self) -> Iterator[None]:
        self.is_paused = True
        yield
        self.is_paused = False


def test_work_is_done_again_only_if_the_memory_was_not_enough() -> None:
    reading, seen = Reading(), []

    def work() -> str:
        seen.append(reading.is_paused)
        if not reading.is_paused:
            raise refusal()
        return "done"

    assert with_more_memory(reading, lambda: "at once") == "at once"
    assert with_more_memory(reading, work) == "done"
    assert seen == [False, True]
    with pytest.raises(BudgetExceeded):
        with_more_memory(None, work)


def test_a_batch_that_did_not_fit_is_written_whole_while_no_file_is_read(
    make: Make, folder: Folder, monkeypatch: pytest.MonkeyPatch, consistent: Callable[[Collection], None]
) -> None:
    """The second attempt replaces the old passages, as the first one would have done."""
    folder.write("a.md", "The river floods in spring.\n\n" * 3)
    folder.write("b.md", "Bread needs time.\n")
    collection = make()
    collection.index([folder.path])
    folder.write("a.md", "# Glaciers\n\nThe glacier melts in summer.\n")
    folder.write("c.md", "The mill is very old.\n")
    paused: list[bool] = []
    pausing = Extractor.paused
    adding = VectorIndex.add

    @contextmanager
    def watched(self: Extractor) -> Iterator[None]:
        with pausing(self):
            paused.append(True)
            yield
            paused.pop()

    def refused(self: VectorIndex, db: Any, ids: Any, vectors: Any) -> None:
        adding(self, db, ids, vectors)
        if not paused:
            raise refusal()

    monkeypatch.setattr(Extractor, "paused", watched)
    monkeypatch.setattr(VectorIndex, "add", refused)
    collection.index([folder.path])
    fresh = make("fresh")
    monkeypatch.undo()
    fresh.index([folder.path])
    for query in ("river", "glacier", "mill", "bread"):
        expected = [(hit.path, hit.text) for hit in fresh.search(query, rerank=False)]
        assert [(hit.path, hit.text) for hit in collection.search(query, rerank=False)] == expected
    consistent(collection)
