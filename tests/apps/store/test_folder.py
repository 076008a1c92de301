"""Folders of stores. A folder holds one collection or one memory: maintenance of the one would remove the segments of
the other. Stores that this program may not change, on a read-only disk or of a newer version, are not damaged: stored
data can be read, nothing is changed, and each verb says in one sentence why."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

from edge.apps.collection.collection import Collection
from edge.apps.memory.care import place_of
from edge.apps.memory.memory import Memory
from edge.apps.store.backup import back_up, restore
from edge.apps.store.connections import plain
from edge.apps.store.folder import COLLECTION, MEMORY, claim
from edge.errors import InputError, StorageError


def test_the_folder_of_another_kind_is_refused(tmp_path: Path) -> None:
    Collection(tmp_path / "c", memory="10GB").close()
    Memory(tmp_path / "m", memory="10GB").close()
    with pytest.raises(InputError, match="is the folder of a memory; name another one"):
        Collection(tmp_path / "m", memory="10GB")
    with pytest.raises(InputError, match="is the folder of a collection; name another one"):
        Memory(tmp_path / "c", memory="10GB")
    back_up(place_of(tmp_path / "m"), tmp_path / "saved")
    with pytest.raises(InputError, match="is the folder of a collection"):
        restore(place_of(tmp_path / "c"), tmp_path / "saved", force=True)
    assert not (tmp_path / "m" / COLLECTION).exists()
    assert not (tmp_path / "c" / MEMORY).exists()


def test_what_is_there_already_is_opened(tmp_path: Path) -> None:
    """Both may lie in one folder since before this was refused."""
    for name in (COLLECTION, MEMORY):
        (tmp_path / name).touch()
    for name in (COLLECTION, MEMORY):
        claim(tmp_path, name)


Verb = Callable[..., Any]
ReadOnly = Callable[[], AbstractContextManager[None]]

STORES = (Path("edge-rag/collection", COLLECTION), Path("edge-rag/memory", MEMORY))

READING = (
    ("search", "river", "--no-rerank"),
    ("status",),
    ("list",),
    ("describe",),
    ("check", "--read-data"),
    ("backup", "saved"),
    ("memory", "search", "river", "--no-rerank"),
    ("memory", "list"),
    ("memory", "status"),
    ("memory", "export", "out.jsonl"),
    ("memory", "check", "--read-data"),
    ("memory", "backup", "saved memory"),
)
CHANGING = (
    ("index", "texts"),
    ("remove", "texts"),
    ("describe", "texts", "What is said of it."),
    ("compact",),
    ("repair",),
    ("restore", "saved before/collection", "--force"),
    ("memory", "add", "The bridge is closed."),
    ("memory", "delete", "--all"),
    ("memory", "rebuild"),
    ("memory", "repair"),
    ("memory", "restore", "saved before/memory", "--force"),
)


@pytest.fixture
def verb(edge_verb: Verb, tmp_path: Path) -> Verb:
    """Runs a verb on a collection and a memory that hold something, with a backup of each."""

    def run(*arguments: str) -> Any:
        return edge_verb(*arguments, XDG_DATA_HOME=str(tmp_path / "data"))

    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "river.txt").write_text("The river floods in spring.")
    assert run("index", "texts").code == 0
    assert run("memory", "add", "The river flooded in May.").code == 0
    assert run("backup", "saved before/collection").code == 0
    assert run("memory", "backup", "saved before/memory").code == 0
    return run


@pytest.fixture
def stored(tmp_path: Path) -> Callable[[], dict[str, bytes]]:
    """Every file of the stores that holds something for good, with its content."""
    passing = ("-shm", "-wal", ".lock")
    return lambda: {
        str(path): path.read_bytes()
        for path in sorted((tmp_path / "data").rglob("*"))
        if path.is_file() and not path.name.endswith(passing)
    }


@pytest.fixture
def read_only(monkeypatch: pytest.MonkeyPatch) -> ReadOnly:
    """Has the stores look read-only to the program: root may write everywhere, so folders cannot be made so."""
    allowed = os.access

    def refused(path: Path, mode: int, **more: Any) -> bool:
        return not (mode & os.W_OK and "data" in Path(path).parts) and allowed(path, mode, **more)

    @contextmanager
    def patched() -> Iterator[None]:
        with monkeypatch.context() as patch:
            patch.setattr(os, "access", refused)
            yield

    return patched


def newer(path: Path) -> None:
    """Makes a database look as if a newer version had written it."""
    db = plain(path)
    db.pragma("user_version", 99)
    db.close()


def test_a_store_that_cannot_be_written_is_read(
    verb: Verb, stored: Callable[[], dict[str, bytes]], tmp_path: Path, read_only: ReadOnly
) -> None:
    before = stored()
    with read_only():
        for arguments in READING:
            ended = verb(*arguments)
            assert (ended.code, ended.err.count("cannot")) == (0, 0), arguments
        for arguments in CHANGING:
            ended = verb(*arguments)
            last = ended.err.splitlines()[-1]
            assert (ended.code, "cannot be written to, so nothing in it can be changed" in last) == (2, True), arguments
    assert stored() == before
    for kind, saved in ((), "saved"), (("memory",), "saved memory"):
        assert verb(*kind, "restore", saved, "--force").code == 0


def test_the_last_commits_in_a_log_are_not_left_out(verb: Verb, tmp_path: Path, read_only: ReadOnly) -> None:
    path = tmp_path / "data" / STORES[1]
    reader = apsw.Connection(str(path))  # has the log stay
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM health").fetchall()
    assert verb("memory", "add", "The bridge is closed.").code == 0
    log = path.with_name(path.name + "-wal").read_bytes()
    file = path.read_bytes()
    reader.close()
    copy = tmp_path / "data" / "copy"
    copy.mkdir()
    (copy / MEMORY).write_bytes(file)
    (copy / f"{MEMORY}-wal").write_bytes(log)
    with read_only():
        ended = verb("memory", "list", "--path", str(copy))
    assert (ended.code, "bridge" in ended.out) == (0, True)


def test_a_store_of_a_newer_version_is_neither_damaged_nor_repaired(
    verb: Verb, stored: Callable[[], dict[str, bytes]], tmp_path: Path
) -> None:
    for place in STORES:
        newer(tmp_path / "data" / place)
    before = stored()
    for arguments in (*READING, *CHANGING):
        if "backup" in arguments or "restore" in arguments:
            continue
        ended = verb(*arguments)
        assert (ended.code, "was written by a newer version of edge-rag" in ended.err) == (2, True), arguments
        assert "damaged" not in ended.out + ended.err, arguments
    assert stored() == before


def test_the_backup_of_a_newer_version_is_not_restored(verb: Verb, tmp_path: Path) -> None:
    for place, kind in zip(STORES, ((), ("memory",)), strict=True):
        newer(tmp_path / "data" / place)
        assert verb(*kind, "backup", f"newer {place.name}").code == 0
        assert verb(*kind, "restore", f"saved before/{place.parent.name}", "--force").code == 0
        ended = verb(*kind, "restore", f"newer {place.name}", "--force")
        assert (ended.code, "was written by a newer version of edge-rag" in ended.err) == (2, True)
        assert verb(*kind, "check").code == 0


@pytest.mark.parametrize("database", [COLLECTION, MEMORY])
def test_a_folder_whose_name_is_too_long_is_refused(tmp_path: Path, database: str) -> None:
    with pytest.raises(StorageError, match="cannot be made"):
        claim(tmp_path / ("x" * 5000), database)
