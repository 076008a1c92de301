"""A pack equals its checkpoint, for every architecture, precision and spelling of the names."""

from __future__ import annotations

import json
import math
import shutil
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from making.random_tokenizer import wordpiece
from making.synth import SHAPES, RandomWeights
from making.token_rows import token_rows
from naive.program import printed
from safetensors.numpy import load_file, save_file

from edge.blocks import ALIGNMENT, BlockId
from edge.errors import ModelError
from edge.models import pack as packing
from edge.models.architectures import family_of
from edge.models.pack import pack
from edge.models.packed import PackedModel
from edge.models.spec import HeadSpec, Precision

Variant = Callable[..., Path]

BERT_PARTS = {
    "qkv": ["attention.self.query", "attention.self.key", "attention.self.value"],
    "out": ["attention.output.dense"],
    "up": ["intermediate.dense"],
    "down": ["output.dense"],
}
QWEN_PARTS = {
    "qkv": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    "out": ["self_attn.o_proj"],
    "up": ["mlp.gate_proj", "mlp.up_proj"],
    "down": ["mlp.down_proj"],
}
CASES = {
    "bert-reranker": ("bert.encoder.layer.{}.", BERT_PARTS, "bert.embeddings.word_embeddings.weight"),
    "xlm-roberta-reranker": ("roberta.encoder.layer.{}.", BERT_PARTS, "roberta.embeddings.word_embeddings.weight"),
    "bert-embedder": ("encoder.layer.{}.", BERT_PARTS, "embeddings.word_embeddings.weight"),
    "qwen3-reranker": ("model.layers.{}.", QWEN_PARTS, "model.embed_tokens.weight"),
    "qwen3-embedder": ("layers.{}.", QWEN_PARTS, "embed_tokens.weight"),
}


def expected_matrix(source: dict[str, np.ndarray], prefix: str, parts: list[str], kind: str = "weight") -> np.ndarray:
    return np.concatenate([source[f"{prefix}{part}.{kind}"] for part in parts]).T


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
def test_values_equal_the_checkpoint(golden: Path, tmp_path: Path, name: str, precision: Precision) -> None:
    prefix, parts, table = CASES[name]
    source = load_file(golden / name / "model.safetensors")
    with pack(golden / name, tmp_path / "pack", precision) as model:
        for layer, block in enumerate(model.layer_blocks):
            tensors = model.load(block)
            assert list(tensors) == [tensor.name for tensor in model.spec.layer.tensors()]
            for matrix, names in parts.items():
                wanted = expected_matrix(source, prefix.format(layer), names)
                found = tensors[f"{matrix}.weight"].astype(np.float32)
                if precision == "int8":
                    scale = tensors[f"{matrix}.scale"]
                    np.testing.assert_allclose(scale, np.abs(wanted).max(0) / 127, rtol=1e-6)
                    assert np.all(np.abs(found * scale - wanted) <= scale / 2 * 1.0001)
                    assert np.abs(found).max() == 127
                else:
                    np.testing.assert_allclose(found, wanted, rtol=0 if precision == "fp32" else 1e-3, atol=1e-7)
                if model.spec.layer.bias:
                    bias = expected_matrix(source, prefix.format(layer), names, "bias")
                    np.testing.assert_array_equal(tensors[f"{matrix}.bias"], bias)
        rows = token_rows(model, np.arange(model.spec.vocab))
        step = np.abs(source[table]).max(1, keepdims=True) / 127
        tolerance = {"fp32": 0, "fp16": 1e-3, "int8": step / 2 * 1.0001}[precision]
        assert np.all(np.abs(rows - source[table]) <= tolerance)
        model.verify()
        stored = load_file(tmp_path / "pack" / "model.safetensors")
        for block, start in [(BlockId("head"), "head."), *((b, f"layers.{b.index}.") for b in model.layer_blocks)]:
            for tensor, value in model.load(block).items():
                np.testing.assert_array_equal(value, stored[f"{start}{tensor}"])
        np.testing.assert_array_equal(model.embedding_checksums(), stored["embedding.crc32"])
        assert stored["embedding.weight"].dtype == model.embedding_dtype
        assert (model.embedding_scales() is None) == ("embedding.scale" not in stored)
        assert all(extent.offset % ALIGNMENT == 0 for extent in model.file.extents.values())
        assert model.embedding.offset % ALIGNMENT == 0 == (model.positions.offset % ALIGNMENT if model.positions else 0)
        layers = [model.file.extents[block] for block in model.layer_blocks]
        assert all(extent.nbytes == model.spec.layer.nbytes for extent in layers)
        assert [extent.offset for extent in layers] == sorted(extent.offset for extent in layers)


def test_positions_of_xlm_roberta_start_after_the_padding_row(golden: Path, tmp_path: Path) -> None:
    source = load_file(golden / "xlm-roberta-reranker" / "model.safetensors")
    with pack(golden / "xlm-roberta-reranker", tmp_path / "pack", "int8") as model:
        assert (model.spec.position_offset, model.spec.max_tokens) == (2, 64)
        table = source["roberta.embeddings.position_embeddings.weight"]
        np.testing.assert_array_equal(model.position_rows(5), table[2:7])
        with pytest.raises(ModelError, match="positions"):
            model.position_rows(65)
        head = model.load(BlockId("head"))
        np.testing.assert_array_equal(head["out.weight"], source["classifier.out_proj.weight"].T)


@pytest.mark.parametrize("tied", [True, False])
def test_yes_and_no_rows(variant: Variant, tmp_path: Path, tied: bool) -> None:
    from tokenizers import Tokenizer

    def untie(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return tensors if tied else {**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"] * 2}

    folder = variant("qwen3-reranker", untie, tie_word_embeddings=tied)
    source = load_file(folder / "model.safetensors")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    with pack(folder, tmp_path / "pack", "int8") as model:
        matrix = source["model.embed_tokens.weight" if tied else "lm_head.weight"]
        rows = [tokenizer.token_to_id("no"), tokenizer.token_to_id("yes")]
        head = model.load(BlockId("head"))
        np.testing.assert_array_equal(head["rows"], matrix[rows])
        np.testing.assert_array_equal(head["norm.weight"], source["model.norm.weight"])


def test_two_labels_become_their_difference(variant: Variant, tmp_path: Path) -> None:
    weight = np.random.default_rng(0).standard_normal((2, 32), np.float32)
    bias = np.array([0.5, -0.25], np.float32)
    folder = variant("bert-reranker", lambda t: {**t, "classifier.weight": weight, "classifier.bias": bias})
    with pack(folder, tmp_path / "pack", "fp32") as model:
        head = model.load(BlockId("head"))
        np.testing.assert_array_equal(head["out.weight"][:, 0], weight[1] - weight[0])
        np.testing.assert_array_equal(head["out.bias"], [-0.75])
    folder = variant("bert-reranker", lambda t: {**t, "classifier.weight": np.ones((3, 32), np.float32)})
    with pytest.raises(ModelError, match="3 labels"):
        pack(folder, tmp_path / "pack")


def test_legacy_names_and_missing_prefix(variant: Variant, golden: Path, tmp_path: Path) -> None:
    def legacy(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        renamed = {
            name.removeprefix("bert.")
            .replace("LayerNorm.weight", "LayerNorm.gamma")
            .replace("LayerNorm.bias", "LayerNorm.beta"): value
            for name, value in tensors.items()
        }
        return {**renamed, "embeddings.position_ids": np.arange(64)[None], "cls.predictions.bias": np.ones(3)}

    pack(variant("bert-reranker", legacy), tmp_path / "legacy", "fp32").close()
    pack(golden / "bert-reranker", tmp_path / "modern", "fp32").close()
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("legacy", "modern")]
    assert files[0] == files[1]


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_half_precision_checkpoints(variant: Variant, tmp_path: Path, dtype: str) -> None:
    folder = variant("bert-embedder")
    path = folder / "model.safetensors"
    source, name = load_file(path), "embeddings.word_embeddings.weight"
    if dtype == "F16":
        save_file({name: value.astype(np.float16) for name, value in source.items()}, path)
        table = source[name].astype(np.float16).astype(np.float32)
    else:  # numpy has no bfloat16: the upper half of an fp32 is one, and the header says so
        save_file({name: (value.view(np.uint32) >> 16).astype(np.uint16) for name, value in source.items()}, path)
        data = path.read_bytes()
        length = int.from_bytes(data[:8], "little")
        header = data[8 : 8 + length].replace(b'"U16"', b'"BF16"')
        path.write_bytes(len(header).to_bytes(8, "little") + header + data[8 + length :])
        table = (source[name].view(np.uint32) >> 16 << 16).view(np.float32)
    with pack(folder, tmp_path / "pack", "fp32") as model:
        np.testing.assert_array_equal(token_rows(model, np.arange(model.spec.vocab)), table)


def test_shards_pack_as_one_file_does(variant: Variant, golden: Path, tmp_path: Path) -> None:
    folder = variant("qwen3-reranker")
    source = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(source)
    shards = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for shard, members in shards.items():
        save_file({name: source[name] for name in members}, folder / shard)
    index = {"weight_map": {name: shard for shard, members in shards.items() for name in members}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    pack(folder, tmp_path / "sharded").close()
    pack(golden / "qwen3-reranker", tmp_path / "single").close()
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("sharded", "single")]
    assert files[0] == files[1]
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ModelError, match="lacks model-00002"):
        pack(folder, tmp_path / "incomplete")


@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize(("slab", "panel"), [(1, 1), (300, 700), (4096, 1 << 20)])
def test_slabs_and_panels_do_not_change_the_pack(
    golden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: Precision, slab: int, panel: int
) -> None:
    pack(golden / "qwen3-reranker", tmp_path / "whole", precision).close()
    monkeypatch.setattr(packing, "SLAB", slab)
    monkeypatch.setattr(packing, "PANEL", panel)
    pack(golden / "qwen3-reranker", tmp_path / "sliced", precision).close()
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "sliced")]
    assert files[0] == files[1]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    "tensor", ["bert.embeddings.word_embeddings.weight", "bert.encoder.layer.1.intermediate.dense.weight"]
)
def test_unusable_weights_are_named(variant: Variant, tmp_path: Path, bad: float, tensor: str) -> None:
    def spoil(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        tensors[tensor][7, 3] = bad
        return tensors

    with pytest.raises(ModelError, match=f"tensor {tensor} has NaN or infinite"):
        pack(variant("bert-reranker", spoil), tmp_path / "pack")
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-bert-reranker"]


def test_columns_of_zeros_of_tiny_values_and_past_fp16(variant: Variant, tmp_path: Path) -> None:
    def flatten(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        tensors["bert.encoder.layer.0.output.dense.weight"][0] = 0
        tensors["bert.encoder.layer.0.output.dense.weight"][1] = 1e-44
        tensors["bert.encoder.layer.0.output.dense.weight"][2, 0] = 1e5
        tensors["bert.embeddings.word_embeddings.weight"][5] = 0
        return tensors

    folder = variant("bert-reranker", flatten)
    with pytest.raises(ModelError, match=r"layer\.0\.output\.dense\.weight has values past fp16"):
        pack(folder, tmp_path / "pack", "fp16")
    with pack(folder, tmp_path / "pack", "int8") as model:
        tensors = model.load(model.layer_blocks[0])
        assert np.all(tensors["down.scale"] > 0)
        assert not tensors["down.weight"][:, 0].any()
        assert not token_rows(model, np.array([5])).any()


def test_checkpoints_that_are_not_there_or_not_whole(variant: Variant, golden: Path, tmp_path: Path) -> None:
    folder = variant("bert-embedder")
    with pytest.raises(ModelError, match="int4"):
        pack(folder, tmp_path / "pack", "int4")  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="is not a folder"):
        pack(tmp_path / "nowhere", tmp_path / "pack")
    shutil.move(folder / "tokenizer.json", tmp_path / "tokenizer.json")
    with pytest.raises(ModelError, match=r"has no tokenizer\.json"):
        pack(folder, tmp_path / "pack")
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match="cannot be read as a tokenizer"):
        pack(folder, tmp_path / "pack")
    shutil.copy(golden / "qwen3-reranker" / "tokenizer.json", folder)
    with pytest.raises(ModelError, match="405 tokens, the embedding table only"):
        pack(folder, tmp_path / "pack")
    shutil.move(folder / "model.safetensors", folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match="pickle"):
        pack(folder, tmp_path / "pack")
    (folder / "pytorch_model.bin").unlink()
    with pytest.raises(ModelError, match=r"has no model\.safetensors"):
        pack(folder, tmp_path / "pack")
    (folder / "config.json").unlink()
    with pytest.raises(ModelError, match=r"has no config\.json"):
        pack(folder, tmp_path / "pack")
    folder = variant("bert-reranker")
    data = (folder / "model.safetensors").read_bytes()
    for keep in (0, 5, 100, 50_000):
        (folder / "model.safetensors").write_bytes(data[:keep])
        with pytest.raises(ModelError, match=r"truncated|incomplete|broken"):
            pack(folder, tmp_path / "pack")


def test_name_origin_sources_and_progress(golden: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    with pack(
        golden / "bert-embedder",
        tmp_path / "pack",
        name="mine",
        head=HeadSpec("first-token"),
        origin={"hub": "a/b"},
        progress=lambda done, total: seen.append((done, total)),
    ) as model:
        assert (model.name, model.kind, model.spec.head.kind) == ("mine", "embedder", "first-token")
        assert model.origin == {"hub": "a/b"}
        assert set(model.sources) >= {"config.json", "model.safetensors", "modules.json", "tokenizer.json"}
        assert seen[-1] == (model.nbytes, model.nbytes)
        assert seen == sorted(seen)
        assert (tmp_path / "pack" / "model.safetensors").stat().st_size == model.nbytes
        fingerprint = model.fingerprint
    with PackedModel.open(tmp_path / "pack") as model:
        assert model.fingerprint == fingerprint
    with pack(golden / "bert-embedder", tmp_path / "other", "fp16") as model:
        assert model.fingerprint != fingerprint


MEGABYTE = 1 << 20


def sparse_checkpoint(folder: Path, **config: int) -> int:
    """A BERT reranker's checkpoint whose file has a size but no content; returns the size."""
    shape = SHAPES["ms-marco-minilm-l6"]
    content = {**shape.config, **config}
    family = family_of(content)
    shapes = RandomWeights(family, family.spec_from_config(content, shape.head, "fp32"), 0).shapes
    header, cursor = {}, 0
    for name, size in shapes.items():
        end = cursor + 4 * math.prod(size)
        header[name] = {"dtype": "F32", "shape": list(size), "data_offsets": [cursor, end]}
        cursor = end
    text = json.dumps(header).encode()
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(content))
    wordpiece(folder / "tokenizer.json", 2000)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + cursor)
    return cursor


def peak_of_packing(folder: Path, precision: str) -> int:
    """High-water mark of RssAnon of a process that packs, in bytes."""
    program = f"""
        from edge.resident import ResidentWatch, small_pages
        small_pages()
        with ResidentWatch(0.002) as watch:
            from edge.models.pack import pack
            pack({str(folder)!r}, {str(folder.parent / "pack")!r}, {precision!r}).close()
        print(watch.high_water)
    """
    return int(printed(program, folder=folder.parent))


@pytest.mark.skipif(sys.platform != "linux", reason="reads RssAnon")
@pytest.mark.parametrize(
    ("precision", "config"),
    [
        # Many layers of 12.6 M weights and a wide table, as in bge-reranker-v2-m3.
        ("int8", {"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16, "vocab_size": 70_000}),
        # One layer of 113 M weights, whose matrices have up to 151 MB: bounded by panels, not by their size.
        (
            "fp16",
            {
                "hidden_size": 3072,
                "intermediate_size": 12288,
                "num_attention_heads": 32,
                "num_hidden_layers": 1,
                "vocab_size": 2000,
            },
        ),
    ],
)
def test_peak_memory_is_far_below_the_checkpoint(tmp_path: Path, precision: str, config: dict[str, int]) -> None:
    """Packing holds a slab, never the model: measured on checkpoints that are sparse files of zeros."""
    size = sparse_checkpoint(tmp_path / "checkpoint", **config)
    assert size > 440 * MEGABYTE
    peak = peak_of_packing(tmp_path / "checkpoint", precision)
    assert peak < 170 * MEGABYTE, f"{peak / MEGABYTE:.0f} MB to pack {size / MEGABYTE:.0f} MB"
