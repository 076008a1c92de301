"""The Dense modules after the pooling of a sentence-transformers model, as one projection."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np

from edge.errors import ModelError
from edge.models.checkpoint import Checkpoint, Floats, read_json
from edge.models.keys import Keys, words

Projection: TypeAlias = tuple[Floats, Floats]
"""A matrix [in, out] and a bias [out]."""

Activation = Literal["identity", "tanh"]

KEYS = Keys(
    used=words("in_features out_features bias activation_function"),
    accepted={
        "module_input_name": ("sentence_embedding", None),
        "module_output_name": ("sentence_embedding", None),
    },
)
_ACTIVATIONS: dict[object, Activation] = {
    "torch.nn.modules.linear.Identity": "identity",
    "torch.nn.modules.activation.Tanh": "tanh",
}


def activation_of(folders: Sequence[Path]) -> tuple[int, Activation]:
    """The width after the last of several Dense modules, and its activation; only the last may have one."""
    width, activation = 0, _ACTIVATIONS["torch.nn.modules.linear.Identity"]
    for folder in folders:
        path = folder / "config.json"
        config = read_json(path)
        KEYS.check(path, config)
        name = config.get("activation_function", "torch.nn.modules.activation.Tanh")
        if activation != "identity" or name not in _ACTIVATIONS:
            raise ModelError(
                f"{path}: the activation {name!r} is not supported here, only Identity, and Tanh at the end"
            )
        sizes = [config.get("in_features"), config.get("out_features")]
        if not all(type(size) is int and size > 0 for size in sizes) or (width and sizes[0] != width):
            raise ModelError(f"{path}: in_features and out_features are {sizes}, after a width of {width}")
        width, activation = int(config["out_features"]), _ACTIVATIONS[name]
    return width, activation


def read_projection(folders: Sequence[Path], hidden: int) -> Projection:
    """The product of the modules' matrices, and their bias, after vectors of width `hidden`."""
    matrix: Floats = np.eye(hidden, dtype=np.float32)
    bias: Floats = np.zeros(hidden, np.float32)
    for folder in folders:
        width = int(read_json(folder / "config.json")["out_features"])
        with Checkpoint(folder) as checkpoint:
            if checkpoint.shapes.get("linear.weight") != (width, len(bias)):
                raise ModelError(f"{folder} has no tensor linear.weight of the shape {[width, len(bias)]}")
            weight = checkpoint.read("linear.weight").T
            added = checkpoint.read("linear.bias") if "linear.bias" in checkpoint.shapes else np.float32(0)
            if np.shape(added) not in ((), (width,)):
                raise ModelError(f"{folder} has a tensor linear.bias of the shape {list(np.shape(added))}")
        matrix, bias = matrix @ weight, bias @ weight + added
    return np.ascontiguousarray(matrix), bias
