"""A pack appears whole or not at all, even if its making is interrupted."""

from __future__ import annotations

import errno
import io
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from edge.errors import StorageError
from edge.models import manifest
from edge.models.manifest import is_pack
from edge.models.pack import PackWriter, pack
from edge.models.packed import PackedModel
from edge.models.registry import installed, resolve

POSIX = pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


class FullDisk(io.FileIO):
    """A file on a disk that takes `room` bytes more."""

    room = 50_000

    def write(self, data: object) -> int:
        size = len(memoryview(data).cast("B"))  # type: ignore[arg-type]
        if size > self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.room -= size
        return super().write(data)  # type: ignore[arg-type]


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    create = PackWriter.__init__

    def create_on_full_disk(self: PackWriter, path: Path, *rest: object) -> None:
        create(self, path, *rest)  # type: ignore[arg-type]
        self._file.close()
        self._file = FullDisk(path, "ab")

    monkeypatch.setattr(PackWriter, "__init__", create_on_full_disk)


@pytest.mark.usefixtures("full_disk")
def test_a_full_disk_leaves_nothing(golden: Path, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"failed after [\d,]+ of [\d,]+ bytes: No space left"):
        pack(golden / "bert-embedder", tmp_path / "pack", "fp32")
    assert names(tmp_path) == []


def test_a_full_disk_keeps_the_old_pack(golden: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    with pack(golden / "bert-embedder", tmp_path / "pack", "fp32") as model:
        fingerprint = model.fingerprint
    request.getfixturevalue("full_disk")
    with pytest.raises(StorageError, match="No space left"):
        pack(golden / "bert-embedder", tmp_path / "pack", "fp16")
    assert names(tmp_path) == ["pack"]
    with PackedModel.open(tmp_path / "pack") as model:
        assert model.fingerprint == fingerprint
        model.verify()


@POSIX
@pytest.mark.parametrize("existing", [False, True])
def test_a_kill_leaves_the_old_pack_or_none(golden: Path, tmp_path: Path, existing: bool) -> None:
    target = tmp_path / "pack"
    if existing:
        pack(golden / "bert-reranker", target, "fp16").close()
    program = f"""
        import time
        from edge.models.pack import pack
        def progress(done, total):
            if done > total // 2:
                print("half", flush=True)
                time.sleep(60)
        pack({str(golden / "bert-reranker")!r}, {str(target)!r}, "int8", progress=progress)
    """
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, cwd=tmp_path)
    assert process.stdout is not None
    assert process.stdout.readline() == b"half\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    abandoned = [name for name in names(tmp_path) if "packing" in name]
    assert len(abandoned) == 1
    if existing:
        with PackedModel.open(target) as model:
            assert model.spec.layer.precision == "fp16"
            model.verify()
    else:
        assert not target.exists()
    # The next attempt succeeds and clears away the files of the killed one.
    with pack(golden / "bert-reranker", target, "int8") as model:
        model.verify()
    assert names(tmp_path) == ["pack"]


def test_a_kill_between_the_two_renames_is_recovered(golden: Path, tmp_path: Path) -> None:
    target = tmp_path / "pack"
    pack(golden / "bert-reranker", target).close()
    target.rename(tmp_path / ".pack.previous")
    PackedModel.open(target).close()
    assert names(tmp_path) == ["pack"]


@pytest.mark.parametrize("address", ["path", "relative path", "name", "list", "pull", "pack"])
def test_a_kill_between_the_two_renames_is_recovered_however_the_model_is_addressed(
    golden: Path, tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "own"
    pack(golden / "bert-reranker", target).close()
    target.rename(tmp_path / ".own.previous")
    monkeypatch.chdir(tmp_path)
    if address == "list":
        assert ("own", target) in list(installed(tmp_path))
    elif address == "pull":  # a pull of a known name tests this before it fetches
        assert is_pack(target)
    elif address == "pack":
        pack(golden / "bert-reranker", target).close()
    else:
        name = {"path": target, "relative path": "./own", "name": "own"}[address]
        elsewhere = tmp_path if address == "name" else tmp_path / "empty"
        resolve(name, directory=elsewhere).close()
    with PackedModel.open(target) as model:
        model.verify()
    assert not (tmp_path / ".own.previous").exists()


def test_a_reader_that_takes_the_old_pack_back_does_not_stop_the_new_one(
    golden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "own"
    pack(golden / "bert-reranker", target, "fp16").close()
    rename, readers = os.rename, iter(range(2))

    def rename_with_a_reader(source: Path, to: Path) -> None:
        rename(source, to)
        if Path(to).name == ".own.previous" and next(readers, None) is not None:
            PackedModel.open(target).close()

    monkeypatch.setattr(manifest.os, "rename", rename_with_a_reader)
    with pack(golden / "bert-reranker", target, "int8") as model:
        assert model.spec.layer.precision == "int8"
    assert names(tmp_path) == ["own"]


def test_a_failed_swap_keeps_the_old_pack(golden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "pack"
    pack(golden / "bert-reranker", target, "fp16").close()
    rename = os.rename

    def refuse(source: Path, place: Path) -> None:
        if "packing" in str(source):
            raise OSError(errno.EACCES, "Permission denied")
        rename(source, place)

    monkeypatch.setattr(manifest.os, "rename", refuse)
    with pytest.raises(StorageError, match="cannot be put in place"):
        pack(golden / "bert-reranker", target, "int8")
    monkeypatch.undo()
    assert names(tmp_path) == ["pack"]
    with PackedModel.open(target) as model:
        assert model.spec.layer.precision == "fp16"


def test_what_is_no_pack_is_not_overwritten(golden: Path, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("years of work")
    with pytest.raises(StorageError, match="not a packed model"):
        pack(golden / "bert-reranker", tmp_path / "home")
    assert names(tmp_path / "home") == ["thesis.tex"]
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match="not a packed model"):
        pack(golden / "bert-reranker", tmp_path / "file")
    (tmp_path / "empty").mkdir()
    pack(golden / "bert-reranker", tmp_path / "empty").close()


@POSIX
def test_a_place_that_cannot_be_written(golden: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match="cannot be created"):
        pack(golden / "bert-reranker", tmp_path / "file" / "pack")


def test_running_packs_are_left_alone(golden: Path, tmp_path: Path) -> None:
    running = tmp_path / f".pack.packing-{os.getppid()}"
    running.mkdir()
    pack(golden / "bert-reranker", tmp_path / "pack").close()
    assert running.is_dir()


def test_the_files_of_a_killed_pack_are_cleared_whatever_its_name(golden: Path, tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    other = f".pack1.packing-{process.pid}"
    for name in (f".pack[1].packing-{process.pid}", other):
        (tmp_path / name).mkdir()
    pack(golden / "bert-reranker", tmp_path / "pack[1]").close()
    assert names(tmp_path) == [other, "pack[1]"]
