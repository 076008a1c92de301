"""`GGUFFile`: the header of a GGUF file, read and checked without llama.cpp, which some errors would end with the whole
process; and `copy_in_bytes`. Format: github.com/ggml-org/ggml/blob/master/docs/gguf.md."""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from edge.errors import ModelError
from edge.files.named_file import open_input
from edge.models.manifest import file_sha256

MAGIC = b"GGUF"

TYPES: Mapping[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 40), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17), 40: ("NVFP4", 64, 36), 41: ("Q1_0", 128, 18),
}  # fmt: skip
"""Tensor types: name, values per block, bytes per block."""

# Metadata types: those of fixed size with their struct format, then text and lists.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _LIST = 8, 9

_LONGEST_LIST = 4096
"""Lists up to this length are kept (values per layer). Of longer lists (the vocabulary's) only the length is kept."""

_TOKENS = "tokenizer.ggml.tokens"
_NO_TEXT = ("bert", "no_vocab", "none")
"""Values of the vocabulary type for encoders, and for models without a vocabulary."""

_BYTE_FALLBACK = "llama"
"""It writes unknown characters byte by byte. If a byte has no token, llama.cpp ends the process."""

_MOST_AXES = 4
_DEFAULT_ALIGNMENT = 32


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """A tensor's place: `offset` from the file's start, and size `nbytes`. `shape` has the contiguous axis first."""

    name: str
    shape: tuple[int, ...]
    type: str
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class GGUFFile:
    """Header of a GGUF file. Lists of more than 4,096 elements are given by length. All tensors lie inside."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: tuple[GGUFTensor, ...]
    nbytes: int

    @classmethod
    def open(cls, path: str | Path) -> GGUFFile:
        path = Path(path)
        try:
            with open_input(path, pipes=False) as file:
                header = _Reader(file, path).read()
        except FileNotFoundError:
            raise ModelError(f"there is no file {path}; give the path of a GGUF model") from None
        except IsADirectoryError:
            raise ModelError(f"{path} is a folder; give the path of a GGUF file in it") from None
        except OSError as error:
            raise ModelError(f"{path} cannot be read: {error.strerror}") from error
        _check(header)
        return header

    @property
    def architecture(self) -> str:
        return str(self.metadata["general.architecture"])

    @property
    def weights_nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)

    def value(self, key: str, default: Any = None) -> Any:
        """A value of this architecture: `value("context_length")` reads `llama.context_length`."""
        return self.metadata.get(f"{self.architecture}.{key}", default)

    @property
    def trained_context(self) -> int:
        return int(self.value("context_length"))

    @property
    def head_widths(self) -> tuple[int, int]:
        """Widths of a key and of a value, in numbers; 0 if the file does not contain them."""
        heads = self.value("attention.head_count", 0)
        most = max(heads, default=0) if isinstance(heads, tuple) else heads
        width = int(self.value("embedding_length", 0)) // most if most else 0
        return int(self.value("attention.key_length", width)), int(self.value("attention.value_length", width))

    @property
    def chat_template(self) -> str | None:
        """The Jinja template of conversations; None if the file has none."""
        template = self.metadata.get("tokenizer.chat_template")
        return template if isinstance(template, str) and template.strip() else None

    def sha256(self) -> str:
        """Hash of the whole file. It takes about a second per gigabyte."""
        try:
            return file_sha256(self.path)
        except OSError as error:
            raise ModelError(f"{self.path} cannot be read: {error.strerror}") from error


def _check(file: GGUFFile) -> None:
    """Refuses a file with which llama.cpp would end the process."""
    architecture = file.metadata.get("general.architecture")
    if not isinstance(architecture, str) or not architecture:
        raise ModelError(f"{file.path} does not say its architecture; it is no language model")
    if (parts := file.metadata.get("split.count", 0)) not in (0, 1):
        raise ModelError(f"{file.path} is one of {parts} parts of a model: merge them with `llama-gguf-split --merge`")
    vocabulary = file.metadata.get("tokenizer.ggml.model")
    if vocabulary in _NO_TEXT:
        raise ModelError(f"{file.path} has a vocabulary ({vocabulary}) that text cannot be written with")
    for key, least, most in (("context_length", 16, 2**31 - 1), ("block_count", 1, 512)):
        value = file.value(key)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise ModelError(
                f"{file.path} is damaged, or no language model: {architecture}.{key} is {value!r}, and it should be "
                f"within {least} and {most:,}"
            )
    for key, value in file.metadata.items():
        if key.endswith("_epsilon") and not (isinstance(value, float) and 0 <= value < math.inf):
            raise ModelError(f"{file.path} is damaged: {key} is {value!r}")
    for tensor in file.tensors:
        if len(tensor.shape) == 1 and tensor.type != "F32":
            raise ModelError(f"{file.path} is damaged: {tensor.name} has one axis and is {tensor.type}, not F32")


class _Reader:
    def __init__(self, file: BinaryIO, path: Path) -> None:
        self.file = file
        self.path = path
        self.size = os.fstat(file.fileno()).st_size
        self.unwritable: set[bytes] = set()
        """Bytes that have no token in the vocabulary."""

    def read(self) -> GGUFFile:
        magic = self.file.read(4)
        if magic != MAGIC:
            raise ModelError(f"{self.path} is not a GGUF file: it begins with {magic!r}, not {MAGIC!r}")
        version = self._number("I")
        if version not in (2, 3):
            raise ModelError(f"{self.path} has GGUF version {version}; versions 2 and 3 (little-endian) can be read")
        tensors, pairs = self._number("Q"), self._number("Q")
        # Each item takes at least its lengths and types. A larger count comes from a broken header.
        for what, count, least in (("tensors", tensors, 24), ("metadata values", pairs, 13)):
            if count * least > self.size:
                raise ModelError(f"{self.path} is damaged: it claims {count:,} {what} in {self.size:,} bytes")
        metadata = dict(self._pair() for _ in range(pairs))
        if len(metadata) != pairs:
            raise ModelError(f"{self.path} is damaged: a metadata key stands there twice")
        if metadata.get("tokenizer.ggml.model") == _BYTE_FALLBACK and self.unwritable:
            raise ModelError(
                f"{self.path} is damaged, or made without byte fallback: its vocabulary has no tokens for "
                f"{len(self.unwritable)} of the 256 bytes, such as 0x{min(self.unwritable)[0]:02X}"
            )
        extents = [self._tensor() for _ in range(tensors)]
        alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 8 or alignment & (alignment - 1):
            raise ModelError(f"{self.path} is damaged: its alignment is {alignment!r}, which is no power of two")
        start = -(-self.file.tell() // alignment) * alignment
        return GGUFFile(self.path, metadata, self._place(extents, start, alignment), self.size)

    def _place(
        self, extents: list[tuple[str, tuple[int, ...], int, int]], start: int, alignment: int
    ) -> tuple[GGUFTensor, ...]:
        placed: dict[str, GGUFTensor] = {}
        for name, shape, kind, offset in extents:
            if kind not in TYPES:
                raise ModelError(f"{self.path}: tensor {name} has the type {kind}, which is unknown here")
            type_name, block, block_nbytes = TYPES[kind]
            values = math.prod(shape)
            if not shape or values == 0 or shape[0] % block or offset % alignment or name in placed:
                raise ModelError(f"{self.path} is damaged: tensor {name!r} cannot be {list(shape)} of {type_name}")
            nbytes = values // block * block_nbytes
            end = start + offset + nbytes
            if end > self.size:
                raise ModelError(
                    f"{self.path} is truncated: tensor {name} ends at byte {end:,} but the file has {self.size:,}; "
                    f"download it again"
                )
            placed[name] = GGUFTensor(name, shape, type_name, start + offset, nbytes)
        return tuple(placed.values())

    def _tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._text()
        axes = self._number("I")
        if axes > _MOST_AXES:
            raise ModelError(f"{self.path} is damaged: tensor {name!r} has {axes} axes")
        shape = tuple(self._number("Q") for _ in range(axes))
        return name, shape, self._number("I"), self._number("Q")

    def _pair(self) -> tuple[str, Any]:
        key = self._text()
        return key, self._value(self._number("I"), key)

    def _value(self, kind: int, key: str) -> Any:
        if kind in _SCALARS:
            return self._number(_SCALARS[kind])
        if kind == _TEXT:
            return self._text()
        if kind != _LIST:
            raise ModelError(f"{self.path} is damaged: metadata {key!r} has the unknown type {kind}")
        kind, count = self._number("I"), self._number("Q")
        least = struct.calcsize(f"<{_SCALARS[kind]}") if kind in _SCALARS else 8
        if kind == _LIST or (kind not in _SCALARS and kind != _TEXT) or count * least > self.size:
            raise ModelError(f"{self.path} is damaged: metadata {key!r} claims a list of {count:,} of type {kind}")
        if key == _TOKENS and kind == _TEXT:
            return self._count_tokens(count)
        if count <= _LONGEST_LIST:
            return tuple(self._value(kind, key) for _ in range(count))
        if kind in _SCALARS:
            self._skip(count * least)
        else:
            for _ in range(count):
                self._skip(self._number("Q"))
        return count

    def _count_tokens(self, count: int) -> int:
        written = {f"<0x{byte:02X}>".encode(): bytes([byte]) for byte in range(256)}
        self.unwritable = set(written.values())

        def passed() -> Iterator[int]:
            for _ in range(count):
                # llama.cpp reads a token up to its first zero byte.
                token = self._bytes(self._number("Q")).split(b"\0", 1)[0]
                self.unwritable.discard(written.get(token, token))
                yield hash(token)

        hashes = np.fromiter(passed(), np.int64, count)
        if len(np.unique(hashes)) != count:
            raise ModelError(f"{self.path} is damaged: some of its {count:,} tokens are equal")
        return count

    def _text(self) -> str:
        # Tokens of a vocabulary can be parts of characters. Keys, and the values that we use, are UTF-8.
        return self._bytes(self._number("Q")).decode("utf-8", errors="replace")

    def _number(self, code: str) -> Any:
        form = "<" + code
        return struct.unpack(form, self._bytes(struct.calcsize(form)))[0]

    def _bytes(self, count: int) -> bytes:
        data = self.file.read(count) if count <= self.size else b""
        if len(data) < count:
            raise self._short()
        return data

    def _skip(self, count: int) -> None:
        if self.file.tell() + count > self.size:
            raise self._short()
        self.file.seek(count, os.SEEK_CUR)

    def _short(self) -> ModelError:
        return ModelError(f"{self.path} is truncated: its header goes on after its {self.size:,} bytes")


_FROM, _TO = "Q4_1", "Q8_0"
_NUMBERS = {name: number for number, (name, _, _) in TYPES.items()}
_FILE_TYPE = struct.pack("<Q", 17) + b"general.file_type" + struct.pack("<I", 4)
_PIECE = 20 << 14  # Bytes that are read at a time: whole blocks.
_MOSTLY_BYTES = 7
"""llama.cpp's number for a file whose weights are mostly of type Q8_0."""


def copy_in_bytes(source: Path, target: Path) -> None:
    """Writes the copy, in about 10 MB of memory. A weight moves by at most half of its block's new step, the largest
    weight / 127. ModelError for a file that is aligned in another way."""
    model = GGUFFile.open(source)
    if model.metadata.get("general.alignment", _DEFAULT_ALIGNMENT) != _DEFAULT_ALIGNMENT:
        raise ModelError(f"{source} cannot be stored in bytes: its alignment is not {_DEFAULT_ALIGNMENT}")
    with source.open("rb") as file, target.open("wb") as out:
        header = file.read(min(tensor.offset for tensor in model.tensors))
        out.write(_header_in_bytes(header, model))
        for tensor in model.tensors:
            file.seek(tensor.offset)
            _pad(out)
            for start in range(0, tensor.nbytes, _PIECE):
                values = np.frombuffer(file.read(min(_PIECE, tensor.nbytes - start)), np.uint8)
                out.write((_as_bytes(values) if tensor.type == _FROM else values).data)
        _pad(out)


def _header_in_bytes(header: bytes, model: GGUFFile) -> bytes:
    """The header with the new types and offsets of the tensors."""
    begin = header.index(_named(model.tensors[0]))
    at = header.find(_FILE_TYPE, 0, begin)
    pairs = bytearray(header[:begin])
    if at >= 0:
        pairs[at + len(_FILE_TYPE) : at + len(_FILE_TYPE) + 4] = struct.pack("<I", _MOSTLY_BYTES)
    offset = 0
    for tensor in model.tensors:
        kind = _TO if tensor.type == _FROM else tensor.type
        _, block, nbytes = TYPES[_NUMBERS[kind]]
        axes = struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *tensor.shape)
        pairs += _named(tensor) + axes + struct.pack("<IQ", _NUMBERS[kind], offset)
        offset += _aligned(int(np.prod(tensor.shape)) // block * nbytes)
    return bytes(pairs)


def _named(tensor: GGUFTensor) -> bytes:
    name = tensor.name.encode()
    return struct.pack("<Q", len(name)) + name


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _DEFAULT_ALIGNMENT) * _DEFAULT_ALIGNMENT


def _pad(out: BinaryIO) -> None:
    out.write(b"\0" * (_aligned(out.tell()) - out.tell()))


def _as_bytes(values: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Blocks of a step, a least weight and 32 half bytes [n * 20] as blocks of a step and 32 bytes [n * 34]."""
    blocks = values.reshape(-1, 20)
    step, least = (np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2").astype(np.float32) for at in (0, 2))
    weights = np.concatenate((blocks[:, 4:] & 15, blocks[:, 4:] >> 4), axis=1).astype(np.float32)
    weights *= step
    weights += least
    step = np.abs(weights).max(axis=1, keepdims=True) / np.float32(127)
    weights *= np.divide(1, step, out=np.zeros_like(step), where=step > 0)
    stored = np.empty((len(blocks), 34), np.uint8)
    stored[:, :2] = step.astype("<f2").view(np.uint8)
    stored[:, 2:] = np.rint(weights).astype(np.int8).view(np.uint8)
    return stored.ravel()
