"""Stores what the training makes in the form that the program reads: the reader of a reranker, and the judge of
statements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.blocks import BlockId
from edge.errors import ModelError
from edge.files.sealed import write_sealed
from edge.models.architectures import FAMILIES
from edge.models.family import Family
from edge.models.pack import PackWriter, int8_scales, quantize
from edge.models.packed import Floats, Layout, PackedModel, header_of
from edge.models.reader import DATA, FILE, OUT, VERSION, contents_of
from edge.models.spec import TensorSpec


def write_reader(model: PackedModel, shared: int, weights: Mapping[str, Floats]) -> None:
    """Stores a reader beside its reranker, in its precision. `weights` are by the names of the reranker's architecture,
    from layer 0, with `out.weight` [2, hidden] and `out.bias` [2]."""
    family = next(family for family in FAMILIES.values() if family.architecture == model.spec.architecture)
    layers = sum(f"{family.place(i)}" in " ".join(weights) for i in range(model.spec.layers))
    contents = contents_of(model.spec.layer, layers)
    header = header_of(contents)
    layout = Layout.of(contents, len(header))
    path = model.path / DATA
    path.unlink(missing_ok=True)
    with PackWriter(path, layout, header) as writer:
        for section in layout.sections:
            writer.begin(section)
            for tensor in section.tensors:
                values = _values(section.block, tensor, family, weights)
                if values.shape != tensor.shape or values.dtype != tensor.dtype:
                    raise ModelError(f"the reader's {section.label}.{tensor.name} has the shape {values.shape}")
                writer.append(values)
            writer.end(section)
    blocks = [{"kind": b.kind, "index": b.index, **asdict(e)} for b, e in writer.extents.items()]
    document = {"version": VERSION, "fingerprint": model.fingerprint, "shared": shared, "layers": layers}
    write_sealed(model.path / FILE, {**document, "blocks": blocks})


def _values(
    block: BlockId | None, tensor: TensorSpec, family: Family, weights: Mapping[str, Floats]
) -> npt.NDArray[Any]:
    try:
        if block is None or block == OUT:
            return np.ascontiguousarray(weights[f"out.{tensor.name}"].T, np.float32)
        matrix = tensor.name.removesuffix(".scale")
        name = tensor.name if matrix == tensor.name else f"{matrix}.weight"
        values = np.concatenate([weights[part] for part in family.parts(name, block.index)]).astype(np.float32)
    except KeyError as error:
        raise ModelError(f"the reader has no tensor {error}") from None
    if matrix != tensor.name:
        return int8_scales(values)
    if values.ndim == 1:
        return values
    if tensor.dtype == "int8":
        return np.ascontiguousarray(quantize(values, int8_scales(values)[:, None]).T)
    return np.ascontiguousarray(values.T, tensor.dtype)


def save_statements(path: Path, keys: Sequence[int], weights: Mapping[str, npt.NDArray[Any]]) -> None:
    """Stores a model: the vectors of its words and stems [keys, dim] (`vectors`) in eight bits, other weights in
    sixteen."""
    vectors, order = np.asarray(weights["vectors"], np.float32), np.argsort(np.array(keys, np.uint32))
    scale = np.abs(vectors).max(axis=0) / 127
    stored: dict[str, Any] = {
        name: np.asarray(array, np.float16) for name, array in weights.items() if name != "vectors"
    }
    stored |= {"words": np.array(keys, np.uint32)[order], "scale": scale.astype(np.float32)}
    stored["vectors"] = np.rint(vectors / scale).astype(np.int8)[order]
    np.savez_compressed(path, **stored)
