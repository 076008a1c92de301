"""What fails in a database, and in the folder around it."""

from __future__ import annotations

import os
import threading
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
from edge.apps.store.connections import WriterLock, plain
from edge.apps.store.failures import DamagedStore, translated
from edge.apps.store.folder import COLLECTION, MEMORY, claim
from edge.errors import InputError, StorageError

PATH = Path("edge.db")

DAMAGE = [
    "SELECT * FROM gone",
    "SELECT gone FROM kept",
    "INSERT INTO kept VALUES (1, 2)",
    "SELECT json_extract(a, '$.x') FROM kept",
    "SELECT * FROM words WHERE words MATCH 'x'",
]
LIMITS = [
    "SELECT 0" + " + 1" * 2000,
    "SELECT " + ", ".join("1" * 3000),
    "SELECT * FROM (SELECT 1" + " UNION ALL SELECT 1" * 600 + ")",
    "SELECT zeroblob(3000000000)",
]
BUGS = [
    "SELEC",
    "SELECT (",
    "SELECT no_function_of_sqlite(1)",
    "SELECT abs(1, 2)",
    "SELECT * FROM kept WHERE a = #",
    "SELECT a FROM kept AS x, kept AS y",
    "SELECT * FROM sound WHERE sound MATCH 'AND'",
    "SELECT * FROM sound WHERE sound MATCH '\"'",
    "ROLLBACK",
    "RELEASE nothing",
]


@pytest.fixture
def db(tmp_path: Path) -> apsw.Connection:
    """A database in which one table of words lost its settings, and one text is no JSON."""
    path = str(tmp_path / "edge.db")
    with apsw.Connection(path) as made:
        made.execute(
            "CREATE TABLE kept (a); INSERT INTO kept VALUES ('{');"
            "CREATE VIRTUAL TABLE words USING fts5(a); CREATE VIRTUAL TABLE sound USING fts5(a);"
            "DELETE FROM words_config"
        )
    made.close()
    return apsw.Connection(path)


KINDS: dict[type[Exception], tuple[list[str], str | None]] = {
    DamagedStore: (DAMAGE, r"edge.db does not hold what it should .*`edge check` says what is lost"),
    InputError: (LIMITS, r"too large for the database: SQLite says .*|memory limit has room"),
    apsw.SQLError: (BUGS, None),
}
"""What an error of SQLite becomes: damage, a limit, or a fault of the program, which stays one."""


@pytest.mark.parametrize(
    ("statement", "kind"),
    [(statement, kind) for kind, (statements, _) in KINDS.items() for statement in statements],
    ids=lambda value: str(value)[:20],
)
def test_errors_of_sqlite_are_told_apart(db: apsw.Connection, statement: str, kind: type[Exception]) -> None:
    with pytest.raises(kind, match=KINDS[kind][1]):
        run(db, statement)


def run(db: apsw.Connection, statement: str) -> None:
    with translated(PATH, "edge", 5.0):
        db.execute(statement).fetchall()


def test_a_second_writer_is_told_after_a_while(tmp_path: Path) -> None:
    first, second = (WriterLock(tmp_path / "writer.lock") for _ in range(2))
    with first(), first():
        with pytest.raises(StorageError, match="another process has been changing"), second(0.1):
            pass
        refused: list[str] = []

        def enter() -> None:
            try:
                with first(0.1):
                    pass
            except StorageError as error:
                refused.append(str(error))

        thread = threading.Thread(target=enter)
        thread.start()
        thread.join()
        assert "another thread has been changing" in refused[0]
    with second():
        pass


@pytest.mark.parametrize("in_the_way", ["folder", "text"])
def test_a_file_that_is_no_lock_is_named(tmp_path: Path, in_the_way: str) -> None:
    path = tmp_path / "writer.lock"
    if in_the_way == "folder":
        path.mkdir()
    else:
        path.write_text("not a database, and longer than a header of a hundred bytes would be " * 3)
    with pytest.raises(StorageError, match=r"writer\.lock cannot be"), WriterLock(path)():
        pass


def test_to_lock_writes_nothing(tmp_path: Path) -> None:
    """So that a full disk does not keep anybody from removing data."""
    path = tmp_path / "writer.lock"
    for _ in range(2):
        with WriterLock(path)():
            assert [(file.name, file.stat().st_size) for file in tmp_path.iterdir()] == [(path.name, 0)]
        assert [(file.name, file.stat().st_size) for file in tmp_path.iterdir()] == [(path.name, 0)]


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
