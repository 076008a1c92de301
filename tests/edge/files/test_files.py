"""Files and folders that users name, files that are written whole, and files with a checksum."""

from __future__ import annotations

import io
import logging
import os
import random
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from naive.program import printed

from edge.errors import CorruptBlock, StorageError
from edge.files import named_file, sealed
from edge.files.named_file import make_folder, open_input, open_output, read_input, write_all

has_pipes = pytest.mark.skipif(os.name == "nt", reason="Windows has no pipes among its files")


def test_a_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"one\ntwo\n")
    assert read_input(tmp_path / "a") == b"one\ntwo\n"
    with open_input(str(tmp_path / "a")) as file:
        assert list(file) == [b"one\n", b"two\n"]
        file.seek(0)
        assert os.get_blocking(file.fileno())
    for name in ("absent", "", "a\0b"):
        with pytest.raises(OSError, match=r"No such file|directory|null"):
            read_input(f"{tmp_path}/{name}")
    lines = io.BytesIO(b"short\n" + b"x" * 300_000 + b"\n\nlast")  # each is read in bounded memory
    read = [named_file.read_line(lines, 10) for _ in range(5)]
    assert read == [(b"short\n", 6), (b"x" * 10, 300_001), (b"\n", 1), (b"last", 4), (b"", 0)]


@has_pipes
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's path may not be long
    os.mkfifo("pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        for path in ("/dev/zero", "/dev/tty", ".", "pipe", "socket"):
            with pytest.raises(OSError, match=r"not a file|directory|No such device"):
                open_input(path, pipes=False)
    monkeypatch.setattr(named_file, "WRITER_SECONDS", 0.1)
    with pytest.raises(OSError, match=r"nobody has written into it for 0\.1 s"):
        open_input("pipe")


@has_pipes
@pytest.mark.parametrize("pause", [0.0, 0.2])
def test_a_pipe_that_somebody_writes_into_is_read_to_its_end(tmp_path: Path, pause: float) -> None:
    """Also if the writer opens it late, or writes nothing at first."""
    os.mkfifo(tmp_path / "pipe")
    data = b"line\n" * 50_000

    def write() -> None:
        time.sleep(pause)
        with open(tmp_path / "pipe", "wb") as file:
            time.sleep(pause)
            file.write(data)

    writer = threading.Thread(target=write)
    writer.start()
    with open_input(tmp_path / "pipe") as file:
        assert b"".join(file) == data
    writer.join()


def test_stdin_is_read_up_to_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    for size, fits in ((10, True), (11, False)):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"x" * size)))
        if fits:
            assert named_file.read_stdin(10) == b"x" * size
        else:
            with pytest.raises(OSError, match="larger than 10 bytes"):
                named_file.read_stdin(10)


posix = pytest.mark.skipif(os.name == "nt", reason="Windows has no devices among its files")


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("name", ["out", "n" * (255 if os.name != "nt" else 100)])
def test_a_file_appears_when_it_is_complete(tmp_path: Path, name: str) -> None:
    """Also one whose name is as long as the file system allows."""
    target = tmp_path / name
    with open_output(target) as file:
        file.write(b"new")
        assert not target.exists()
    assert target.read_bytes() == b"new"
    assert names(tmp_path) == {name}


def test_what_fails_leaves_the_older_file(tmp_path: Path) -> None:
    target = tmp_path / "out"
    target.write_bytes(b"old")

    def fail() -> None:
        with open_output(target) as file:
            file.write(b"new")
            raise OSError("full")

    with pytest.raises(OSError, match="full"):
        fail()
    assert target.read_bytes() == b"old"
    assert names(tmp_path) == {"out"}


@posix
def test_a_link_and_the_rights_stay(tmp_path: Path) -> None:
    target, link = tmp_path / "out", tmp_path / "link"
    target.write_bytes(b"old")
    target.chmod(0o640)
    link.symlink_to(target)
    with open_output(link) as file:
        file.write(b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


@posix
def test_a_device_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    link = tmp_path / "null"
    link.symlink_to("/dev/null")  # if this test fails, only the link is lost, or the user has no right to do harm
    if os.geteuid() == 0:
        link.unlink()
        os.mknod(link, 0o666 | stat.S_IFCHR, os.stat("/dev/null").st_rdev)
    with open_output(link) as file:
        file.write(b"new")
    assert stat.S_ISCHR(link.stat().st_mode)


@posix
@pytest.mark.parametrize("redirected", [False, True])
def test_an_open_file_is_written_to_and_not_replaced(tmp_path: Path, redirected: bool) -> None:
    program = (
        "from edge.files.named_file import open_output\nwith open_output('/dev/stdout') as file: file.write(b'new')"
    )
    if not redirected:
        assert printed(program) == "new"
        return
    target = tmp_path / "out"
    with open(target, "wb") as out:
        subprocess.run([sys.executable, "-c", program], stdout=out, check=True)
        assert os.fstat(out.fileno()).st_ino == target.stat().st_ino
    assert target.read_bytes() == b"new"


def test_a_file_that_takes_a_few_bytes_at_a_time_gets_all() -> None:
    class Slow:
        taken = b""

        def write(self, data: memoryview) -> int | None:
            if len(self.taken) % 7 == 3:
                self.taken += bytes(data[:1])
                return 1
            self.taken += bytes(data[:4])
            return len(data[:4])

    file = Slow()
    write_all(file, bytes(range(200)))
    assert file.taken == bytes(range(200))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=12,
)
DOCUMENTS = st.dictionaries(st.text().filter(lambda key: key != sealed.CHECKSUM), VALUES)


@given(DOCUMENTS, st.data())
def test_what_was_sealed_comes_back_and_no_damage_goes_unnoticed(
    content: dict[str, object], data: st.DataObject
) -> None:
    whole = sealed.sealed(content)
    assert sealed.unsealed(whole) == content
    how = data.draw(st.sampled_from(["flip", "cut", "insert", "swap"]))
    at = data.draw(st.integers(0, len(whole) - 1))
    if how == "flip":
        damaged = whole[:at] + bytes([whole[at] ^ 1 << data.draw(st.integers(0, 7))]) + whole[at + 1 :]
    elif how == "cut":
        damaged = whole[:at]
    elif how == "insert":
        damaged = whole[:at] + data.draw(st.sampled_from([b" ", b"\n", b"0", b'"', b"\x00"])) + whole[at:]
    else:
        damaged = whole[at:] + whole[:at]
    if damaged != whole:
        try:
            sealed.unsealed(damaged)
        except ValueError:
            return
        pytest.fail("the damage went unnoticed")


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"7", b"\xff", b"[" * 100_000, b'{"sha256": 5}', b'{"a": NaN}'])
def test_what_was_never_sealed_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "table").write_bytes(data)
    with pytest.raises(CorruptBlock, match="table is damaged: "):
        sealed.read_sealed(tmp_path / "table")


def test_a_file_that_cannot_be_read_or_written_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(StorageError, match="folder cannot be read: "):
        sealed.read_sealed(tmp_path / "folder")
    with pytest.raises(StorageError, match="folder cannot be written: "):
        sealed.write_sealed(tmp_path / "folder", {})
    assert os.listdir(tmp_path) == ["folder"]
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match="table cannot be written: "):
        sealed.write_sealed(tmp_path / "file" / "table", {})
    for nothing in ("nothing", "file/nothing"):
        assert sealed.read_sealed(tmp_path / nothing) is None


def test_the_file_is_flushed_before_it_gets_its_name_and_the_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    rename, fsync = os.replace, os.fsync

    def noted(descriptor: int) -> None:
        steps.append("folder" if os.path.isdir(os.readlink(f"/proc/self/fd/{descriptor}")) else "file")
        fsync(descriptor)

    if sys.platform.startswith("linux"):
        monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(os, "replace", lambda a, b: steps.append(Path(b).name) or rename(a, b))
    sealed.replace(tmp_path / "deep" / "table", b"x")
    assert steps == (["file", "table", "folder"] if sys.platform.startswith("linux") else ["table"])
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["table"]


def test_unfinished_files_of_processes_that_are_no_more_are_removed(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for owner in (gone.pid, os.getppid()):
        (tmp_path / f".table.{owner}").write_bytes(b"half")
    (tmp_path / ".table.bak").write_bytes(b"another program's")
    sealed.replace(tmp_path / "table", b"x")
    assert {path.name for path in tmp_path.iterdir()} == {"table", f".table.{os.getppid()}", ".table.bak"}


def test_a_damaged_table_is_said_once_and_made_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "table"
    sealed.remember(path, {"a": 1})
    assert sealed.recall(path, "the measured times") == {"a": 1}
    data = bytearray(path.read_bytes())
    data[random.Random(0).randrange(len(data))] ^= 4
    path.write_bytes(data)
    with caplog.at_level(logging.WARNING):
        assert sealed.recall(path, "the measured times") == {}
        assert sealed.recall(path, "the measured times") == {}
    (line,) = caplog.messages
    assert line.startswith(f"edge: {path} is damaged: ")
    assert line.endswith("; the measured times are found out anew")
    assert not path.exists()
    path.mkdir()  # where nothing can be kept nothing is
    sealed.remember(path, {})
    assert sealed.recall(path, "the measured times") == {}
    assert "cannot be read" in caplog.text


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name, place in (("DATA", "data"), ("CONFIG", "config"), ("STATE", "state"), ("CACHE", "cache")):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / "new" / place))
    before = os.umask(0o022)
    yield tmp_path
    os.umask(before)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


@posix
@pytest.mark.skipif(sys.platform == "darwin", reason="the folders lie elsewhere there")
@pytest.mark.parametrize("place", ["data", "config", "state", "cache"])
def test_folders_among_the_users_own_are_for_one(home: Path, place: str) -> None:
    make_folder(home / "new" / place / "edge-rag" / "a" / "b")
    for folder in ("new", f"new/{place}", f"new/{place}/edge-rag", f"new/{place}/edge-rag/a/b"):
        assert mode(home / folder) == 0o700, folder
    make_folder(home / "new" / place / "other")
    assert mode(home / "new" / place / "other") == 0o755


@posix
def test_folders_elsewhere_follow_the_users_mask(home: Path) -> None:
    make_folder(home / "project" / ".edge")
    assert mode(home / "project") == mode(home / "project" / ".edge") == 0o755
    make_folder(home / "project" / ".edge")
    (home / "file").touch()
    for place in ("file", "file/below"):
        with pytest.raises(OSError, match="irectory"):
            make_folder(home / place)
