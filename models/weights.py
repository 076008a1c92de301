"""Turns a checkpoint's weights into those of a packed model, a slab of rows at a time.

Memory does not grow with the model. A matrix is built in panels of at most `PANEL` bytes of its input rows. Each read
of the source takes at most `SLAB` bytes. If a matrix needs several panels, its source is read several times. The page
cache makes these reads cheap, and the matrix need not be held in memory. Quantization to int8 is symmetric: a column's
(or a row's) largest magnitude becomes 127.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.errors import ModelError
from edge.models.checkpoint import Floats, WeightSource
from edge.models.family import Family, part_rows
from edge.models.layout import EMBEDDING_SCALE, ROW_BLOCKS, Layout, PackWriter, Section
from edge.models.spec import ModelSpec, TensorSpec

SLAB = 4 << 20
PANEL = 32 << 20


class WeightPacker:
    """Converts one model's weights from a source and writes them to a pack."""

    def __init__(self, source: WeightSource, family: Family, spec: ModelSpec, token_rows: tuple[int, int] | None):
        """Checks that every tensor exists and has the shape that follows from the config.

        Args:
            token_rows: the ids of the `no` and `yes` tokens, for a head that reads their rows.

        Raises:
            ModelError: a tensor is missing or misshapen; the message names it.
        """
        self._source = source
        self._family = family
        self._spec = spec
        self._token_rows = token_rows
        self._names = family.canonical(source.shapes)
        self._check()

    def write(self, writer: PackWriter, layout: Layout) -> None:
        """Writes all sections.

        Raises:
            ModelError: a weight is NaN, infinite or does not fit the precision.
            StorageError: the disk refuses.
        """
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
                slabs = (slab for name in self._parts(f"{matrix}.weight", layer) for slab in self._slabs(name))
                scales[f"{matrix}.weight"] = np.concatenate([int8_scales(slab) for slab in slabs])
                writer.append(scales[f"{matrix}.weight"])
            elif len(tensor.shape) == 1:
                parts = self._parts(tensor.name, layer)
                writer.append(np.concatenate([self._source.read(self._names[name]) for name in parts]))
            else:
                parts = self._parts(tensor.name, layer)
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

    def _small(self, label: str, tensor: TensorSpec) -> Floats:
        if label == "embed":
            return self._read(self._family.embed[tensor.name])
        if tensor.name == "norm.weight":
            assert self._family.final_norm is not None
            return self._read(self._family.final_norm)
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

    def _parts(self, name: str, layer: int) -> list[str]:
        return [part.format(i=layer) for part in self._family.layer[name]]

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
            self._expect(family.embed[tensor.name], tensor.shape)
        if spec.layer.norm_first:
            assert family.final_norm is not None
            self._expect(family.final_norm, (hidden,))
        if spec.head.kind == "classifier":
            if family.dense is None or family.out is None:
                raise ModelError(f"a {family.architecture} model with a classification head is not supported")
            self._expect(f"{family.dense}.weight", (hidden, hidden))
            self._expect(f"{family.dense}.bias", (hidden,))
            labels = self._shape(f"{family.out}.weight")[0]
            if labels not in (1, 2):
                raise ModelError(f"the classification head has {labels} labels, a reranker has 1 or 2")
            self._expect(f"{family.out}.weight", (labels, hidden))
            self._expect(f"{family.out}.bias", (labels,))
        if spec.head.kind == "yes-no":
            if family.output is None:
                raise ModelError(f"a {family.architecture} model has no output matrix with yes and no rows")
            self._expect(self._output(), (spec.vocab, hidden))
        for layer in range(spec.layers):
            self._check_layer(layer)

    def _check_layer(self, layer: int) -> None:
        for tensor in self._spec.layer.tensors():
            if tensor.name.endswith(".scale"):
                continue
            parts = self._parts(tensor.name, layer)
            for name, rows in zip(parts, part_rows(self._spec.layer, tensor, len(parts)), strict=True):
                self._expect(name, (rows, *tensor.shape[:-1]))

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
