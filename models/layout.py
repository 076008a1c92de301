"""The places of all tensors in a packed model's data file. The layout follows from the `ModelSpec` alone.

The file is a valid safetensors file. That format allows no holes between tensors, so the padding before an aligned
block is a tensor of its own (`__pad__.N`). The header is padded with spaces until the data starts aligned. The file
holds, in this order, the small tensors around the embedding, the head, the position rows, the embedding rows, and the
layers.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass

import numpy as np

from edge.blocks import ALIGNMENT, BlockId, RowTable
from edge.models.spec import MATRIX_DTYPE, ModelSpec, TensorSpec

HEADER = BlockId("header")
EMBED = BlockId("embed")
HEAD = BlockId("head")
ROW_BLOCKS = {"positions": BlockId("positions.crc32"), "embedding": BlockId("embedding.crc32")}
"""For each table of rows, the block that holds the CRC-32 of every row."""
EMBEDDING_SCALE = BlockId("embedding.scale")

_SAFETENSORS_DTYPE = {"float32": "F32", "float16": "F16", "int8": "I8", "uint32": "U32", "uint8": "U8"}


@dataclass(frozen=True, slots=True)
class Section:
    """One aligned range of the file: a block of tensors, or a table of rows (`block` is None).

    Attributes:
        label: prefix of its tensors' names in the file: `label.tensor`.
        offset: position in the file, in bytes.
    """

    label: str
    block: BlockId | None
    tensors: tuple[TensorSpec, ...]
    offset: int

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)


@dataclass(frozen=True, slots=True)
class Layout:
    """The file's header and sections.

    Attributes:
        header: the first bytes of the file, length prefix included; the data starts right after.
        sections: in file order.
        tables: the row tables, by name.
        nbytes: size of the whole file.
    """

    header: bytes
    sections: tuple[Section, ...]
    tables: dict[str, RowTable]
    nbytes: int

    @classmethod
    def of(cls, spec: ModelSpec) -> Layout:
        """The layout of a model's file."""
        tensors: dict[str, dict[str, object]] = {}
        placed: list[tuple[str, BlockId | None, tuple[TensorSpec, ...], int]] = []
        cursor = pads = 0

        def place(name: str, tensor: TensorSpec) -> None:
            nonlocal cursor
            tensors[name] = {
                "dtype": _SAFETENSORS_DTYPE[tensor.dtype],
                "shape": list(tensor.shape),
                "data_offsets": [cursor, cursor + tensor.nbytes],
            }
            cursor += tensor.nbytes

        for label, block, contents in _sections(spec):
            gap = -cursor % ALIGNMENT
            if gap:
                place(f"__pad__.{pads}", TensorSpec("pad", (gap,), "uint8"))
                pads += 1
            placed.append((label, block, contents, cursor))
            for tensor in contents:
                place(f"{label}.{tensor.name}", tensor)
        text = json.dumps({"__metadata__": {"format": "np", "writer": "edge-pack"}, **tensors}, separators=(",", ":"))
        length = len(text) + -(8 + len(text)) % ALIGNMENT
        header = struct.pack("<Q", length) + text.encode().ljust(length)
        start = len(header)
        sections = tuple(Section(label, block, contents, start + at) for label, block, contents, at in placed)
        tables = {
            section.label: RowTable(section.offset, *_rows(section.tensors[0]))
            for section in sections
            if section.block is None
        }
        return cls(header, sections, tables, start + cursor)


def table_dtype(spec: ModelSpec, table: str) -> str:
    """The numpy dtype of a row table's values. Positions are always fp32."""
    return MATRIX_DTYPE[spec.layer.precision] if table == "embedding" else "float32"


def _sections(spec: ModelSpec) -> list[tuple[str, BlockId | None, tuple[TensorSpec, ...]]]:
    hidden = spec.layer.hidden
    sections: list[tuple[str, BlockId | None, tuple[TensorSpec, ...]]] = [
        ("embed", EMBED, spec.embedding_tensors()),
        ("head", HEAD, spec.head_tensors()),
    ]
    for table, rows in (("positions", spec.positions), ("embedding", spec.vocab)):
        if rows:
            values = TensorSpec("weight", (rows, hidden), table_dtype(spec, table))
            sections.append((table, None, (values,)))
            sections.append((table, ROW_BLOCKS[table], (TensorSpec("crc32", (rows,), "uint32"),)))
    if spec.layer.precision == "int8":
        sections.append(("embedding", EMBEDDING_SCALE, (TensorSpec("scale", (spec.vocab,), "float32"),)))
    layer = spec.layer.tensors()
    sections += [(f"layers.{i}", BlockId("layer", i), layer) for i in range(spec.layers)]
    return sections


def _rows(tensor: TensorSpec) -> tuple[int, int]:
    rows, width = tensor.shape
    return rows, width * np.dtype(tensor.dtype).itemsize
