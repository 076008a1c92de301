"""The reader of a reranker, stored beside it: a few layers above the reranker's first ones, and two scores of each
token, for the start and the end of an answer (BERT for SQuAD, Devlin et al. 2019); the first token's mean no answer.
`reader.json` tells the shared layers and the blocks of `reader.safetensors`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.blocks import BlockFile, BlockId, Extent
from edge.errors import CorruptBlock
from edge.files.sealed import read_sealed
from edge.models.manifest import remedy
from edge.models.packed import (
    HEADER,
    Contents,
    Floats,
    Layout,
    PackedModel,
    check_finite,
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
            block: placed(tensors) for _, block, tensors in contents_of(model.spec.layer, layers) if block is not None
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
            layout = Layout.of(contents_of(model.spec.layer, layers), extents[HEADER].nbytes)
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


def contents_of(layer: LayerSpec, layers: int) -> Contents:
    out = TensorSpec("weight", (layer.hidden, 2), "float32"), TensorSpec("bias", (2,), "float32")
    return [("out", OUT, out), *layer_contents(layer, layers)]
