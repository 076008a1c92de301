"""A sealed document is read as it was written, byte for byte, or it is refused; a file appears whole or not at all."""

from __future__ import annotations

import logging
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.errors import CorruptBlock, StorageError
from edge.files import sealed

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


def test_what_is_not_there_is_none(tmp_path: Path) -> None:
    assert sealed.read_sealed(tmp_path / "nothing") is None
    (tmp_path / "file").write_bytes(b"")
    assert sealed.read_sealed(tmp_path / "file" / "nothing") is None


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


def test_where_nothing_can_be_kept_nothing_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "table").mkdir()
    sealed.remember(tmp_path / "table", {})
    assert sealed.recall(tmp_path / "table", "the measured times") == {}
    assert "cannot be read" in caplog.text
    assert (tmp_path / "table").is_dir()
