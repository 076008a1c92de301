"""Packing: turns a Hugging Face folder into a directory that the runtime streams layer by layer."""

from __future__ import annotations

import math
import shutil
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.blocks import BlockId, Extent
from edge.errors import ModelError, StorageError, as_storage_error
from edge.files.named_file import write_all
from edge.models.architectures import (
    Projection,
    body_folder,
    dense_folders,
    detect_head,
    family_of,
    read_projection,
    token_limit,
)
from edge.models.checkpoint import Checkpoint, Floats, WeightSource, read_json, wanted
from edge.models.family import Family, check_tokenizer, part_rows
from edge.models.manifest import DATA, TOKENIZER, PackManifest, Staging, file_sha256
from edge.models.packed import (
    EMBEDDING_SCALE,
    HEADER,
    ROW_BLOCKS,
    Layout,
    PackedModel,
    Progress,
    Section,
    contents_of,
    header_of,
)
from edge.models.spec import MATRIX_DTYPE, HeadSpec, ModelSpec, Precision, TensorSpec
from edge.models.tables import VOCABULARY, build, read_tokenizer
from edge.resident import Closing

SLAB = 4 << 20
PANEL = 32 << 20


class PackWriter(Closing):
    """The open data file. Sections are written in the layout's order, exactly. `extents`: blocks so far."""

    def __init__(self, path: Path, layout: Layout, header: bytes, progress: Progress | None = None) -> None:
        """Creates the file and writes its header."""
        self.extents: dict[BlockId, Extent] = {}
        self._layout = layout
        self._progress = progress
        self._path = path
        self._at = 0
        self._crc = 0
        with as_storage_error(f"{path} cannot be created"):
            self._file = path.open("xb", buffering=0)
        self._write(memoryview(header))
        self.extents[HEADER] = Extent(0, len(header), zlib.crc32(header))

    def begin(self, section: Section) -> None:
        """Writes padding up to the start of a section."""
        assert self._at <= section.offset, "sections are written in order"
        self._write(memoryview(bytes(section.offset - self._at)))
        self._crc = 0

    def append(self, values: npt.NDArray[Any]) -> None:
        view = np.ascontiguousarray(values).data.cast("B")
        self._crc = zlib.crc32(view, self._crc)
        self._write(view)

    def append_rows(self, rows: npt.NDArray[Any]) -> list[int]:
        """Writes rows of the current table, and returns their checksums."""
        rows = np.ascontiguousarray(rows)
        self._write(rows.data.cast("B"))
        return [zlib.crc32(row.data) for row in rows]

    def end(self, section: Section) -> None:
        """Closes a section, which must be full."""
        assert self._at == section.offset + section.nbytes, "a section is filled exactly"
        if section.block is not None:
            self.extents[section.block] = Extent(section.offset, section.nbytes, self._crc)

    def close(self) -> None:
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


class WeightPacker:
    """Converts one model's weights from a source and writes them to a pack."""

    def __init__(
        self,
        source: WeightSource,
        family: Family,
        spec: ModelSpec,
        token_rows: tuple[int, int] | None,
        projection: Projection | None,
    ):
        """Checks tensors and shapes; ModelError names the first wrong one. `token_rows`: ids of `no` and `yes`."""
        self._source = source
        self._family = family
        self._spec = spec
        self._token_rows = token_rows
        self._projection = projection
        self._names = family.canonical(source.shapes)
        self._check()

    def write(self, writer: PackWriter, layout: Layout) -> None:
        """Writes all sections. ModelError if a weight is NaN, infinite or does not fit the precision."""
        crcs: dict[str, list[int]] = {}
        row_scales: list[Floats] = []
        for section in layout.sections:
            writer.begin(section)
            if section.block is None:
                crcs[section.label] = self._write_table(writer, section, row_scales)
            elif section.block == ROW_BLOCKS.get(section.label):
                writer.append(np.array(crcs.pop(section.label), np.uint32))
            elif section.block == EMBEDDING_SCALE:
                writer.append(np.concatenate(row_scales))
            elif section.block.kind == "layer":
                self._write_layer(writer, section)
            else:
                for tensor in section.tensors:
                    if tensor.name == "dense.weight":
                        for panel in self._panels(tensor, [f"{self._family.dense}.weight"]):
                            writer.append(panel)
                    else:
                        writer.append(self._small(section.label, tensor))
            writer.end(section)

    def _write_table(self, writer: PackWriter, section: Section, row_scales: list[Floats]) -> list[int]:
        name = self._family.table if section.label == "embedding" else self._family.positions
        assert name is not None
        dtype = section.tensors[0].dtype
        crcs: list[int] = []
        for rows in self._slabs(name, section.tensors[0].shape[0]):
            if self._family.scaled and section.label == "embedding":
                rows *= np.float32(math.sqrt(rows.shape[1]))
            if dtype == "int8":
                row_scales.append(int8_scales(rows))
                crcs += writer.append_rows(quantize(rows, row_scales[-1][:, None]))
            else:
                crcs += writer.append_rows(_convert(rows, dtype, name))
        return crcs

    def _write_layer(self, writer: PackWriter, section: Section) -> None:
        assert section.block is not None
        layer = section.block.index
        scales: dict[str, Floats] = {}
        for tensor in section.tensors:
            matrix = tensor.name.removesuffix(".scale")
            if tensor.name.endswith(".scale"):
                slabs = (slab for name in self._family.parts(f"{matrix}.weight", layer) for slab in self._slabs(name))
                scales[f"{matrix}.weight"] = np.concatenate([int8_scales(slab) for slab in slabs])
                writer.append(scales[f"{matrix}.weight"])
            elif tensor.name == "kind":
                normed = bool(self._family.parts("norm1.weight", layer))
                writer.append(np.array([layer in self._spec.local_layers, normed], np.float32))
            elif tensor.name.startswith("distance_"):
                writer.append(self._distances(tensor, layer))
            elif len(tensor.shape) == 1 or tensor.name == "distances":
                offset = np.float32(self._family.norm_offset if "norm" in tensor.name else 0)
                rows = [self._read(name) + offset for name in self._family.parts(tensor.name, layer)]
                writer.append(np.concatenate(rows or [np.zeros(tensor.shape, np.float32)]))
            else:
                parts = self._family.parts(tensor.name, layer)
                for panel in self._panels(tensor, parts, scales.get(tensor.name)):
                    writer.append(panel)

    def _panels(self, tensor: TensorSpec, parts: list[str], scale: Floats | None = None) -> Iterator[npt.NDArray[Any]]:
        rows, columns = tensor.shape
        step = max(1, PANEL // (tensor.nbytes // rows))
        buffer = np.empty((min(step, rows), columns), tensor.dtype)
        for start in range(0, rows, step):
            panel = buffer[: rows - start]
            column = 0
            for name in parts:
                for slab in self._slabs(name):
                    values = slab[:, start : start + len(panel)]
                    end = column + len(values)
                    if scale is None:
                        panel[:, column:end] = _convert(values, tensor.dtype, name).T
                    else:
                        panel[:, column:end] = quantize(values, scale[column:end, None]).T
                    column = end
            yield panel

    def _distances(self, tensor: TensorSpec, layer: int) -> npt.NDArray[Any]:
        """The normed embeddings of distances after a layer's projection of queries or keys."""
        assert self._family.distances is not None
        rows, weight, bias = map(self._read, self._family.distances)
        rows = rows - rows.mean(axis=1, keepdims=True)
        variance = np.mean(np.square(rows), axis=1, keepdims=True)
        normed = rows / np.sqrt(variance + np.float32(self._spec.layer.norm_eps)) * weight + bias
        part = ("queries", "keys").index(tensor.name.removeprefix("distance_"))
        matrix, added = (self._read(self._family.parts(f"qkv.{kind}", layer)[part]) for kind in ("weight", "bias"))
        return _convert(normed @ matrix.T + added, tensor.dtype, tensor.name)

    def _small(self, label: str, tensor: TensorSpec) -> Floats:
        if tensor.name in self._family.absent:
            return np.zeros(tensor.shape, np.float32)
        if label == "embed":
            return self._read(self._family.embed[tensor.name])
        if tensor.name == "norm.weight":
            assert self._family.final_norm is not None
            norm: Floats = self._read(self._family.final_norm) + np.float32(self._family.norm_offset)
            return norm
        if tensor.name == "dense_norm.weight":
            assert self._family.dense_norm is not None
            return self._read(self._family.dense_norm)
        if tensor.name.startswith("projection."):
            assert self._projection is not None
            return self._projection[tensor.name == "projection.bias"]
        if tensor.name == "rows":
            assert self._token_rows is not None
            name = self._output()
            return np.concatenate([self._read(name, row, row + 1) for row in self._token_rows])
        projection, kind = tensor.name.split(".")
        name = f"{self._family.dense if projection == 'dense' else self._family.out}.{kind}"
        values: Floats = self._read(name)
        if projection == "out" and len(values) == 2:
            # Two labels: the softmax of two logits is the sigmoid of their difference.
            values = values[1:] - values[:1]
        return np.ascontiguousarray(values.T)

    def _output(self) -> str:
        assert self._family.output is not None
        return self._family.output if self._family.output in self._names else self._family.table

    def _read(self, name: str, start: int = 0, stop: int | None = None) -> Floats:
        return self._source.read(self._names[name], start, stop)

    def _slabs(self, name: str, rows: int | None = None) -> Iterator[Floats]:
        shape = self._source.shapes[self._names[name]]
        rows = shape[0] if rows is None else rows
        step = max(1, SLAB // (4 * shape[1]))
        for start in range(0, rows, step):
            yield self._read(name, start, min(start + step, rows))

    def _check(self) -> None:
        spec, family, hidden = self._spec, self._family, self._spec.layer.hidden
        self._expect(family.table, (spec.vocab, hidden))
        if spec.positions:
            assert family.positions is not None
            self._expect(family.positions, (spec.positions, hidden))
        for tensor in spec.embedding_tensors():
            if tensor.name not in family.absent:
                self._expect(family.embed[tensor.name], tensor.shape)
        if spec.layer.norm_first:
            assert family.final_norm is not None
            self._expect(family.final_norm, (hidden,))
        if spec.head.kind == "classifier":
            if family.dense is None or family.out is None:
                raise ModelError(f"a {family.architecture} model with a classification head is not supported")
            self._expect(f"{family.dense}.weight", (hidden, hidden))
            if "dense.bias" not in family.absent:
                self._expect(f"{family.dense}.bias", (hidden,))
            if family.dense_norm is not None:
                self._expect(family.dense_norm, (hidden,))
            labels = self._shape(f"{family.out}.weight")[0]
            if labels not in (1, 2):
                raise ModelError(f"the classification head has {labels} labels, a reranker has 1 or 2")
            self._expect(f"{family.out}.weight", (labels, hidden))
            self._expect(f"{family.out}.bias", (labels,))
        if spec.head.kind == "yes-no":
            if family.output is None:
                raise ModelError(f"a {family.architecture} model has no output matrix with yes and no rows")
            self._expect(self._output(), (spec.vocab, hidden))
        if spec.layer.spans:
            assert family.distances is not None
            for name, shape in zip(
                family.distances, ((2 * spec.layer.spans, hidden), (hidden,), (hidden,)), strict=True
            ):
                self._expect(name, shape)
        for layer in range(spec.layers):
            self._check_layer(layer)

    def _check_layer(self, layer: int) -> None:
        place = self._family.place(layer)
        unused = {name for name in self._names if name.startswith(place) and not name.endswith(".inv_freq")}
        for tensor in self._spec.layer.tensors():
            if tensor.name.endswith(".scale"):
                continue
            parts = self._family.parts(tensor.name, layer)
            for name, rows in zip(parts, part_rows(self._spec.layer, tensor, len(parts)), strict=True):
                self._expect(name, tensor.shape if tensor.name == "distances" else (rows, *tensor.shape[:-1]))
                unused.discard(name)
        if unused:
            name = self._names[min(unused)]
            raise ModelError(f"tensor {name} is no part of a {self._family.architecture} layer: results would differ")

    def _expect(self, name: str, shape: tuple[int, ...]) -> None:
        found = self._shape(name)
        if found != shape:
            raise ModelError(f"tensor {self._names[name]} has shape {list(found)}, the config says {list(shape)}")

    def _shape(self, name: str) -> tuple[int, ...]:
        if name not in self._names:
            raise ModelError(f"the checkpoint lacks tensor {name}")
        return self._source.shapes[self._names[name]]


def _convert(values: Floats, dtype: str, name: str) -> npt.NDArray[Any]:
    if dtype == "float32":
        return values
    with np.errstate(over="ignore"):
        result = values.astype(dtype)
    if result.size and not (np.isfinite(result.min()) and np.isfinite(result.max())):
        raise ModelError(f"tensor {name} has values past fp16's range; pack it as int8 or fp32")
    return result


def int8_scales(values: Floats) -> Floats:
    """max|w| / 127 of each row; 1 where all values are zero, so that no scale is zero."""
    # Two reductions avoid abs(), which would allocate an array as large as the values.
    largest = np.maximum(values.max(axis=1), -values.min(axis=1))
    result: Floats = np.asarray(largest / np.float32(127), np.float32)
    result[result == 0] = 1
    return result


def quantize(values: Floats, scale: Floats) -> npt.NDArray[np.int8]:
    """round(values / scale), half to even, limited to -127 ... 127; `scale` broadcasts against `values`."""
    quotient = values / scale
    np.rint(quotient, out=quotient)
    np.clip(quotient, -127, 127, out=quotient)
    return quotient.astype(np.int8)


def pack(
    source_dir: str | Path,
    out_dir: str | Path,
    precision: Precision = "int8",
    *,
    name: str | None = None,
    head: HeadSpec | None = None,
    origin: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> PackedModel:
    """Packs a Hugging Face checkpoint into `out_dir`, whole or not at all. It takes about 120 MB for a model of any
    size; the check of the tokenizer before as much as the loaded tokenizer (250 MB for the largest).

    int8 is symmetric per output column and per row. `head` is read from the folder if None; `progress` gets the bytes
    written and the total. ModelError for an incomplete or unknown checkpoint, StorageError if the disk refuses."""
    folder = Path(source_dir)
    check_precision(precision)
    if not folder.is_dir():
        raise ModelError(f"{folder} is not a folder")
    body = body_folder(folder)
    config = read_json(body / "config.json")
    family = family_of(config)
    with Staging(out_dir) as staging, Checkpoint(body) as checkpoint:
        checkpoint.part(family.fused)
        if head is None:
            head = detect_head(folder, family, family.canonical(checkpoint.shapes))
        spec = family.spec_from_config(config, head, precision)
        spec = replace(spec, max_tokens=token_limit(body, spec.max_tokens))
        dense = dense_folders(folder) if head.projection else []
        present = [path for pattern in ("*", "*/*") for path in folder.glob(pattern) if path.is_file()]
        files = {
            *checkpoint.files,
            *(folder / name for name in wanted(p.relative_to(folder).as_posix() for p in present)),
        }
        sources = {file.relative_to(folder).as_posix(): file_sha256(file) for file in sorted(files)}
        pack_weights(
            staging,
            checkpoint,
            family,
            spec,
            tokenizer=body / TOKENIZER,
            name=name or folder.resolve().name,
            sources=sources,
            origin=origin or {},
            projection=read_projection(dense, spec.layer.hidden) if head.projection else None,
            progress=progress,
        )
    return PackedModel.open(out_dir)


def check_precision(precision: str) -> None:
    if precision not in MATRIX_DTYPE:
        raise ModelError(f"precision {precision!r} is not known; choose one of {', '.join(MATRIX_DTYPE)}")


def pack_weights(
    staging: Staging,
    source: WeightSource,
    family: Family,
    spec: ModelSpec,
    *,
    tokenizer: Path,
    name: str,
    sources: Mapping[str, str],
    origin: Mapping[str, str],
    projection: Projection | None = None,
    progress: Progress | None = None,
) -> None:
    """Writes and commits a pack of the weights from `source`."""
    packer = WeightPacker(source, family, spec, _token_rows(tokenizer, spec), projection)
    contents = contents_of(spec)
    header = header_of(contents)
    layout = Layout.of(contents, len(header))
    with PackWriter(staging.path / DATA, layout, header, progress) as writer:
        packer.write(writer, layout)
    with as_storage_error(f"{tokenizer} cannot be copied"):
        if tokenizer.parent != staging.path:
            shutil.copyfile(tokenizer, staging.path / TOKENIZER)
        partial = build(staging.path / TOKENIZER, staging.path / VOCABULARY)
    PackManifest(
        name=name,
        spec=spec,
        sources=sources,
        origin=origin,
        blocks=writer.extents,
        tables=layout.tables,
        data_nbytes=layout.nbytes,
        tokenizer_sha256=file_sha256(staging.path / TOKENIZER),
        vocabulary_sha256=file_sha256(staging.path / VOCABULARY) if partial else None,
    ).write(staging.path)
    staging.commit()


def _token_rows(path: Path, spec: ModelSpec) -> tuple[int, int] | None:
    """Checks that the tokenizer belongs to the model, and finds the ids of the `no` and `yes` tokens."""
    if not path.is_file():
        raise ModelError(f"{path.parent} has no {TOKENIZER}; a fast tokenizer's save_pretrained writes one")
    tokenizer = read_tokenizer(path)
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    if size > spec.vocab:
        raise ModelError(f"{path} has {size:,} tokens, the embedding table only {spec.vocab:,} rows")
    check_tokenizer(path.parent, tokenizer, spec)
    if spec.head.kind != "yes-no":
        return None
    no, yes = tokenizer.token_to_id(spec.head.no_token), tokenizer.token_to_id(spec.head.yes_token)
    if no is None or yes is None:
        raise ModelError(f"{path} lacks the tokens {spec.head.no_token!r} and {spec.head.yes_token!r}")
    return no, yes
