"""A packed model on disk: a description, and the weights as blocks and rows."""

from __future__ import annotations

import itertools
import json
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from edge.blocks import ALIGNMENT, BlockFile, BlockId, Extent, RowTable
from edge.errors import CorruptBlock, ModelError
from edge.models.manifest import DATA, TOKENIZER, PackManifest, file_sha256, kind_of, recover, remedy
from edge.models.spec import MATRIX_DTYPE, LayerSpec, ModelSpec, TensorSpec
from edge.models.tables import VOCABULARY, read_tables
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


Contents = list[tuple[str, BlockId | None, tuple[TensorSpec, ...]]]
"""Label, block and tensors of each section of a file, in order (see `Section`)."""


@dataclass(frozen=True, slots=True)
class Section:
    """One aligned range of the file: a block of tensors, named `label.tensor`, or a table of rows (`block` is None)."""

    label: str
    block: BlockId | None
    tensors: tuple[TensorSpec, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Layout:
    """The file's sections in file order, its row tables by name, and its size."""

    sections: tuple[Section, ...]
    tables: dict[str, RowTable]
    nbytes: int

    @classmethod
    def of(cls, contents: Contents, header_nbytes: int) -> Layout:
        """The layout of a file, whose data starts after a header of `header_nbytes` bytes (see `header_of`)."""
        sections: list[Section] = []
        cursor = header_nbytes
        for label, block, tensors in contents:
            nbytes = sum(tensor.nbytes for tensor in tensors)
            cursor += -(cursor - header_nbytes) % ALIGNMENT
            sections.append(Section(label, block, tensors, cursor, nbytes))
            cursor += nbytes
        tables = {s.label: RowTable(s.offset, *_rows(s.tensors[0])) for s in sections if s.block is None}
        return cls(tuple(sections), tables, cursor)


def header_of(contents: Contents) -> bytes:
    """The first bytes of a file with such contents, length prefix included. The data starts right after them."""
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

    for section in Layout.of(contents, 0).sections:
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


def contents_of(spec: ModelSpec) -> Contents:
    hidden = spec.layer.hidden
    sections: Contents = [("embed", EMBED, spec.embedding_tensors()), ("head", HEAD, spec.head_tensors())]
    for table, rows in (("positions", spec.positions), ("embedding", spec.vocab)):
        if rows:
            values = TensorSpec("weight", (rows, hidden), table_dtype(spec, table))
            sections.append((table, None, (values,)))
            sections.append((table, ROW_BLOCKS[table], (TensorSpec("crc32", (rows,), "uint32"),)))
    if spec.layer.precision == "int8":
        sections.append(("embedding", EMBEDDING_SCALE, (TensorSpec("scale", (spec.vocab,), "float32"),)))
    return [*sections, *layer_contents(spec.layer, spec.layers)]


def layer_contents(layer: LayerSpec, count: int) -> Contents:
    tensors = layer.tensors()
    return [(f"layers.{i}", BlockId("layer", i), tensors) for i in range(count)]


def _rows(tensor: TensorSpec) -> tuple[int, int]:
    rows, width = tensor.shape
    return rows, width * np.dtype(tensor.dtype).itemsize


Floats = npt.NDArray[np.float32]
Kind = Literal["reranker", "embedder"]

_VERIFY_ROWS = 4096


Placed = tuple[str, slice, np.dtype[Any], tuple[int, ...]]
"""A tensor's name, its bytes in a block, its type, and its shape."""


def placed(tensors: Sequence[TensorSpec]) -> tuple[Placed, ...]:
    ends = list(itertools.accumulate((tensor.nbytes for tensor in tensors), initial=0))
    parts = [slice(start, end) for start, end in itertools.pairwise(ends)]
    return tuple((t.name, part, np.dtype(t.dtype), t.shape) for t, part in zip(tensors, parts, strict=True))


def views(places: Sequence[Placed], buffer: npt.NDArray[np.uint8] | memoryview) -> dict[str, npt.NDArray[Any]]:
    """The tensors of a block in a buffer with its bytes. Nothing is copied."""
    flat = np.frombuffer(buffer, np.uint8)
    return {name: flat[part].view(dtype).reshape(shape) for name, part, dtype, shape in places}


def check_finite(tensors: Mapping[str, npt.NDArray[Any]], where: str, path: Path) -> None:
    """Raises ModelError if a vector holds NaN or infinity."""
    for name, values in tensors.items():
        if values.ndim == 1 and not np.isfinite(values).all():
            raise ModelError(f"{path}: tensor {name} {where} holds NaN or infinite values")


class PackedModel(Closing):
    """A packed model, open for reading: a file descriptor and the table of blocks, but no weights.

    `file` has the blocks `embed`, `head` and `layer.N`, and the row tables; a buffer for a block has
    `file.nbytes(block)` bytes. `embedding` are the token rows (`embedding_dtype`), `positions` the position rows (fp32;
    None with rotary positions). `fingerprint` changes with any weight or setting; `sources` are sha256 of what it was
    packed from."""

    def __init__(self, path: Path, manifest: PackManifest, fingerprint: str) -> None:
        self.path = path
        self.name = manifest.name
        self.spec: ModelSpec = manifest.spec
        self.kind = kind_of(manifest.spec)
        self.layer_blocks = [BlockId("layer", i) for i in range(manifest.spec.layers)]
        self.embedding: RowTable = manifest.tables["embedding"]
        self.embedding_dtype: np.dtype[Any] = np.dtype(table_dtype(manifest.spec, "embedding"))
        self.positions: RowTable | None = manifest.tables.get("positions")
        self.fingerprint = fingerprint
        self.tokenizer_path = path / TOKENIZER
        self.tokenizer_sha256 = manifest.tokenizer_sha256
        self._vocabulary_sha256 = manifest.vocabulary_sha256
        self.sources = dict(manifest.sources)
        self.origin = dict(manifest.origin)
        self.nbytes = manifest.data_nbytes
        self.file = BlockFile(path / DATA, manifest.blocks, remedy(path))
        self._finite: set[BlockId] = set()
        layer = placed(self.spec.layer.tensors())
        self.places: dict[BlockId, tuple[Placed, ...]] = {
            EMBED: placed(self.spec.embedding_tensors()),
            HEAD: placed(self.spec.head_tensors()),
            **dict.fromkeys(self.layer_blocks, layer),
        }

    @classmethod
    def open(cls, directory: str | Path, kind: Kind | None = None) -> PackedModel:
        """Opens a packed model, of a `kind` if given. ModelError if it is none or another, CorruptBlock if `edge.json`
        is damaged or the data truncated."""
        path = Path(directory)
        recover(path)
        manifest, fingerprint = PackManifest.read(path)
        header = manifest.blocks.get(HEADER, Extent(0, 0, 0))
        layout = Layout.of(contents_of(manifest.spec), header.nbytes)
        expected = {s.block: (s.offset, s.nbytes) for s in layout.sections if s.block is not None}
        expected[HEADER] = (0, header.nbytes)
        found = {b: (e.offset, e.nbytes) for b, e in manifest.blocks.items()}
        if found != expected or dict(manifest.tables) != layout.tables or manifest.data_nbytes != layout.nbytes:
            raise ModelError(f"{path} was packed with another layout of blocks; pack it again with `edge models pack`")
        actual = kind_of(manifest.spec)
        if kind is not None and actual != kind:
            article = {"reranker": "a reranker", "embedder": "an embedder"}
            raise ModelError(f"{manifest.name} ({path}) is {article[actual]}, {article[kind]} is needed")
        if not (path / TOKENIZER).is_file():
            raise ModelError(f"{path} has no {TOKENIZER}: the pack is incomplete")
        model = cls(path, manifest, fingerprint)
        size = (path / DATA).stat().st_size
        if size != manifest.data_nbytes:
            model.close()
            raise CorruptBlock(
                f"{path / DATA} has {size:,} bytes, {manifest.data_nbytes:,} were written; {remedy(path)}"
            )
        return model

    def tensors(self, block: BlockId, buffer: npt.NDArray[np.uint8] | memoryview) -> dict[str, npt.NDArray[Any]]:
        """Views of a block's tensors in a buffer that `file.read(block, ...)` has filled, C-contiguous, aligned to 4
        bytes. ModelError for NaN or infinity in a vector, which rounding to int8 would hide."""
        tensors = views(self.places[block], buffer)
        if block not in self._finite:
            check_finite(tensors, f"of {block}", self.file.path)
            self._finite.add(block)
        return tensors

    def load(self, block: BlockId) -> dict[str, npt.NDArray[Any]]:
        """Reads a block into newly allocated memory, and returns its tensors. CorruptBlock if it is damaged."""
        buffer = np.empty(self.file.nbytes(block), np.uint8)
        self.file.read(block, buffer.data)
        return self.tensors(block, buffer)

    def embedding_checksums(self) -> npt.NDArray[np.uint32]:
        """CRC-32 of each token row [vocab], read from disk at every call. CorruptBlock if the table is damaged."""
        return self._vector(ROW_BLOCKS["embedding"], np.uint32)

    def embedding_scales(self) -> Floats | None:
        """The scale of each int8 token row [vocab], from disk at every call; None for other rows. CorruptBlock."""
        if self.embedding_dtype != np.int8:
            return None
        scales: Floats = self._vector(EMBEDDING_SCALE, np.float32)
        if not np.isfinite(scales).all():
            raise ModelError(f"{self.file.path}: the scales of the token rows hold NaN or infinite values")
        return scales

    def position_rows(self, count: int) -> Floats:
        """Position rows of the first `count` tokens, fp32 [count, hidden]. CorruptBlock or ModelError."""
        table, offset = self.positions, self.spec.position_offset
        if table is None or offset + count > table.rows:
            raise ModelError(f"{self.name} has no learned positions for {count:,} tokens")
        ids = np.arange(offset, offset + count)
        rows = self._checked_rows("positions", ids, self._vector(ROW_BLOCKS["positions"], np.uint32)).view(np.float32)
        if not np.isfinite(rows).all():
            raise ModelError(f"{self.file.path}: the position rows hold NaN or infinite values")
        return rows

    def verify(self) -> None:
        """Reads the whole model again and compares every checksum; the bytes between blocks must be zero. CorruptBlock
        names the first difference."""
        from edge.models import evidence  # only the assistant and a verification read it

        fresh = BlockFile(self.file.path, self.file.extents, self.file.remedy)
        try:
            largest = max(extent.nbytes for extent in fresh.extents.values())
            buffer = memoryview(bytearray(largest))
            for block in fresh.extents:
                fresh.read(block, buffer)
            self._verify_gaps(fresh)
        finally:
            fresh.close()
        for name, table in (("embedding", self.embedding), ("positions", self.positions)):
            if table is not None:
                crcs = self._vector(ROW_BLOCKS[name], np.uint32)
                for start in range(0, table.rows, _VERIFY_ROWS):
                    self._checked_rows(name, np.arange(start, min(start + _VERIFY_ROWS, table.rows)), crcs)
        if file_sha256(self.tokenizer_path) != self.tokenizer_sha256:
            raise CorruptBlock(f"{self.tokenizer_path} does not match its sha256; {remedy(self.path)}")
        evidence.verify(self.path)
        if (self.path / VOCABULARY).is_file():
            read_tables(self.path / VOCABULARY)
            if self._vocabulary_sha256 not in (None, file_sha256(self.path / VOCABULARY)):
                raise CorruptBlock(f"{self.path / VOCABULARY} does not match its sha256; {remedy(self.path)}")

    def _verify_gaps(self, file: BlockFile) -> None:
        """Checks that the padding before each aligned block is zero."""
        tables = [(table.offset, table.rows * table.row_nbytes) for table in (self.embedding, self.positions) if table]
        filled = sorted([*((extent.offset, extent.nbytes) for extent in file.extents.values()), *tables])
        for (start, nbytes), (end, _) in itertools.pairwise(filled):
            if start + nbytes < end:
                gap = np.empty((1, end - start - nbytes), np.uint8)
                file.read_scattered([start + nbytes], gap)
                if gap.any():
                    raise CorruptBlock(
                        f"{file.path} is corrupt between bytes {start + nbytes:,} and {end:,}; {file.remedy}"
                    )

    def close(self) -> None:
        self.file.close()

    def _vector(self, block: BlockId, dtype: type[Any]) -> npt.NDArray[Any]:
        values = np.empty(self.file.nbytes(block) // np.dtype(dtype).itemsize, dtype)
        self.file.read(block, values.data.cast("B"))
        return values

    def _checked_rows(
        self, name: str, ids: npt.NDArray[np.int64], crcs: npt.NDArray[np.uint32]
    ) -> npt.NDArray[np.uint8]:
        table = self.embedding if name == "embedding" else self.positions
        assert table is not None
        out = np.empty((len(ids), table.row_nbytes), np.uint8)
        self.file.read_rows(table, ids, out)
        for row, data in zip(ids.tolist(), out, strict=True):
            if zlib.crc32(data.data) != int(crcs[row]):
                raise CorruptBlock(
                    f"{self.file.path}: {name} row {row} is corrupt (its checksum does not match); {self.file.remedy}"
                )
        return out
