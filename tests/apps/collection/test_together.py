"""Several collections searched as one, and their names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edge.apps.collection.registry import Registry, locate
from edge.apps.collection.together import Together
from edge.config import Config
from edge.errors import InputError, StorageError

RIVER = "The river floods in spring."
BREAD = "Bread needs time."


@pytest.fixture
def two(make: Any, tmp_path: Path) -> list[str]:
    for name, texts in (("one", [RIVER, "Ice is blue."]), ("two", [BREAD, RIVER])):
        make(name).add(texts, ids=[f"{name}-{i}" for i in range(len(texts))])
    return [str(tmp_path / "one"), str(tmp_path / "two")]


@pytest.mark.parametrize("rerank", [False, True])
def test_they_are_searched_as_one_collection_would_be(
    make: Any, two: list[str], tiny_config: Config, rerank: bool
) -> None:
    whole = make("whole")
    whole.add([RIVER, "Ice is blue.", BREAD], ids=["a", "b", "c"])
    with Together.opened(two, tiny_config) as opened:
        found = opened.search("lex: bread river vec: when does it flood", 10, rerank=rerank)
        assert {hit.path for hit in found} >= {"one-1", "two-0"}
        assert sum(hit.text == RIVER for hit in found) == 1  # texts that read alike appear once
        assert [hit.score for hit in found] == sorted((hit.score for hit in found), reverse=True)
        assert {hit.collection for hit in found} == set(two)
        assert all(hit.snippet for hit in found)
    expected = whole.search("lex: bread river vec: when does it flood", 10, rerank=rerank)
    if rerank:
        relevance = {hit.text: hit.relevance for hit in expected}
        assert {hit.text: hit.relevance for hit in found} == pytest.approx(relevance, abs=1e-4)


def test_collections_of_different_models_are_searched_each_with_its_own(
    make: Any, tiny_config: Config, tmp_path: Path
) -> None:
    make("one").add([RIVER], ids=["a"])
    make("two", embedder="other-embedder").add([BREAD], ids=["b"])
    from dataclasses import replace

    config = replace(tiny_config, embedder="")
    with Together.opened([str(tmp_path / "one"), str(tmp_path / "two")], config) as opened:
        assert {hit.path for hit in opened.search("vec: bread", 10, rerank=False)} == {"a", "b"}


def test_what_is_not_there_is_refused(two: list[str], tiny_config: Config, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="there is no collection in"):
        Together.opened([two[0], str(tmp_path / "absent")], tiny_config)
    with Together.opened(two, tiny_config) as opened:
        with pytest.raises(InputError, match="only the reranker"):
            opened.search("river", min_score=0.1, rerank=False)
        with pytest.raises(InputError, match="at least 1"):
            opened.search("river", 0)
        assert [excerpt.text for excerpt in opened.read(["two-0", "one-1"])] == [BREAD, "Ice is blue."]
        with pytest.raises(InputError, match="not in the collection"):
            opened.read(["nowhere"])


def test_names_stand_for_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platformdirs.user_data_path", lambda *_, **__: tmp_path / "data")
    registry = Registry()
    assert registry.names() == {}
    assert registry.add("notes") == tmp_path / "data" / "collections" / "notes"
    registry.add("work", tmp_path / "elsewhere")
    registry.add("work", tmp_path / "elsewhere")  # said twice
    assert locate("work") == tmp_path / "elsewhere"
    assert locate("other") == Path.cwd() / "other"
    assert list(Registry().names()) == ["notes", "work"]
    with pytest.raises(InputError, match="is the collection in"):
        registry.add("work", tmp_path / "a third")
    with pytest.raises(InputError, match="in upper and lower case alone"):
        registry.add("Work")
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="is no folder"):
        registry.add("file", tmp_path / "file")
    for name in ("", "a/b", "..", "x" * 65, "-x"):
        with pytest.raises(InputError, match="is no name"):
            registry.add(name)
    assert registry.remove("work") == tmp_path / "elsewhere"
    with pytest.raises(InputError, match="no collection is called"):
        registry.remove("work")
    for damage in ("[]", "{", '{"a": 1}'):
        (tmp_path / "data" / "collections.json").write_text(damage)
        with pytest.raises(StorageError, match="damaged"):
            registry.names()
