"""Checkpoints and packs that were made to do harm, with valid checksums: one sentence, quickly, and exit code 2."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from making.synth import synth
from safetensors.numpy import load_file, save_file

from edge.blocks import BlockId
from edge.config import Config
from edge.errors import CorruptBlock, ModelError
from edge.files.sealed import CHECKSUM, sealed
from edge.models.manifest import PackManifest
from edge.models.pack import pack
from edge.models.packed import PackedModel
from edge.runtimes.reranker import Reranker

Variant = Callable[..., Path]
DEEP = "[" * 100_000 + "]" * 100_000


def resealed(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Changes a pack's description, and gives it a valid checksum."""
    content = json.loads((folder / "edge.json").read_text())
    del content[CHECKSUM]
    change(content)
    (folder / "edge.json").write_bytes(sealed(content))


def refusal(opening: Callable[[], PackedModel]) -> str:
    """The sentence by which a model is refused; empty if it is not."""
    try:
        opening().close()
    except ModelError as error:
        reason = str(error)
    else:
        return ""
    assert 10 < len(reason) < 600
    assert "\n" not in reason
    return reason


@pytest.mark.parametrize("part", ["spec", "layer", "head"])
@pytest.mark.parametrize("value", [10**5, 10**12, -1, "many", [1], {}, None, True, 1e308, float("nan")])
def test_no_value_of_a_description_breaks_the_program(tmp_path: Path, part: str, value: Any) -> None:
    """Every field with a value of the wrong type or size: refused by name, or a model of another description, which the
    layout of the file contradicts."""
    synth("tiny-bert", tmp_path / "pack").close()
    original = (tmp_path / "pack" / "edge.json").read_bytes()
    spec = json.loads(original)["spec"]
    for field, before in (spec if part == "spec" else spec[part]).items():

        def change(content: dict[str, Any], field: str = field) -> None:
            (content["spec"] if part == "spec" else content["spec"][part])[field] = value

        (tmp_path / "pack" / "edge.json").write_bytes(original)
        resealed(tmp_path / "pack", change)
        reason = refusal(lambda: PackedModel.open(tmp_path / "pack"))
        if not reason:
            assert field.endswith("theta") or value is None or type(value) is type(before) or type(before) is float, (
                field
            )


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content.pop("blocks"),
        lambda content: content.update(blocks=3),
        lambda content: content.update(name=None),
        lambda content: content["blocks"][1].update(offset="0"),
        lambda content: content["blocks"][1].update(nbytes=-5),
        lambda content: content["blocks"].append({"kind": "x", "index": 0, "offset": 0, "nbytes": 10**12, "crc32": 0}),
        lambda content: content["blocks"][1].update(index=[]),
        lambda content: content["tables"].update(embedding={}),
        lambda content: content["tables"]["embedding"].update(rows=10**9),
        lambda content: content["data"].update(nbytes="0"),
        lambda content: content.update(tokenizer=[]),
        lambda content: content["spec"]["layer"].update(activation="mish"),
        lambda content: content["spec"].pop("layer"),
        lambda content: content.update(spec=[]),
    ],
)
def test_a_description_with_wrong_types(tmp_path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    synth("tiny-bert", tmp_path / "pack").close()
    resealed(tmp_path / "pack", change)
    with pytest.raises(ModelError):
        PackedModel.open(tmp_path / "pack")


FILES = ("config.json", "modules.json", "1_Pooling/config.json", "tokenizer_config.json", "sentence_bert_config.json")


@pytest.mark.parametrize("file", [*FILES, "config_sentence_transformers.json", "tokenizer.json"])
@pytest.mark.parametrize("text", [DEEP, '{"a": ' * 50_000 + "1" + "}" * 50_000, "\xff", "3", "[3]", "NaN"])
def test_json_of_any_depth(variant: Variant, tmp_path: Path, file: str, text: str) -> None:
    folder = variant("bert-embedder")
    (folder / file).write_text(text, encoding="latin-1")
    with pytest.raises(ModelError):
        pack(folder, tmp_path / "pack")
    assert not (tmp_path / "pack").exists()


@pytest.mark.parametrize("value", [10**30, -1, "x", [], {}, 1e400, True])
def test_no_value_of_a_config_breaks_the_program(variant: Variant, tmp_path: Path, value: Any) -> None:
    folder = variant("bert-embedder")
    config = json.loads((folder / "config.json").read_text())
    for key in config:
        (folder / "config.json").write_text(json.dumps({**config, key: value}))
        refusal(lambda: pack(folder, tmp_path / "pack"))


def test_a_deeply_nested_manifest_is_corrupt(tmp_path: Path) -> None:
    for depth in (100_000, *range(900, 1000)):  # some can just be read, and not be written again for the checksum
        content = '{"format": "edge-pack", "version": 1, "name": ' + "[" * depth + "]" * depth + "}"
        (tmp_path / "edge.json").write_text(content, encoding="utf-8")
        with pytest.raises(CorruptBlock, match=r"edge\.json is corrupt"):
            PackManifest.read(tmp_path)


def header(tensors: Any) -> bytes:
    text = (tensors if isinstance(tensors, str) else json.dumps(tensors)).encode()
    return struct.pack("<Q", len(text)) + text + bytes(64)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"a": (0, 32), "b": (16, 48)}, "tensors a and b overlap"),
        ({"a": (0, 32), "b": (0, 32)}, "overlap"),
        ({"a": (0.0, 32)}, "whole number"),
        ({"a": ("0", 32)}, "whole number"),
        ({"a": (-8, 24)}, "whole number"),
        ({"a": (0, 10**6)}, "truncated"),
        (DEEP, "broken safetensors header"),
    ],
)
def test_tensors_of_a_checkpoint(variant: Variant, tmp_path: Path, tensors: Any, message: str) -> None:
    folder = variant("bert-embedder")
    if isinstance(tensors, dict):
        places = {name: {"dtype": "F32", "shape": [8], "data_offsets": place} for name, place in tensors.items()}
        (folder / "model.safetensors").write_bytes(header(places))
    else:
        (folder / "model.safetensors").write_bytes(header(tensors))
    with pytest.raises(ModelError, match=message):
        pack(folder, tmp_path / "pack")
    place = {"dtype": "F32", "shape": [2**32, 2**32], "data_offsets": [0, 0]}  # the size of this shape overflows
    (folder / "model.safetensors").write_bytes(header({"a": place}))
    with pytest.raises(ModelError, match="its shape needs"):
        pack(folder, tmp_path / "pack")


def test_a_tensor_in_two_files(variant: Variant, tmp_path: Path) -> None:
    folder = variant("bert-embedder")
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    for name in ("a.safetensors", "b.safetensors"):
        save_file(tensors, folder / name)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}))
    with pytest.raises(ModelError, match="in another file as well"):
        pack(folder, tmp_path / "pack")
    for places in ([], {"x": []}, None):
        index.write_text(json.dumps({"weight_map": places}))
        with pytest.raises(ModelError, match="weight_map"):
            pack(folder, tmp_path / "pack")


@pytest.mark.parametrize("runtime", ["numpy", "onnx"])
@pytest.mark.parametrize("tensor", ["norm1.weight", "norm2.bias", "qkv.scale", "up.bias", "down.scale"])
def test_a_single_nan_in_a_pack_is_an_error(tmp_path: Path, runtime: str, tensor: str) -> None:
    model = synth("tiny-bert", tmp_path / "pack", "int8")
    block = BlockId("layer", 1)
    extent = model.file.extents[block]
    buffer = np.empty(extent.nbytes, np.uint8)
    model.file.read(block, buffer.data)
    model.tensors(block, buffer)[tensor][-1] = np.nan
    model.close()
    with (tmp_path / "pack" / "model.safetensors").open("r+b") as file:
        file.seek(extent.offset)
        file.write(buffer.tobytes())

    def change(content: dict[str, Any]) -> None:
        for item in content["blocks"]:
            if (item["kind"], item["index"]) == ("layer", 1):
                item["crc32"] = zlib.crc32(buffer)

    resealed(tmp_path / "pack", change)
    reranker = Reranker(tmp_path / "pack", config=Config(memory=10**11, runtime=runtime))
    with reranker, pytest.raises(ModelError, match=f"{tensor} of layer.* NaN or infinite"):
        reranker.rank("a", ["word1", "word2 word3"])
