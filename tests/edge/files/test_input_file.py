from __future__ import annotations

import io
import os
import socket
import threading
import time
from pathlib import Path

import pytest

from edge.files import input_file
from edge.files.input_file import open_input, read_input

posix = pytest.mark.skipif(os.name == "nt", reason="Windows has no pipes among its files")


def test_a_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"one\ntwo\n")
    assert read_input(tmp_path / "a") == b"one\ntwo\n"
    with open_input(str(tmp_path / "a")) as file:
        assert list(file) == [b"one\n", b"two\n"]
        file.seek(0)
        assert os.get_blocking(file.fileno())


@pytest.mark.parametrize("name", ["absent", "", "a\0b"])
def test_what_is_not_there_is_said(tmp_path: Path, name: str) -> None:
    with pytest.raises(OSError, match=r"No such file|directory|null"):
        read_input(f"{tmp_path}/{name}")


@posix
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's path may not be long
    os.mkfifo("pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        for path in ("/dev/zero", "/dev/tty", ".", "pipe", "socket"):
            with pytest.raises(OSError, match=r"not a file|directory|No such device"):
                open_input(path, pipes=False)


@posix
def test_a_pipe_that_nobody_writes_into_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_file, "WRITER_SECONDS", 0.1)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match=r"nobody has written into it for 0\.1 s"):
        open_input(tmp_path / "pipe")


@posix
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


def test_a_line_is_read_in_bounded_memory() -> None:
    file = io.BytesIO(b"short\n" + b"x" * 300_000 + b"\n\nlast")
    read = [input_file.read_line(file, 10) for _ in range(5)]
    assert read == [(b"short\n", 6), (b"x" * 10, 300_001), (b"\n", 1), (b"last", 4), (b"", 0)]


def test_stdin_is_read_up_to_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    for size, fits in ((10, True), (11, False)):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"x" * size)))
        if fits:
            assert input_file.read_stdin(10) == b"x" * size
        else:
            with pytest.raises(OSError, match="larger than 10 bytes"):
                input_file.read_stdin(10)
