"""A collection's search within a time: the index gets the time that the other steps leave."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from making.synth import synth

from edge.apps.assistant.retrieval import CollectionLibrary, Retrieval
from edge.apps.collection.collection import Collection, Together
from edge.apps.collection.filters import Filters


@pytest.fixture
def collection(tmp_path: Path) -> Iterator[Collection]:
    notes = tmp_path / "notes"
    notes.mkdir()
    for name in ("river", "bridge", "mill"):
        (notes / f"{name}.txt").write_text(f"The {name} of Ombra is old.\n", encoding="utf-8")
    embedder = synth("tiny-bert-embedder", tmp_path / "embedder")
    embedder.close()
    with Collection(tmp_path / "notes.edge", embedder=str(tmp_path / "embedder"), memory="10GB") as opened:
        opened.index([notes])
        yield opened


def test_the_index_gets_the_time_that_the_rest_of_a_search_leaves(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = collection.vectors
    assert index is not None
    search = index.search
    given: list[float | None] = []
    now = 0.0

    def passing(seconds: float, work: Callable[..., Any]) -> Callable[..., Any]:
        """The same work, during which so many seconds pass."""

        def slow(*args: Any, **options: Any) -> Any:
            nonlocal now
            now += seconds
            return work(*args, **options)

        return slow

    def watched(*args: Any, seconds: float | None = None, **options: Any) -> Any:
        given.append(seconds)
        return search(*args, seconds=seconds, **options)

    monkeypatch.setattr(index, "search", passing(1000, watched))
    for module in ("assistant.retrieval", "collection.searching"):
        monkeypatch.setattr(f"edge.apps.{module}.time", SimpleNamespace(perf_counter=lambda: now))
    library = CollectionLibrary(Together({"": collection}))
    monkeypatch.setattr(collection.source, "hits", passing(1, collection.source.hits))
    query = [Retrieval.of("the old bridge")]
    vectors = np.asarray(library.embed_queries(["the old bridge"]))
    assert [hit.path for hits in library.candidates(query, vectors, 3) for hit in hits]
    library.candidates(query, vectors, 3, seconds=60.0)
    library.candidates(query, vectors, 3, seconds=1e-9)
    unlimited, limited, none = given
    assert unlimited is None
    assert limited is not None
    assert 50 < limited <= 59, "full text and reading passages took a second, the index's own time is its own"
    assert none == 0.0


@pytest.mark.parametrize("where", [None, Filters.of(["path:*r*"])])
def test_the_queries_of_a_batch_are_one_search_and_find_what_each_finds_alone(
    collection: Collection, monkeypatch: pytest.MonkeyPatch, where: Filters | None
) -> None:
    index = collection.vectors
    assert index is not None
    search = index.search
    asked: list[int] = []

    def watched(db: Any, queries: Any, *args: Any, **options: Any) -> Any:
        asked.append(len(queries))
        return search(db, queries, *args, **options)

    monkeypatch.setattr(index, "search", watched)
    library = CollectionLibrary(Together({"": collection}))
    texts = ["the old bridge", "a mill", "Ombra river"]
    queries = [Retrieval.of(text) for text in texts]
    vectors = np.asarray(library.embed_queries(texts))
    alone = [
        library.candidates([query], vector[None], 3, where=where)[0]
        for query, vector in zip(queries, vectors, strict=True)
    ]
    asked.clear()
    together = library.candidates(queries, vectors, 3, where=where)
    assert asked == [3]
    assert [[(hit.id, hit.score) for hit in hits] for hits in together] == [
        [(hit.id, hit.score) for hit in hits] for hits in alone
    ]
    assert len({hits[0].path for hits in together}) > 1, "each query has its own results"


def test_room_that_another_request_works_in_is_no_refusal(collection: Collection) -> None:
    """Of several requests, each asks caches for all the room that one needs. What another one holds meanwhile comes
    back, so the models decide whether a pass fits beside it or waits."""
    budget = collection.budget
    cache = budget.reserve("cache", 3 << 30)
    budget.add_shrinker("cache", lambda nbytes: cache.resize(max(0, cache.nbytes - nbytes)), loss=0.0)
    library = CollectionLibrary(Together({"": collection}), working=8 << 30)
    with budget.reserve("another request", 3 << 30):
        assert library.embed_queries(["the old bridge"]).shape == (1, 64)
    assert not cache.nbytes
