"""The copy of a GGUF file with its 4-bit weights as bytes, against loops over their values."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from making.random_gguf import RandomModel

from edge.errors import ModelError
from edge.models.gguf_copy import copy_in_bytes
from edge.models.gguf_file import GGUFFile, GGUFTensor


def stored(path: Path, tensor: GGUFTensor) -> bytes:
    return path.read_bytes()[tensor.offset : tensor.offset + tensor.nbytes]


def halves(block: bytes) -> tuple[list[float], float]:
    """The weights of a block of type Q4_1, and how far a copy of one may be from it."""
    step, least = struct.unpack("<2e", block[:4])
    weights = [step * code + least for code in (*(byte & 15 for byte in block[4:]), *(byte >> 4 for byte in block[4:]))]
    largest = max(map(abs, weights))
    return weights, largest / 127 / 2 + largest / 1024  # a step has eleven bits


def whole(block: bytes) -> list[float]:
    (step,) = struct.unpack("<e", block[:2])
    return [step * code for code in struct.unpack("<32b", block[2:])]


def test_weights_and_header_are_those_of_the_file(tmp_path: Path) -> None:
    old, new = tmp_path / "old.gguf", tmp_path / "new.gguf"
    RandomModel(precision="Q4_1", hidden=96, heads=3, kv_heads=3, layers=1, ffn=160).write(old)
    copy_in_bytes(old, new)
    before, after = GGUFFile.open(old), GGUFFile.open(new)
    assert {**before.metadata, "general.file_type": 7} == after.metadata
    assert [(one.name, one.shape) for one in before.tensors] == [(one.name, one.shape) for one in after.tensors]
    kinds = set()
    for one, other in zip(before.tensors, after.tensors, strict=True):
        kinds.add((one.type, other.type))
        data, copied = stored(old, one), stored(new, other)
        if one.type == "F32":
            assert data == copied
            continue
        assert len(data) // 20 == len(copied) // 34
        for block in range(0, len(data) // 20, 7):
            weights, apart = halves(data[20 * block : 20 * block + 20])
            found = whole(copied[34 * block : 34 * block + 34])
            assert max(abs(x - y) for x, y in zip(weights, found, strict=True)) <= apart
    assert kinds == {("F32", "F32"), ("Q4_1", "Q8_0")}


def test_a_block_of_zeros_stays_one(tmp_path: Path) -> None:
    old, new = tmp_path / "old.gguf", tmp_path / "new.gguf"
    RandomModel(precision="Q4_1", layers=1).write(old)
    place = next(one for one in GGUFFile.open(old).tensors if one.type == "Q4_1")
    data = bytearray(old.read_bytes())
    data[place.offset : place.offset + 20] = bytes(20)
    old.write_bytes(data)
    copy_in_bytes(old, new)
    assert stored(new, GGUFFile.open(new).tensors[0])[:34] == bytes(34)


def test_another_alignment_is_refused(tmp_path: Path) -> None:
    old = RandomModel(precision="Q4_1", layers=1).write(tmp_path / "old.gguf")
    name = b"llama.vocab_size"
    old.write_bytes(
        old.read_bytes().replace(
            struct.pack("<Q", len(name)) + name + struct.pack("<II", 4, 1024),
            struct.pack("<Q", 17) + b"general.alignment" + struct.pack("<II", 4, 64)[:8],
        )
    )
    with pytest.raises(ModelError, match="alignment"):
        copy_in_bytes(old, tmp_path / "new.gguf")
