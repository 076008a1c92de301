"""The reader of a reranker, stored beside it: a few layers above the reranker's first ones, and two scores of each
token, for the start and the end of an answer (BERT for SQuAD, Devlin et al. 2019); the first token's mean no answer.
`reader.json` tells the shared layers and the blocks of `reader.safetensors`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.blocks import BlockFile, BlockId, Extent
from edge.errors import CorruptBlock, ModelError
from edge.files.sealed import read_sealed, write_sealed
from edge.models.architectures import FAMILIES
from edge.models.family import Family
from edge.models.manifest import remedy
from edge.models.pack import PackWriter, int8_scales, quantize
from edge.models.packed import (
    HEADER,
    Contents,
    Floats,
    Layout,
    PackedModel,
    check_finite,
    header_of,
    layer_contents,
    placed,
    views,
)
from edge.models.spec import LayerSpec, TensorSpec
from edge.resident import Closing

FILE, DATA = "reader.json", "reader.safetensors"
VERSION = 1
OUT = BlockId("out")
"""The block of the projection to the scores of start and end."""

LONGEST = 128
"""The most tokens of a span; a longer block of code is found by its beginning."""

EVIDENCE, SIGNALS = "reader", ("margin",)
"""The name of the model in `evidence.json` that turns the margin of a span over "no answer" into a probability."""


class Reader(Closing):
    """The stored reader of a reranker, open for reading, above the reranker's first `shared` layers."""

    def __init__(self, model: PackedModel, shared: int, layers: int, extents: Mapping[BlockId, Extent]) -> None:
        self.shared = shared
        self.layers = [BlockId("layer", i) for i in range(layers)]
        self.file = BlockFile(model.path / DATA, extents, remedy(model.path))
        self._places = {
            block: placed(tensors) for _, block, tensors in _contents(model.spec.layer, layers) if block is not None
        }

    @classmethod
    def open(cls, model: PackedModel) -> Reader | None:
        """The reader beside a reranker; None if none for its weights. CorruptBlock or StorageError."""
        path = model.path / FILE
        document = read_sealed(path)
        if document is None or document.get("fingerprint") != model.fingerprint:
            return None
        try:
            shared, layers = document["shared"], document["layers"]
            extents = {BlockId(b.pop("kind"), b.pop("index")): Extent(**b) for b in document["blocks"]}
            layout = Layout.of(_contents(model.spec.layer, layers), extents[HEADER].nbytes)
            expected = {s.block: (s.offset, s.nbytes) for s in layout.sections} | {HEADER: (0, extents[HEADER].nbytes)}
            if document["version"] != VERSION or not 0 < shared <= model.spec.layers or layers < 1:
                raise ValueError("it is of another version of this program")
            if {block: (e.offset, e.nbytes) for block, e in extents.items()} != expected:
                raise ValueError("its blocks have another layout")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CorruptBlock(f"{path} describes no reader ({error}); {remedy(model.path)}") from error
        return cls(model, shared, layers, extents)

    def load(self, block: BlockId) -> dict[str, npt.NDArray[Any]]:
        """Reads a block into new memory, and returns its tensors. CorruptBlock or ModelError if damaged."""
        buffer = np.empty(self.file.nbytes(block), np.uint8)
        self.file.read(block, buffer.data)
        tensors = views(self._places[block], buffer)
        check_finite(tensors, f"of {block}", self.file.path)
        return tensors

    def close(self) -> None:
        self.file.close()


def best_span(nothing: Floats, tokens: Floats) -> tuple[int, int, float]:
    """First and last token of the best span, and by how much all spans exceed "no answer", as log-odds, from scores of
    start and end of the first token [2] and of neighbouring ones [tokens, 2]."""
    if not len(tokens):
        return 0, 0, -np.inf
    ends = np.concatenate((tokens[:, 1], np.full(LONGEST - 1, -np.inf, np.float32)))
    scores = tokens[:, :1] + np.lib.stride_tricks.sliding_window_view(ends, LONGEST)
    start, length = divmod(int(scores.argmax()), LONGEST)
    most = scores[start, length]
    return start, start + length, float(most + np.log(np.exp(scores - most).sum()) - nothing.sum())


def verify(model: PackedModel) -> None:
    """Reads the whole reader beside a reranker, if there is one. CorruptBlock if it is damaged."""
    reader = Reader.open(model)
    if reader is not None:
        with reader:
            for block in reader.file.extents:
                reader.file.read(block, np.empty(reader.file.nbytes(block), np.uint8).data)


def write(model: PackedModel, shared: int, weights: Mapping[str, Floats]) -> None:
    """Stores a reader beside its reranker, in its precision. `weights` are by the names of the reranker's architecture,
    from layer 0, with `out.weight` [2, hidden] and `out.bias` [2]."""
    family = next(family for family in FAMILIES.values() if family.architecture == model.spec.architecture)
    layers = sum(f"{family.place(i)}" in " ".join(weights) for i in range(model.spec.layers))
    contents = _contents(model.spec.layer, layers)
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


def _contents(layer: LayerSpec, layers: int) -> Contents:
    out = TensorSpec("weight", (layer.hidden, 2), "float32"), TensorSpec("bias", (2,), "float32")
    return [("out", OUT, out), *layer_contents(layer, layers)]


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
