"""Texts, files and folders of one name: which of them goes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edge.apps.collection.collection import Collection

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
