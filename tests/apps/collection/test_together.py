"""Several collections searched as one, and their names."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from edge.apps.collection.collection import Together
from edge.apps.collection.registry import Registry, locate
from edge.config import Config
from edge.errors import InputError, StorageError

RIVER = "The river floods in spring."
BREAD = "Bread needs time."


@pytest.fixture
def two(make: Any, tmp_path: Path) -> list[str]:
    for name, texts in (("one", [RIVER, "Ice is blue."]), ("two", [BREAD, RIVER])):
        make(name).add(texts, ids=[f"{name}-{i}" for i in range(len(texts))])
    return [str(tmp_path / "one"), str(tmp_path / "two")]


QUERIES = ("lex: bread river vec: when does it flood", "old ice", "the river of spring", "lex: 3 17 bread")


@pytest.mark.parametrize("compacted", [False, True])
def test_several_collections_are_searched_as_one_collection_would_be(
    make: Any, two: list[str], tiny_config: Config, compacted: bool
) -> None:
    """To the bit, however the texts are distributed, and whether their vectors are in a segment yet."""
    chance = random.Random(0)
    words = ["river", "bread", "ice", "old", "spring", "blue", "3", "17", "flood", "time"]
    texts = [" ".join(chance.choices(words, range(1, 11), k=chance.randint(3, 40))) for _ in range(160)]
    make("one").add(texts[:30], ids=[f"text-{i}" for i in range(30)])
    make("two").add(texts[30:], ids=[f"text-{i}" for i in range(30, 160)])
    whole = make("whole")
    whole.add([RIVER, "Ice is blue.", BREAD, RIVER], ids=["one-0", "one-1", "two-0", "two-1"])
    whole.add(texts, ids=[f"text-{i}" for i in range(160)])
    if compacted:
        assert whole.compact()
    with Together.opened(two, tiny_config) as opened:
        for query in QUERIES:
            found = opened.search(query, 50, rerank=False)
            expected = whole.search(query, 50, rerank=False)
            assert [(hit.path, hit.score, hit.stages) for hit in found] == [
                (hit.path, hit.score, hit.stages) for hit in expected
            ]
            assert {hit.collection for hit in found} == set(two)
            assert all(hit.snippet for hit in found)
        ranked = opened.search(QUERIES[0], 10)
        expected = whole.search(QUERIES[0], 10)
        assert {hit.path: hit.relevance for hit in ranked} == pytest.approx(
            {hit.path: hit.relevance for hit in expected}, abs=1e-4
        )


@pytest.mark.parametrize("depth", [3, 100])
def test_more_equal_passages_than_are_looked_at_make_no_difference(
    make: Any, tiny_config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, depth: int
) -> None:
    """Equal texts have equal vectors. Layouts differ, so that most of them are results."""
    monkeypatch.setattr("edge.apps.collection.searching.DEPTH", depth)
    texts = [RIVER.replace(" ", " " * (1 + i % 2)) + f"{'' if i % 3 else ' Ice.'}" for i in range(40)]
    names = [f"text-{i * 7 % 40:02}" for i in range(40)]
    for number in range(3):
        make(str(number)).add(texts[number::3], ids=names[number::3])
    whole = make("whole")
    whole.add(texts, ids=names)
    with Together.opened([str(tmp_path / str(number)) for number in range(3)], tiny_config) as opened:
        for query in ("river", "vec: ice", "floods in spring"):
            found, expected = (one.search(query, 20, rerank=False) for one in (opened, whole))
            assert [(hit.path, hit.score, hit.stages) for hit in found] == [
                (hit.path, hit.score, hit.stages) for hit in expected
            ]


def test_a_type_needs_to_be_in_one_collection_alone(make: Any, tiny_config: Config, folder: Any) -> None:
    folder.write("a.odd", RIVER)
    make("one").index(folder.path)
    make("two").add([RIVER], ids=["b"])
    with Together({"one": make("one"), "two": make("two")}) as opened:
        assert [hit.path for hit in opened.search("river", where="type:odd")] == [str(folder.path / "a.odd")]
        with pytest.raises(InputError, match="no type 'none'"):
            opened.search("river", where="type:none")


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
        with pytest.raises(InputError, match="1 to"):
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
    monkeypatch.chdir(tmp_path)
    assert locate("default") == locate() == tmp_path / "data" / "collection"
    (tmp_path / "default").mkdir()
    (tmp_path / "default" / "edge.db").touch()
    assert locate("default") == tmp_path / "default"
    registry.add("default", tmp_path / "mine")
    assert locate("default") == tmp_path / "mine"
    registry.remove("default")
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
