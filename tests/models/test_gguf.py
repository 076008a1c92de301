"""GGUF files: what is read of them, and copies."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from making.random_gguf import RandomModel

from edge.errors import ModelError
from edge.models.gguf_file import GGUFFile, GGUFTensor, copy_in_bytes
from edge.runtimes.generation.llama_states import file_sha256


def test_reads_what_was_written(gguf: Callable[..., Path]) -> None:
    assert GGUFFile.open(gguf(template=None)).chat_template is None
    path = gguf(layers=3, context=777, precision="Q8_0")
    file = GGUFFile.open(path)
    assert file.architecture == "llama"
    assert file.trained_context == 777
    assert file.value("block_count") == 3
    assert file.value("nothing", "default") == "default"
    assert file.chat_template is not None
    assert file.metadata["tokenizer.ggml.tokens"] == 1024
    by_name = {tensor.name: tensor for tensor in file.tensors}
    assert len(by_name) == 3 + 9 * 3
    assert by_name["token_embd.weight"].shape == (64, 1024)
    assert by_name["token_embd.weight"].type == "Q8_0"
    assert by_name["token_embd.weight"].nbytes == 64 * 1024 // 32 * 34
    last = file.tensors[-1]
    assert last.offset + last.nbytes <= file.nbytes == path.stat().st_size
    norm = by_name["output_norm.weight"]  # offsets are from the file's start: norms lie around 1
    values = struct.unpack_from(f"<{norm.shape[0]}f", path.read_bytes(), norm.offset)
    assert 0.9 < sum(values) / len(values) < 1.1


def test_missing_and_foreign_files(gguf: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="there is no file"):
        GGUFFile.open(tmp_path / "none.gguf")
    with pytest.raises(ModelError, match="is a folder"):
        GGUFFile.open(tmp_path)
    other = tmp_path / "other.gguf"
    for content, message in (
        (b"", "not a GGUF file"),
        (b"<!DOCTYPE html>", "not a GGUF file"),
        (b"GGUF", "truncated"),
        (b"GGUF" + struct.pack("<I", 1), "version 1"),
        (b"GGUF" + struct.pack(">I", 3), "version 50331648"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0), "claims 1,152,921,504,606,846,976 tensors"),
    ):
        other.write_bytes(content)
        with pytest.raises(ModelError, match=message):
            GGUFFile.open(other)
    data = gguf().read_bytes()
    other.write_bytes(data[:-5000])
    with pytest.raises(ModelError, match=rf"ends at byte [\d,]+ but the file has {len(data) - 5000:,}"):
        GGUFFile.open(other)


@given(share=st.floats(0, 1, exclude_max=True))
def test_every_truncation_is_seen(
    gguf: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory, share: float
) -> None:
    data = gguf().read_bytes()
    short = tmp_path_factory.mktemp("short") / "m.gguf"
    end = max(tensor.offset + tensor.nbytes for tensor in GGUFFile.open(gguf()).tensors)
    short.write_bytes(data[: int(end * share)])
    with pytest.raises(ModelError, match=r"truncated|not a GGUF file|claims|cannot be"):
        GGUFFile.open(short)


@given(st.data())
def test_damage_is_refused_or_harmless(
    gguf: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """With any bytes in the header, reading it ends, and raises nothing else."""
    content = bytearray(gguf().read_bytes())
    header = GGUFFile.open(gguf()).tensors[0].offset
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, header - 1))] = data.draw(st.integers(0, 255))
    damaged = tmp_path_factory.mktemp("damaged") / "m.gguf"
    damaged.write_bytes(content)
    with suppress(ModelError):
        file = GGUFFile.open(damaged)
        assert all(tensor.offset + tensor.nbytes <= file.nbytes for tensor in file.tensors)


class Changed(RandomModel):
    """A model whose header says something else under some keys; None leaves a key out."""

    changes: dict[str, tuple[int, Any] | None]

    def metadata(self) -> Iterator[tuple[str, int, Any]]:
        for key, kind, value in RandomModel.metadata(self):
            if key not in self.changes:
                yield key, kind, value
        yield from ((key, *change) for key, change in self.changes.items() if change is not None)


WITHOUT_A_BYTE = [*(f"<0x{byte:02X}>" for byte in range(256) if byte != 10), *(f"t{n}" for n in range(769))]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"general.architecture": None}, "architecture"),
        ({"llama.context_length": None}, "llama.context_length is None"),
        ({"llama.context_length": (4, 1)}, "llama.context_length is 1"),
        ({"llama.block_count": (4, 0)}, "llama.block_count is 0"),
        ({"llama.block_count": (4, 4096)}, "llama.block_count is 4096"),
        ({"llama.attention.layer_norm_rms_epsilon": (6, float("nan"))}, "epsilon is nan"),
        ({"tokenizer.ggml.model": (8, "no_vocab")}, "no_vocab"),
        ({"tokenizer.ggml.tokens": (9, (8, ["a"] * 1024))}, "1,024 tokens are equal"),
        ({"tokenizer.ggml.tokens": (9, (8, WITHOUT_A_BYTE))}, "no tokens for 1 of the 256 bytes, such as 0x0A"),
        ({"split.count": (4, 3)}, "3 parts"),
        ({"general.alignment": (4, 33)}, "alignment is 33"),
    ],
)
def test_what_would_end_the_process_is_refused(
    tmp_path: Path, changes: dict[str, tuple[int, Any] | None], message: str
) -> None:
    """Each of these, but for the split, makes llama.cpp 0.3.36 call abort()."""
    model = type("Model", (Changed,), {"changes": changes, "__slots__": ()})()
    with pytest.raises(ModelError, match=message):
        GGUFFile.open(model.write(tmp_path / "m.gguf"))


def test_hash_is_remembered_until_the_file_changes(
    gguf: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf().read_bytes())
    file = GGUFFile.open(path)
    first = file_sha256(file, tmp_path / "cache")
    assert first == file.sha256()
    monkeypatch.setattr(GGUFFile, "sha256", lambda self: "computed anew")
    assert file_sha256(file, tmp_path / "cache") == first
    path.write_bytes(path.read_bytes() + b"\0")
    assert file_sha256(GGUFFile.open(path), tmp_path / "cache") == "computed anew"
    (tmp_path / "cache" / "gguf-hashes.json").write_text("[broken")
    assert file_sha256(file, tmp_path / "cache") == "computed anew"
    assert file_sha256(file, path) == "computed anew", "what cannot be remembered"


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
    name = b"llama.vocab_size"
    before = struct.pack("<Q", len(name)) + name + struct.pack("<II", 4, 1024)
    after = struct.pack("<Q", 17) + b"general.alignment" + struct.pack("<II", 4, 64)
    old.write_bytes(old.read_bytes().replace(before, after))
    with pytest.raises(ModelError, match="alignment"):
        copy_in_bytes(old, tmp_path / "other.gguf")
