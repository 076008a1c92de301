"""Every command reports unfinished work, and the next writer continues it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edge.apps.collection.collection import Collection
from edge.apps.store.connections import WriterLock
from edge.config import Config
from edge.errors import InputError, ModelError

Make = Callable[..., Collection]


def kinds(collection: Collection) -> list[str]:
    return [trouble.kind for trouble in collection.health()]


def test_a_folder_that_is_not_there_is_said_without_waiting_for_a_writer(make: Make, tmp_path: Path) -> None:
    collection = make()
    with WriterLock(collection.path / "writer.lock")(), pytest.raises(InputError, match="does not exist"):
        collection.index(tmp_path / "nope")
    assert collection.roots == []


def test_a_folder_of_which_nothing_could_be_taken_in_is_not_kept(make: Make, folder: Any, tiny_config: Config) -> None:
    folder.write("a.txt", "A river floods.")
    collection = make(config=dataclasses.replace(tiny_config, embedder="not-installed"))
    with pytest.raises(ModelError):
        collection.index(folder.path)
    assert collection.roots == []
    assert collection.status().pending == 0
    assert collection.health()


def test_an_interrupted_run_is_said_until_it_is_finished(
    make: Make, folder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.write("a.txt", "A river floods.")
    collection = make()
    with monkeypatch.context() as patch:
        end = "edge.apps.collection.discovery.Discovery.remove_unseen"
        patch.setattr(end, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            collection.index(folder.path)
    assert kinds(collection) == ["indexing"]
    assert "`edge index` goes on with it" in str(*collection.health())
    assert kinds(make(read_only=True)) == ["indexing"]
    assert collection.roots, "an interrupted run is gone on with"
    collection.index()
    assert kinds(collection) == []


def test_what_a_running_command_does_names_no_remedy(make: Make, folder: Any) -> None:
    folder.write("a.txt", "A river floods.")
    collection = make()
    collection.index(folder.path)
    folder.write("b.txt", "A bridge of stone.")
    seen: list[str] = []
    collection.index(progress=lambda *_: seen.extend(map(str, make(read_only=True).health())))
    assert seen
    assert [text for text in seen if "`" in text] == []


def test_a_run_that_was_interrupted_at_its_end_names_no_files(
    make: Make, folder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.write("a.txt", "A river floods.")
    collection = make()
    with monkeypatch.context() as patch:
        patch.setattr("edge.apps.collection.writing.forget", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            collection.index(folder.path)
    assert [str(trouble) for trouble in collection.health()] == [
        "a run was interrupted at its end; `edge index` goes on with it"
    ]
    with WriterLock(collection.path / "writer.lock")():
        assert [trouble.text for trouble in make(read_only=True).health()] == ["the index is being tidied"]
    collection.index()
    assert not kinds(collection)


def test_an_interrupted_compaction_is_finished_by_the_next_run(
    make: Make, folder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.write("a.txt", "A river floods.")
    collection = make()
    collection.index(folder.path)
    with monkeypatch.context() as patch:
        patch.setattr("edge.apps.store.database.Database.vacuum", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            collection.compact()
    assert kinds(collection) == ["compacting"]
    assert collection.status().health.to_json()["state"] == "unfinished"
    collection.index()
    assert kinds(collection) == []
