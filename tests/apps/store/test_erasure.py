"""Erased texts: no byte of them is in any file of the store, also after a kill at any moment and the next opening."""

from __future__ import annotations

import itertools
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from naive.program import config_of, write_tiny_models
from naive.words import WordEmbedder, WordReranker

from edge.apps.collection.collection import Collection
from edge.apps.memory.memory import Memory
from edge.apps.store.rows import Leasing
from edge.errors import InputError, StorageError
from edge.ivf.index import VectorIndex
from edge.ivf.maintenance import maintainer
from edge.ivf.maintenance.maintainer import Guard

WORDS = ("zqxvkwbtwjfp", "xkjqvzwbrdgh", "qwzjxkvbmlyt")
"""Words that share no beginning with others, whose ends FTS5 would store alone."""

FIRST, SECOND, TURN = (f"The safe opens with {word}" for word in WORDS)


def holds(place: Path, needles: list[bytes]) -> list[str]:
    """The files below a folder that hold any of the bytes."""
    files = (path for path in sorted(place.rglob("*")) if path.is_file())
    return [f"{path.name}: {needle[:40]!r}" for path in files for needle in needles if needle in path.read_bytes()]


def needles(vectors: Any = ()) -> list[bytes]:
    return [word[3:].encode() for word in WORDS[:2]] + [np.asarray(row, np.float32).tobytes() for row in vectors]


def open_memory(place: Path) -> Memory:
    return Memory(place, embedder=WordEmbedder(), reranker=WordReranker(), memory="10GB")


@pytest.fixture
def memory(tmp_path: Path) -> tuple[Path, str, list[bytes]]:
    """A memory of which one text, its earlier version and its vectors are to be erased: in a segment and before it, in
    free pages and in the log. A turn follows it."""
    place = tmp_path / "memory"
    with open_memory(place) as memory:
        memory.add([f"The river rises in year {number}" for number in range(50)], user_id="ann")
        turns = [{"role": "user", "content": FIRST}, {"role": "assistant", "content": "I see"}]
        name = memory.add(turns, user_id="ann", run_id="talk")["results"][0]["id"]
        settle(memory)
        memory.update(name, SECOND)
        memory.add([f"Bread needs hour {number}" for number in range(50)], user_id="ann")
        index = memory.store.index
        assert index is not None
        with memory.store.read() as db:
            ids = [row[0] for row in db.execute("SELECT id FROM memories WHERE run_id = 'talk' ORDER BY id")]
            vectors = index.vectors(db, ids)
    found = needles([*vectors, *WordEmbedder().embed([FIRST, SECOND])])
    assert {one.split(": ")[1] for one in holds(place, found)} == {repr(needle[:40]) for needle in found}
    return place, name, found


@pytest.fixture
def collection(tmp_path: Path) -> tuple[Path, str, list[bytes]]:
    """A collection of which one file is to be erased, with its description and the states of its passages."""
    place, files = tmp_path / "collection", tmp_path.resolve() / "files"
    files.mkdir()
    secret = files / "secret.txt"
    with open_collection(place) as collection:
        secret.write_text(FIRST)
        for number in range(20):
            (files / f"{number}.txt").write_text(f"The river rises in year {number}")
        collection.index([files])
        secret.write_text(f"{SECOND} ")
        collection.index()
        collection.describe(secret, f"Words such as {WORDS[0]}")
        with collection.database.read() as db:
            ids = [
                row[0]
                for row in db.execute(
                    "SELECT chunks.id FROM chunks JOIN files ON files.id = file WHERE path = ?", (str(secret),)
                )
            ]
            assert collection.vectors is not None
            vectors = collection.vectors.vectors(db, ids)
    states = place / "scratch" / "kv-states" / "model"
    states.mkdir(parents=True)
    for state in ("whole.kv", ".draft.123"):
        (states / state).write_text(FIRST)
    (files / "secret.txt").unlink()
    found = needles(vectors)
    assert {one.split(": ")[1] for one in holds(place, found)} == {repr(needle[:40]) for needle in found}
    return place, str(secret), found


def open_collection(place: Path, *, read_only: bool = False) -> Collection:
    models = place.parent / "models"
    if not models.exists():
        models.mkdir()
        write_tiny_models(models)
    return Collection(place, config=config_of(models, place / "scratch", threads=1), read_only=read_only)


def settle(memory: Memory) -> None:
    while (
        report := memory.maintain(full=True)
    ) is None or report.busy:  # the first write of a process maintains it, too
        time.sleep(0.01)


def test_of_an_erased_memory_nothing_is_left(memory: tuple[Path, str, list[bytes]]) -> None:
    place, name, found = memory
    (place / "damaged-20260101-000000").mkdir()
    with open_memory(place) as opened:
        report = opened.delete(name, purge=True)
        assert report["erased"] == {"memories": 1, "lines of history": 2}
        assert str(place / "damaged-20260101-000000") in report["not_reached"]
        assert holds(place, found) == [], "while it is open, too"
        assert opened.get(name) is None
        assert opened.history(name) == []
        assert opened.health(thorough=True)
        assert len(opened.get_all(user_id="ann", top_k=1000)["results"]) == 101
        (turn,) = opened.search("I see", 1, user_id="ann", rerank=False)["results"]
        assert turn["memory"] == "I see"
        with pytest.raises(InputError, match="there is no memory"):
            opened.delete(name, purge=True)
    assert holds(place, found) == []


@pytest.mark.parametrize("way", ["deleted before", "all of the scope", "all, deleted before", "reset"])
def test_of_erased_memories_nothing_is_left(memory: tuple[Path, str, list[bytes]], way: str) -> None:
    place, name, found = memory
    with open_memory(place) as opened:
        if way == "deleted before":
            opened.delete(name)
            opened.update(opened.get_all(user_id="ann", run_id="talk")["results"][0]["id"], "I do")
            assert opened.delete(name, purge=True)["erased"] == {"memories": 0, "lines of history": 3}
        elif way == "reset":
            opened.reset()
        else:
            if way == "all, deleted before":
                opened.delete_all(run_id="talk")
            opened.delete_all(run_id="talk", purge=True)
            assert opened.history(name) == []
        assert holds(place, found) == []
        assert opened.health(thorough=True)


def test_another_scope_cannot_erase(memory: tuple[Path, str, list[bytes]]) -> None:
    place, name, _ = memory
    with Memory(place, user_id="bea", embedder=WordEmbedder(), reranker=WordReranker(), memory="10GB") as bea:
        with pytest.raises(InputError, match="there is no memory"):
            bea.delete(name, purge=True)
        assert bea.delete_all(purge=True)["erased"] == {"memories": 0, "lines of history": 0}
    with open_memory(place) as opened:
        assert opened.get(name) is not None
        assert len(opened.history(name)) == 2


def test_of_an_erased_file_nothing_is_left(collection: tuple[Path, str, list[bytes]]) -> None:
    place, name, found = collection
    with open_collection(place) as opened:
        assert opened.purge([name]).erased == {"files": 1}
        assert holds(place, found) == []
        assert opened.health()
        assert opened.descriptions() == {}
        assert len(opened.files()) == 20
    assert holds(place, found) == []


def test_of_a_file_that_was_removed_before_nothing_is_left(collection: tuple[Path, str, list[bytes]]) -> None:
    place, name, found = collection
    with open_collection(place) as opened:
        assert opened.delete([name]) == 1
        assert opened.purge([name]).erased == {"files": 0}
        assert holds(place, found) == []


def test_a_reader_of_an_older_state_is_told_and_waited_for(memory: tuple[Path, str, list[bytes]]) -> None:
    place, name, found = memory
    code = (
        "import sys, apsw; db = apsw.Connection(sys.argv[1])\n"
        "db.execute('BEGIN'); db.execute('SELECT * FROM memories')\n"
        "print('reading', flush=True); sys.stdin.readline()"
    )
    command = [sys.executable, "-c", code, str(place / "memory.db")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "reading\n"
        with open_memory(place) as opened:
            with pytest.raises(StorageError, match="still holds bytes of it"):
                opened.delete(name, purge=True)
            assert [trouble.kind for trouble in opened.health()] == ["erasing"]
            assert opened.get(name) is None
    with open_memory(place) as opened:
        assert opened.health()
        assert holds(place, found) == []


def test_maintenance_in_the_background_is_waited_for(
    memory: tuple[Path, str, list[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    place, name, found = memory
    discard, tried = VectorIndex.discard, list[bool]()

    def beside_maintenance(self: VectorIndex, write: Any) -> bool:
        with Guard(place / "segments" / maintainer._LOCK) if not tried else nullcontext():
            tried.append(discard(self, write))
        return tried[-1]

    monkeypatch.setattr(VectorIndex, "discard", beside_maintenance)
    with open_memory(place) as opened:
        opened.delete(name, purge=True)
    assert tried == [False, True]
    assert holds(place, found) == []


def test_beside_writers_and_searches_nothing_is_left_and_nothing_else_is_lost(
    memory: tuple[Path, str, list[bytes]],
) -> None:
    place, name, found = memory
    kept: list[str] = []
    erased = threading.Event()

    def write(number: int) -> None:
        count = 0
        while not erased.is_set() or count < 5:
            added = opened.add(f"The bridge of town {number} has arch {count}", user_id="cyd")
            kept.append(added["results"][0]["id"])
            count += 1

    def search() -> None:
        while not erased.is_set():
            opened.search("The safe opens with", 5, user_id="ann", rerank=False)

    with open_memory(place) as opened, ThreadPoolExecutor(3) as threads:
        work = [threads.submit(write, 0), threads.submit(write, 1), threads.submit(search)]
        try:
            report = patiently_erased(opened, name)
        finally:
            erased.set()
        for each in work:
            each.result()
        assert report["erased"]["memories"] in (0, 1), "0 if an attempt before could not reach all bytes"
        assert opened.history(name) == []
    with open_memory(place) as opened:
        assert holds(place, found) == []
        assert opened.health(thorough=True)
        assert {memory["id"] for memory in opened.get_all(user_id="cyd", top_k=10_000)["results"]} == set(kept)


def patiently_erased(opened: Memory, name: str) -> dict[str, Any]:
    """The report of an erasure, which is asked for again while somebody still reads an older state."""
    for _ in range(50):
        with suppress(StorageError):
            return opened.delete(name, purge=True)
        time.sleep(0.05)
    raise AssertionError("the erasure never came through")


DELETED = {
    "memory": "SELECT count(*) FROM memories WHERE uuid = ?",
    "collection": "SELECT count(*) FROM files WHERE path = ?",
}


@pytest.mark.parametrize("kind", DELETED)
def test_a_kill_at_any_statement_leaves_nothing_to_the_next_opening(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """A kill leaves the files as they are at that moment. Who only reads does not try to end the erasure."""
    place, name, found = request.getfixturevalue(kind)
    opened: Callable[[Path], Any] = open_memory if kind == "memory" else open_collection

    def erase(store: Any) -> None:
        store.delete(name, purge=True) if kind == "memory" else store.purge([name])

    copies: list[Path] = []
    execute, statements = Leasing.execute, itertools.count()

    def copied(db: Leasing, *arguments: Any, **named: Any) -> Any:
        if next(statements) % 11 == 0:
            copies.append(shutil.copytree(place, tmp_path / f"copy {len(copies)}"))
        return execute(db, *arguments, **named)

    with opened(place) as store, monkeypatch.context() as patch:
        patch.setattr(Leasing, "execute", copied)
        erase(store)
    assert len(copies) > 10
    for copy in copies:
        if kind == "collection":
            open_collection(copy, read_only=True).close()
            assert not caplog.records
        with (
            opened(copy) as store,
            (store if kind == "collection" else store.store).database.read() as db,
        ):
            (left,) = db.execute(DELETED[kind], [name]).fetchone()
        if left:  # nothing was acknowledged, and nothing was done
            with opened(copy) as store:
                erase(store)
        assert holds(copy, found) == [], copy.name
        shutil.rmtree(copy)
