"""Every command reports unfinished work, and the next writer continues it; vectors are made anew from the stored texts,
and compaction gives space back."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edge.apps.collection.collection import Collection
from edge.apps.store.connections import WriterLock
from edge.apps.store.rebuilding import BATCH
from edge.config import Config
from edge.errors import InputError, ModelError, StorageError
from tests.apps.collection.conftest import Make


def kinds(collection: Collection) -> list[str]:
    return [trouble.kind for trouble in collection.health()]


def test_a_folder_that_is_not_there_is_said_without_waiting_for_a_writer(make: Make, tmp_path: Path) -> None:
    collection = make()
    with WriterLock(collection.path / "writer.lock")(), pytest.raises(InputError, match="does not exist"):
        collection.index(tmp_path / "nope")
    assert collection.roots == []


def test_a_folder_of_which_nothing_could_be_taken_in_is_not_kept(make: Make, folder: Any, tiny_config: Config) -> None:
    folder.write("a.txt", "A river floods.")
    collection = make(config=dataclasses.replace(tiny_config, embedder="multilingual-e5-small"))
    with pytest.raises(ModelError, match="edge models pull multilingual-e5-small"):
        collection.index(folder.path)
    assert collection.roots == []
    assert collection.status().pending == 0
    assert collection.health()


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


def nbytes(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def fill(collection: Collection, rounds: int = 3) -> None:
    """Several segments, as a collection has that grew by flushes."""
    for number in range(rounds):
        collection.add([f"text {number} {i} about rivers and bread" for i in range(150)])
        index = collection.vectors
        assert index is not None
        index.options = replace(index.options, pending_limit=1)
        index.maintain(collection.database.write)


def test_it_never_ends_larger(make: Any) -> None:
    collection = make()
    fill(collection)
    path, everything = collection.path, 450
    collection.close()
    before = nbytes(path)
    collection = make()
    assert collection.compact()
    collection.close()
    once = nbytes(path)
    assert once <= before
    collection = make()
    with collection.database.read() as db:
        assert collection.vectors is not None
        assert collection.vectors.status(db).segments == 1
        assert collection.vectors.status(db).rows == everything
    named = {file.name for file in (path / "segments").iterdir() if not file.name.endswith(".lock")}
    assert len(named) == 1  # the merged files are gone at once
    assert collection.compact()
    collection.close()
    assert nbytes(path) <= once


def test_what_another_reads_stays_until_it_ends(make: Any, tmp_path: Path) -> None:
    """The reader is another process, because this one's own are waited for."""
    collection = make()
    fill(collection)
    segments = collection.path / "segments"
    before = {file.name for file in segments.iterdir()}
    code = (
        "import sys, time; from edge.apps.collection.collection import Collection\n"
        "with Collection(sys.argv[1], read_only=True, memory='4GB') as c, c.database.read() as db:\n"
        "    ids = [row[0] for row in db.execute('SELECT id FROM chunks')]\n"
        "    print('reading', flush=True); sys.stdin.readline()\n"
        "    import numpy as np; print(len(c.vectors.vectors(db, np.array(ids, np.int64))), flush=True)\n"
    )
    command = [sys.executable, "-c", code, str(collection.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as reader:
        assert reader.stdin is not None
        assert reader.stdout is not None
        assert reader.stdout.readline() == "reading\n"
        assert not collection.compact()
        assert before <= {file.name for file in segments.iterdir()}
        reader.stdin.write("go on\n")
        assert reader.stdout.readline() == "450\n"
    assert collection.compact()
    assert len([file for file in segments.iterdir() if not file.name.endswith(".lock")]) == 1
