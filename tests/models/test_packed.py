"""A pack that is damaged, cut short or of the wrong kind is refused, and the block is named."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
from making.token_rows import token_rows

from edge.blocks import ALIGNMENT, BlockId
from edge.errors import CorruptBlock, ModelError
from edge.models.manifest import FORMAT, PackManifest
from edge.models.pack import pack
from edge.models.packed import PackedModel
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


def test_a_flipped_bit_in_a_row_names_the_row(copy: Path) -> None:
    with PackedModel.open(copy) as model:
        flip(copy / "model.safetensors", model.embedding.offset + 17 * model.embedding.row_nbytes + 3)
        assert model.positions is not None
        flip(copy / "model.safetensors", model.positions.offset + 4 * model.positions.row_nbytes)
        token_rows(model, np.array([16, 18]))
        with pytest.raises(CorruptBlock, match="embedding row 17 is corrupt"):
            token_rows(model, np.array([16, 17]))
        model.position_rows(4)
        with pytest.raises(CorruptBlock, match="positions row 4 is corrupt"):
            model.position_rows(5)
        with pytest.raises(CorruptBlock, match="row"):
            model.verify()


def test_a_flipped_bit_between_two_blocks_is_found(copy: Path) -> None:
    with PackedModel.open(copy) as model:
        ends = sorted(extent.offset + extent.nbytes for extent in model.file.extents.values())
        gap = next(end for end in ends if end % ALIGNMENT)
        flip(copy / "model.safetensors", gap)
        with pytest.raises(CorruptBlock, match=f"corrupt between bytes {gap:,} and"):
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
    manifest, _ = PackManifest.read(copy)
    broken = {**manifest.spec.to_json(), "experts": 8}
    with pytest.raises(ModelError, match="not one this version reads"):
        ModelSpec.from_json(broken)
    assert ModelSpec.from_json(json.loads(json.dumps(manifest.spec.to_json()))) == manifest.spec


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


def test_the_wrong_kind(original: Path) -> None:
    with pytest.raises(ModelError, match="is a reranker, an embedder is needed"):
        PackedModel.open(original, kind="embedder")
    PackedModel.open(original, kind="reranker").close()


def test_a_changed_tokenizer_is_noticed(copy: Path) -> None:
    flip(copy / "tokenizer.json", 200)
    with PackedModel.open(copy) as model, pytest.raises(CorruptBlock, match=r"tokenizer\.json does not match"):
        model.verify()


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
        tensors = model.tensors(block, buffer)
        assert all(np.shares_memory(value, buffer) for value in tensors.values())
        for name, value in model.tensors(block, buffer.data).items():
            np.testing.assert_array_equal(value, tensors[name])
        buffer[:] = 0
        assert not any(value.any() for value in tensors.values())


def test_an_empty_block_has_no_tensors(golden: Path, tmp_path: Path) -> None:
    with pack(golden / "bert-embedder", tmp_path / "pack") as model:
        assert model.file.nbytes(BlockId("head")) == 0
        assert model.load(BlockId("head")) == {}
