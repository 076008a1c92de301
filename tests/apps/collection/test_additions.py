"""Texts to add, those that cannot be stored, and which of texts, files and folders of one name goes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.apps.collection.collection import Collection
from edge.apps.collection.paths import checked, storable
from edge.apps.collection.registry import locate
from edge.apps.collection.writing import separated
from edge.errors import InputError

HALF = "half \ud800"


def test_texts_and_files_are_told_apart(tmp_path: Path) -> None:
    file = tmp_path.resolve() / "a.txt"
    file.write_text("a")
    names, texts, files = separated(["a text", file, str(file), "b"], ["t", "x", "y", "u"], ["T", "", "", "U"])
    assert names == ["t", str(file), str(file), "u"]
    assert texts == {"t": ("a text", "T"), "u": ("b", "U")}
    assert files == [str(file), str(file)]
    assert separated("a", None, "") == separated(["a"], None, "")


@pytest.mark.parametrize(
    "use",
    [
        lambda collection: collection.add([HALF]),
        lambda collection: collection.add(["text"], ids=[HALF]),
        lambda collection: collection.add(["text"], title=HALF),
        lambda collection: collection.add(Path(HALF)),
        lambda collection: collection.index(HALF),
        lambda collection: collection.update([HALF]),
        lambda collection: collection.delete([HALF]),
        lambda collection: collection.search(HALF),
        lambda collection: collection.embed_queries([HALF]),
    ],
)
def test_half_a_character_is_an_input_error(collection: Collection, use: Callable[[Collection], Any]) -> None:
    with pytest.raises(
        InputError,
        match=r"is not valid Unicode: character [0-9]+ is half of one|is no path: it holds half of a character",
    ):
        use(collection)
    assert collection.files() == []


@pytest.mark.parametrize(
    "use",
    [
        lambda collection: collection.index(Path("a\0b")),
        lambda collection: collection.update(["a\0b"]),
        lambda collection: collection.delete(Path("a\0b")),
        lambda collection: collection.add(Path("a\0b")),
        lambda collection: collection.describe("a\0b", "A folder."),
        lambda collection: Collection(Path("a\0b"), config=collection.config),
        lambda collection: collection.index(bytearray(b"a")),
        lambda collection: collection.index(range(3)),
        lambda collection: collection.add(np.array("a")),
        lambda collection: collection.delete(memoryview(b"a")),
        lambda collection: collection.search("river", where=np.array(["type:md"])),
        lambda collection: collection.files(bytearray(b"type:md")),
        lambda collection: collection.embed_queries(range(3)),
        lambda collection: collection.rerank("river", ["a text"]),
        lambda collection: collection.relevance("river", np.array(["a text"])),
        lambda collection: collection.check_room("x", extra=np.zeros(3)),
    ],
)
def test_arguments_of_a_wrong_kind_are_input_errors(collection: Collection, use: Callable[[Collection], Any]) -> None:
    with pytest.raises(InputError):
        use(collection)


def test_names_that_no_file_can_have(collection: Collection) -> None:
    assert not Collection.exists("x" * 5000)
    assert not Collection.exists("~nobody-of-this-name/notes")
    assert locate("~nobody-of-this-name/notes").name == "notes"
    assert collection.delete("a\0b") == 0
    collection.add("A river floods.", ids=["a\0b"])
    assert collection.delete("a\0b") == 1


@pytest.mark.parametrize(
    "use",
    [
        lambda collection, kept: collection.delete(""),
        lambda collection, kept: collection.delete([kept, ""]),
        lambda collection, kept: collection.index(""),
        lambda collection, kept: collection.index([kept, ""]),
        lambda collection, kept: collection.update([kept, ""]),
        lambda collection, kept: collection.add(["text"], ids=[""]),
    ],
)
def test_what_is_empty_is_refused_and_changes_nothing(
    collection: Collection, small: Any, monkeypatch: pytest.MonkeyPatch, use: Callable[[Collection, Path], Any]
) -> None:
    monkeypatch.chdir(small.path.parent)
    collection.add("Ice is blue.", ids=["ice"])
    collection.index(small.path)
    before = (rows(collection), collection.roots)
    with pytest.raises(InputError, match="is empty"):
        use(collection, small.path)
    assert (rows(collection), collection.roots) == before


@pytest.mark.parametrize("other", ["", " \n", "\x00\x1b", Path("absent.txt")])
def test_what_is_given_together_is_added_together_or_not_at_all(collection: Collection, other: str | Path) -> None:
    with pytest.raises(InputError, match="'h' is empty" if isinstance(other, str) else "does not exist"):
        collection.add(["Bread needs time.", other], ids=["g", "h"])
    assert rows(collection) == []
    assert collection.status().chunks == 0


def rows(collection: Collection) -> list[tuple[Any, ...]]:
    """The rows of the collection, in any state."""
    with collection.database.read() as db:
        return db.execute("SELECT path, status, due FROM files ORDER BY path").fetchall()


@given(st.text(st.characters(codec=None) | st.just("\ud800"), max_size=5))
def test_what_is_storable_is_what_utf_8_can_say(text: str) -> None:
    half = any(0xD800 <= ord(char) < 0xE000 for char in text)
    assert storable(text) == (not half)
    if half:
        with pytest.raises(InputError) as caught:
            checked(text, "it")
        assert str(caught.value).isascii()
    else:
        assert checked(text, "it") == text


Check = Callable[[Collection], None]


def names(collection: Collection) -> list[str]:
    return sorted(os.path.basename(file.path) for file in collection.files())


@pytest.mark.parametrize("stem", ["doc", "/doc"])
def test_a_text_has_no_texts_below_it(collection: Collection, consistent: Check, stem: str) -> None:
    ids = [f"{stem}/1", f"{stem}/1/2", f"{stem}/10"]
    collection.add(["One.", "Two.", "Ten."], ids=ids)
    assert collection.delete([ids[0]]) == 1
    assert collection.delete(stem) == 0
    assert [file.path for file in collection.files()] == sorted(ids[1:])
    consistent(collection)


def test_a_text_goes_before_a_folder_of_its_name(
    collection: Collection, small: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(small.path)
    collection.index(["kitchen", "ice.txt"])
    collection.add(["Bread is old.", "Ice is old."], ids=["kitchen", "ice.txt"])
    assert collection.delete(["kitchen", "ice.txt"]) == 2
    assert names(collection) == ["bread.md", "ice.txt"]
    assert collection.roots == [str(small.path / "ice.txt"), str(small.path / "kitchen")]
    assert collection.delete(["kitchen", "ice.txt"]) == 2
    assert (names(collection), collection.roots) == ([], [])


def test_a_path_is_no_text(collection: Collection, small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(small.path)
    collection.index("kitchen")
    collection.add("Bread is old.", ids=["kitchen"])
    assert collection.delete(Path("kitchen")) == 1
    assert (names(collection), collection.roots) == (["kitchen"], [])


def test_a_text_whose_name_is_a_path_belongs_to_no_folder(collection: Collection, small: Any) -> None:
    collection.add("A text of its own.", ids=[str(small.path / "kitchen" / "note")])
    collection.index(small.path)
    assert collection.index(small.path).removed == 0
    assert collection.delete(small.path / "kitchen") == 1
    assert "note" in names(collection)
