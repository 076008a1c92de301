"""A packed model's data file: the places of all tensors, and the writer, which computes the checksums meanwhile.

The layout follows from the `ModelSpec` alone. The file is a valid safetensors file. That format allows no holes between
tensors, so the padding before an aligned block is a tensor of its own (`__pad__.N`). The header is padded with spaces
until the data starts aligned. The file holds, in this order, the small tensors around the embedding, the head, the
position rows, the embedding rows, and the layers.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.blocks import ALIGNMENT, BlockId, Extent, RowTable
from edge.errors import StorageError
from edge.files.output_file import write_all
from edge.models.spec import MATRIX_DTYPE, ModelSpec, TensorSpec
from edge.resident import Closing

HEADER = BlockId("header")
EMBED = BlockId("embed")
HEAD = BlockId("head")
ROW_BLOCKS = {"positions": BlockId("positions.crc32"), "embedding": BlockId("embedding.crc32")}
"""For each table of rows, the block that holds the CRC-32 of every row."""
EMBEDDING_SCALE = BlockId("embedding.scale")

Progress = Callable[[int, int], None]
"""A function that is called with the bytes written so far and the total bytes."""

_SAFETENSORS_DTYPE = {"float32": "F32", "float16": "F16", "int8": "I8", "uint32": "U32", "uint8": "U8"}


@dataclass(frozen=True, slots=True)
class Section:
    """One aligned range of the file: a block of tensors, or a table of rows (`block` is None).

    Attributes:
        label: prefix of its tensors' names in the file: `label.tensor`.
        offset: position in the file, in bytes.
        nbytes: bytes of the tensors together.
    """

    label: str
    block: BlockId | None
    tensors: tuple[TensorSpec, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Layout:
    """The file's sections.

    Attributes:
        sections: in file order.
        tables: the row tables, by name.
        nbytes: size of the whole file.
    """

    sections: tuple[Section, ...]
    tables: dict[str, RowTable]
    nbytes: int

    @classmethod
    def of(cls, spec: ModelSpec, header_nbytes: int) -> Layout:
        """The layout of a model's file, whose data starts after a header of `header_nbytes` bytes (see `header_of`)."""
        sections: list[Section] = []
        cursor = header_nbytes
        for label, block, tensors, nbytes in _contents(spec):
            cursor += -(cursor - header_nbytes) % ALIGNMENT
            sections.append(Section(label, block, tensors, cursor, nbytes))
            cursor += nbytes
        tables = {s.label: RowTable(s.offset, *_rows(s.tensors[0])) for s in sections if s.block is None}
        return cls(tuple(sections), tables, cursor)


def header_of(spec: ModelSpec) -> bytes:
    """The first bytes of a model's file, length prefix included. The data starts right after them."""
    tensors: dict[str, dict[str, object]] = {}
    cursor = pads = 0

    def place(name: str, tensor: TensorSpec) -> None:
        nonlocal cursor
        end = cursor + tensor.nbytes
        tensors[name] = {
            "dtype": _SAFETENSORS_DTYPE[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [cursor, end],
        }
        cursor = end

    for section in Layout.of(spec, 0).sections:
        if gap := section.offset - cursor:
            place(f"__pad__.{pads}", TensorSpec("pad", (gap,), "uint8"))
            pads += 1
        for tensor in section.tensors:
            place(f"{section.label}.{tensor.name}", tensor)
    text = json.dumps({"__metadata__": {"format": "np", "writer": "edge-pack"}, **tensors}, separators=(",", ":"))
    length = len(text) + -(8 + len(text)) % ALIGNMENT
    return struct.pack("<Q", length) + text.encode().ljust(length)


def table_dtype(spec: ModelSpec, table: str) -> str:
    """The numpy dtype of a row table's values. Positions are always fp32."""
    return MATRIX_DTYPE[spec.layer.precision] if table == "embedding" else "float32"


def _contents(spec: ModelSpec) -> list[tuple[str, BlockId | None, tuple[TensorSpec, ...], int]]:
    """Label, block, tensors and bytes of each section, in file order."""
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
    sized = [(*section, sum(tensor.nbytes for tensor in section[2])) for section in sections]
    layer = spec.layer.tensors()
    nbytes = sum(tensor.nbytes for tensor in layer)
    return [*sized, *((f"layers.{i}", BlockId("layer", i), layer, nbytes) for i in range(spec.layers))]


def _rows(tensor: TensorSpec) -> tuple[int, int]:
    rows, width = tensor.shape
    return rows, width * np.dtype(tensor.dtype).itemsize


class PackWriter(Closing):
    """The open data file. Sections are written in the layout's order. The `append` calls must fill each exactly.

    Attributes:
        extents: the blocks written so far.
    """

    def __init__(self, path: Path, layout: Layout, header: bytes, progress: Progress | None = None) -> None:
        """Creates the file and writes its header.

        Raises:
            StorageError: the disk refuses.
        """
        self.extents: dict[BlockId, Extent] = {}
        self._layout = layout
        self._progress = progress
        self._path = path
        self._at = 0
        self._crc = 0
        try:
            self._file = path.open("xb", buffering=0)
        except OSError as error:
            raise StorageError(f"{path} cannot be created: {error.strerror}") from error
        self._write(memoryview(header))
        self.extents[HEADER] = Extent(0, len(header), zlib.crc32(header))

    def begin(self, section: Section) -> None:
        """Writes padding up to the start of a section."""
        assert self._at <= section.offset, "sections are written in order"
        self._write(memoryview(bytes(section.offset - self._at)))
        self._crc = 0

    def append(self, values: npt.NDArray[Any]) -> None:
        """Writes values of the current block.

        Raises:
            StorageError: the disk refuses, most often because it is full.
        """
        view = np.ascontiguousarray(values).data.cast("B")
        self._crc = zlib.crc32(view, self._crc)
        self._write(view)

    def append_rows(self, rows: npt.NDArray[Any]) -> list[int]:
        """Writes rows of the current table, and returns their checksums.

        Raises:
            StorageError: the disk refuses.
        """
        rows = np.ascontiguousarray(rows)
        self._write(rows.data.cast("B"))
        return [zlib.crc32(row.data) for row in rows]

    def end(self, section: Section) -> None:
        """Closes a section, which must be full."""
        assert self._at == section.offset + section.nbytes, "a section is filled exactly"
        if section.block is not None:
            self.extents[section.block] = Extent(section.offset, section.nbytes, self._crc)

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _write(self, view: memoryview) -> None:
        try:
            write_all(self._file, view)
        except OSError as error:
            raise StorageError(
                f"writing {self._path.name} failed after {self._at:,} of {self._layout.nbytes:,} bytes: "
                f"{error.strerror}; nothing is left of it"
            ) from error
        self._at += len(view)
        if self._progress is not None:
            self._progress(self._at, self._layout.nbytes)
