"""Files that a user names are written whole or not at all, and nothing but a file is ever replaced."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from naive.program import printed

from edge.files.output_file import open_output, write_all

posix = pytest.mark.skipif(os.name == "nt", reason="Windows has no devices among its files")


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_file_appears_when_it_is_complete(tmp_path: Path) -> None:
    target = tmp_path / "out"
    with open_output(target) as file:
        file.write(b"new")
        assert not target.exists()
    assert target.read_bytes() == b"new"
    assert names(tmp_path) == {"out"}


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


def test_a_name_may_be_as_long_as_the_file_system_allows(tmp_path: Path) -> None:
    target = tmp_path / ("n" * (255 if os.name != "nt" else 100))
    with open_output(target) as file:
        file.write(b"new")
    assert target.read_bytes() == b"new"


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
        "from edge.files.output_file import open_output\nwith open_output('/dev/stdout') as file: file.write(b'new')"
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
