"""`copy_in_bytes`: a GGUF file with the 4-bit weights of type Q4_1 as bytes. llama.cpp multiplies those in tiles, and
reads a prompt twice as fast."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from edge.errors import ModelError
from edge.models.gguf_file import TYPES, GGUFFile, GGUFTensor

_FROM, _TO = "Q4_1", "Q8_0"
_ALIGNMENT = 32
_NUMBERS = {name: number for number, (name, _, _) in TYPES.items()}
_FILE_TYPE = struct.pack("<Q", 17) + b"general.file_type" + struct.pack("<I", 4)
_PIECE = 20 << 14  # Bytes that are read at a time: whole blocks.
_MOSTLY_BYTES = 7
"""llama.cpp's number for a file whose weights are mostly of type Q8_0."""


def copy_in_bytes(source: Path, target: Path) -> None:
    """Writes the copy, in about 10 MB of memory. A weight moves by at most half of its block's new step, the largest
    weight / 127. ModelError for a file that is aligned in another way."""
    model = GGUFFile.open(source)
    if model.metadata.get("general.alignment", _ALIGNMENT) != _ALIGNMENT:
        raise ModelError(f"{source} cannot be stored in bytes: its alignment is not {_ALIGNMENT}")
    with source.open("rb") as file, target.open("wb") as out:
        header = file.read(min(tensor.offset for tensor in model.tensors))
        out.write(_header(header, model))
        for tensor in model.tensors:
            file.seek(tensor.offset)
            _pad(out)
            for start in range(0, tensor.nbytes, _PIECE):
                values = np.frombuffer(file.read(min(_PIECE, tensor.nbytes - start)), np.uint8)
                out.write((_as_bytes(values) if tensor.type == _FROM else values).data)
        _pad(out)


def _header(header: bytes, model: GGUFFile) -> bytes:
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
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


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
