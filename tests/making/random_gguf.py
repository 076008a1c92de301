"""A GGUF file of the llama architecture with random weights, for measuring speed, memory and exactness, not quality.

The file is written tensor by tensor, so that a model of any size is made in the memory of one slice of values. The
vocabulary consists of syllables: every text of `words` has as many tokens as words.
"""

from __future__ import annotations

import itertools
import random
import struct
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
import numpy.typing as npt

from edge.models.gguf_file import MAGIC, TYPES

Precision = Literal["F32", "F16", "Q8_0", "Q4_0", "Q4_1"]

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

_ALIGNMENT = 32
_SLICE = 1 << 22
"""The number of values made at a time."""

_FILE_TYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7}
_TYPE_NUMBERS = {name: number for number, (name, _, _) in TYPES.items()}
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6
"""GGUF's numbers for the kinds of tokens."""

U32, F32, BOOL, STRING, LIST, I32 = 4, 6, 7, 8, 9, 5
"""GGUF's numbers for the types of the header's values."""


class GgufFile(ABC):
    """A GGUF file with random values: the names and types of its content, and how they are written."""

    __slots__ = ()
    seed: int

    @abstractmethod
    def metadata(self) -> Iterator[tuple[str, int, Any]]:
        """The key, type and value of every entry of the header."""

    @abstractmethod
    def tensors(self) -> Iterator[tuple[str, tuple[int, ...], str, bool]]:
        """The name, shape and type of each tensor, and whether it is a norm."""

    def write(self, path: str | Path) -> Path:
        tensors = list(self.tensors())
        pairs = list(self.metadata())
        path = Path(path)
        with path.open("wb") as file:
            file.write(MAGIC + struct.pack("<IQQ", 3, len(tensors), len(pairs)))
            for key, kind, value in pairs:
                file.write(_text(key) + struct.pack("<I", kind) + _value(kind, value))
            offset = 0
            for name, shape, precision, _ in tensors:
                number, nbytes = _TYPE_NUMBERS[precision], _nbytes(shape, precision)
                axes = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
                file.write(_text(name) + axes + struct.pack("<IQ", number, offset))
                offset += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
            _pad(file)
            generator = np.random.default_rng(self.seed)
            for _, shape, precision, norm in tensors:
                _write_values(file, generator, shape, precision, norm)
                _pad(file)
        return path


@dataclass(frozen=True, slots=True)
class RandomModel(GgufFile):
    """The shape of a random model of at least 1,024 tokens. The defaults make a tiny one. If `tied`, the output matrix
    is the embedding table; without a `template` the file has none."""

    vocabulary: int = 1024
    context: int = 2048
    hidden: int = 64
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    ffn: int = 128
    precision: Precision = "F32"
    tied: bool = False
    template: str | None = CHATML
    seed: int = 0

    def metadata(self) -> Iterator[tuple[str, int, Any]]:
        """The key, type and value of every entry of the header."""
        yield "general.architecture", STRING, "llama"
        yield "general.name", STRING, "random"
        yield "general.file_type", U32, _FILE_TYPES[self.precision]
        yield "llama.vocab_size", U32, self.vocabulary
        yield "llama.context_length", U32, self.context
        yield "llama.embedding_length", U32, self.hidden
        yield "llama.block_count", U32, self.layers
        yield "llama.feed_forward_length", U32, self.ffn
        yield "llama.attention.head_count", U32, self.heads
        yield "llama.attention.head_count_kv", U32, self.kv_heads
        yield "llama.attention.layer_norm_rms_epsilon", F32, 1e-5
        yield "llama.rope.dimension_count", U32, self.hidden // self.heads
        yield "llama.rope.freq_base", F32, 10000.0
        pieces = list(itertools.islice(_pieces(), self.vocabulary))
        yield "tokenizer.ggml.model", STRING, "llama"
        yield "tokenizer.ggml.tokens", LIST, (STRING, [text for text, _ in pieces])
        # Earlier pieces are merged first, like frequent pieces in a trained vocabulary.
        yield "tokenizer.ggml.scores", LIST, (F32, [-float(i) for i in range(len(pieces))])
        yield "tokenizer.ggml.token_type", LIST, (I32, [kind for _, kind in pieces])
        yield "tokenizer.ggml.bos_token_id", U32, 1
        yield "tokenizer.ggml.eos_token_id", U32, 4
        yield "tokenizer.ggml.unknown_token_id", U32, 0
        yield "tokenizer.ggml.add_bos_token", BOOL, True
        if self.template is not None:
            yield "tokenizer.chat_template", STRING, self.template

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...], str, bool]]:
        """The name, shape and type of each tensor, and whether it is a norm."""
        head = self.hidden // self.heads
        yield "token_embd.weight", (self.hidden, self.vocabulary), self.precision, False
        for i in range(self.layers):
            yield f"blk.{i}.attn_norm.weight", (self.hidden,), "F32", True
            yield f"blk.{i}.attn_q.weight", (self.hidden, self.hidden), self.precision, False
            yield f"blk.{i}.attn_k.weight", (self.hidden, head * self.kv_heads), self.precision, False
            yield f"blk.{i}.attn_v.weight", (self.hidden, head * self.kv_heads), self.precision, False
            yield f"blk.{i}.attn_output.weight", (self.hidden, self.hidden), self.precision, False
            yield f"blk.{i}.ffn_norm.weight", (self.hidden,), "F32", True
            yield f"blk.{i}.ffn_gate.weight", (self.hidden, self.ffn), self.precision, False
            yield f"blk.{i}.ffn_up.weight", (self.hidden, self.ffn), self.precision, False
            yield f"blk.{i}.ffn_down.weight", (self.ffn, self.hidden), self.precision, False
        yield "output_norm.weight", (self.hidden,), "F32", True
        if not self.tied:
            yield "output.weight", (self.hidden, self.vocabulary), self.precision, False


def words(count: int, seed: int = 0) -> str:
    """A text of `count` random words, each of which is one token of a vocabulary of at least 1,024 tokens."""
    syllables = [text[1:] for text, _ in itertools.islice(_pieces(), 1024) if text.startswith("▁") and len(text) == 3]
    return " ".join(random.Random(seed).choices(syllables, k=count))


def _pieces() -> Iterator[tuple[str, int]]:
    """An endless vocabulary: special tokens, bytes, letters, then syllables of two letters with and without a leading
    space, and longer pieces made of syllables. The parts that a piece is merged from precede it."""
    yield from (("<unk>", UNKNOWN), ("<s>", CONTROL), ("</s>", CONTROL))
    yield from (("<|im_start|>", CONTROL), ("<|im_end|>", CONTROL))
    yield from ((f"<0x{byte:02X}>", BYTE) for byte in range(256))
    yield from ((chr(code), NORMAL) for code in range(0x21, 0x7F))
    yield "▁", NORMAL
    syllables = [a + b for a in "bdfgklmnprstvz" for b in "aeiou"]
    yield from ((text, NORMAL) for text in syllables)
    yield from (("▁" + text, NORMAL) for text in syllables)
    for size in itertools.count(2):
        yield from (("".join(parts), NORMAL) for parts in itertools.product(syllables, repeat=size))


def _write_values(
    file: BinaryIO, generator: np.random.Generator, shape: tuple[int, ...], kind: str, norm: bool
) -> None:
    values = int(np.prod(shape))
    if norm:
        file.write((1 + 0.1 * generator.standard_normal(values, np.float32)).astype(np.float32).tobytes())
        return
    for start in range(0, values, _SLICE):
        part = generator.standard_normal(min(_SLICE, values - start), np.float32) / np.float32(shape[0] ** 0.5)
        file.write(_encode(part, kind))


def _encode(values: npt.NDArray[np.float32], kind: str) -> bytes:
    if kind == "F32":
        return values.tobytes()
    if kind == "F16":
        return values.astype(np.float16).tobytes()
    blocks = values.reshape(-1, 32)
    if kind == "Q4_1":
        least = blocks.min(1, keepdims=True)
        factors = np.concatenate(((blocks.max(1, keepdims=True) - least) / 15, least), axis=1)
        whole = np.rint((blocks - least) / factors[:, :1]).astype(np.uint8)
    else:
        factors = np.abs(blocks).max(1, keepdims=True) / (127 if kind == "Q8_0" else 7)
        whole = np.rint(blocks / factors)
        whole = whole.astype(np.int8).view(np.uint8) if kind == "Q8_0" else (whole + 8).astype(np.uint8)
    # The first half of a block is in the low four bits, the second half in the high four bits.
    codes = whole if kind == "Q8_0" else whole[:, :16] | whole[:, 16:] << 4
    return np.concatenate((factors.astype(np.float16).view(np.uint8), codes), axis=1).tobytes()


def _nbytes(shape: tuple[int, ...], kind: str) -> int:
    _, block, block_nbytes = TYPES[_TYPE_NUMBERS[kind]]
    return int(np.prod(shape)) // block * block_nbytes


def _pad(file: BinaryIO) -> None:
    file.write(bytes(-file.tell() % _ALIGNMENT))


def _text(text: str) -> bytes:
    data = text.encode("utf-8")
    return struct.pack("<Q", len(data)) + data


def _value(kind: int, value: Any) -> bytes:
    if kind == STRING:
        return _text(value)
    if kind == LIST:
        inner, items = value
        return struct.pack("<IQ", inner, len(items)) + b"".join(_value(inner, item) for item in items)
    return struct.pack({U32: "<I", I32: "<i", F32: "<f", BOOL: "<?"}[kind], value)
