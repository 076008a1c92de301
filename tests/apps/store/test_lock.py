"""One writer at a time; a lock that cannot be had says which it is."""

from __future__ import annotations

import threading
from pathlib import Path

import apsw
import pytest

from edge.apps.store.connections import WriterLock, plain
from edge.errors import StorageError


def test_a_second_writer_is_told_after_a_while(tmp_path: Path) -> None:
    first, second = (WriterLock(tmp_path / "writer.lock", seconds=0.1) for _ in range(2))
    with first(), first():
        with pytest.raises(StorageError, match="another process has been changing"), second():
            pass
        refused: list[str] = []

        def enter() -> None:
            try:
                with first():
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
    lock = WriterLock(path, seconds=0.1)
    with pytest.raises(StorageError, match=r"writer\.lock cannot be"), lock():
        pass


def test_to_lock_writes_nothing(tmp_path: Path) -> None:
    """So that a full disk does not keep anybody from removing data."""
    path = tmp_path / "writer.lock"
    for _ in range(2):
        with WriterLock(path)():
            assert [(file.name, file.stat().st_size) for file in tmp_path.iterdir()] == [(path.name, 0)]
        assert [(file.name, file.stat().st_size) for file in tmp_path.iterdir()] == [(path.name, 0)]


def test_other_threads_run_while_one_waits_for_a_lock(tmp_path: Path) -> None:
    """SQLite waits without the interpreter's lock, so the thread that holds the database goes on and lets go."""
    path = tmp_path / "x.db"
    holder, waiting = plain(path), plain(path)
    holder.execute("CREATE TABLE t(a)")
    waiting.set_busy_timeout(20_000)
    for begin in ("BEGIN IMMEDIATE", "BEGIN EXCLUSIVE"):
        holder.execute(begin)
        timer = threading.Timer(0.2, holder.execute, ["COMMIT"])
        timer.start()
        try:
            waiting.execute(begin)
        except apsw.BusyError:
            pytest.fail("the wait for the lock kept the interpreter's lock")
        waiting.execute("ROLLBACK")
        timer.join()
    holder.close()
    waiting.close()
