"""The description of one architecture's checkpoints: the names of the tensors, and the meaning of the config."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from edge.errors import ModelError
from edge.models.keys import CONFIG, CROSS_ENCODER, Keys
from edge.models.spec import Activation, Architecture, HeadSpec, LayerSpec, ModelSpec, Precision, TensorSpec

Config = Mapping[str, Any]
"""A parsed Hugging Face config.json."""

ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu", "gelu_python": "gelu", "gelu_new": "gelu_tanh", "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu",
}  # fmt: skip
"""Hugging Face activation names and ours."""


@dataclass(frozen=True, slots=True)
class Family:
    """One architecture.

    Checkpoint names are given in canonical form. `sanitize` makes it from the names in a file.

    Attributes:
        architecture: our name.
        spec_from_config: the model description from config.json.
        sanitize: a checkpoint's tensor name in canonical form, or None for a tensor that is not used.
        prefix: the prefix of the encoder's or decoder's tensor names in the checkpoint of a model with a head.
        layer: for each of our tensors of a layer, the canonical names (with `{i}` for the layer's number) of the
            checkpoint tensors that stand side by side in it. The checkpoint stores matrices as [out, in].
        table: the token embedding table.
        embed: tensors of block `embed`.
        positions: the learned position table.
        dense, out: the two projections of the classification head.
        final_norm: the norm after the last layer.
        output: the output matrix of a language model. A checkpoint without this matrix uses `table` in its place.
        fused: endings of checkpoint tensors that hold several in rows of equal number, and the endings of these.
        distances: the embeddings of distances, and the weight and the bias of their norm (`LayerSpec.spans`).
        scaled: the rows of the token embedding table are multiplied by the root of the hidden width.
        norm_offset: added to the weights of all norms.
        absent: our names of tensors that the checkpoints do not have and that are zero.
        plain_first: layer 0 does not norm its input, and has no such norm.
        dense_norm: the norm after the activation of the classification head.
        code: the repository whose code `auto_map` may name, because this family computes the same.
        keys: the keys of config.json that belong to this family, in addition to `keys.CONFIG`.
    """

    architecture: Architecture
    spec_from_config: Callable[[Config, HeadSpec, Precision], ModelSpec]
    sanitize: Callable[[str], str | None]
    prefix: str
    layer: Mapping[str, tuple[str, ...]]
    table: str
    embed: Mapping[str, str]
    positions: str | None = None
    dense: str | None = None
    out: str | None = None
    final_norm: str | None = None
    output: str | None = None
    fused: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    distances: tuple[str, str, str] | None = None
    scaled: bool = False
    norm_offset: float = 0.0
    absent: frozenset[str] = frozenset()
    plain_first: bool = False
    dense_norm: str | None = None
    code: str | None = None
    keys: Keys = field(default_factory=Keys)

    def check(self, config: Config) -> None:
        """Checks that every key is used here, or changes no result. ModelError names the first other one."""
        named = config.get("auto_map")
        known = isinstance(named, dict) and all(str(name).startswith(f"{self.code}--") for name in named.values())
        own = {"sentence_transformers", *(["auto_map"] if known else [])}
        self.all_keys.check("config.json", {key: value for key, value in config.items() if key not in own})
        saved = config.get("sentence_transformers") or {}
        if not isinstance(saved, dict):
            raise ModelError("config.json: sentence_transformers is not an object")
        CROSS_ENCODER.check("config.json: sentence_transformers", saved)

    @property
    def all_keys(self) -> Keys:
        """The keys of config.json."""
        return Keys(
            CONFIG.used | self.keys.used,
            CONFIG.harmless | self.keys.harmless,
            {**CONFIG.accepted, **self.keys.accepted},
        )

    def place(self, layer: int) -> str:
        return self.layer["qkv.weight"][0].partition("{i}")[0] + f"{layer}."

    def parts(self, name: str, layer: int) -> list[str]:
        """The canonical names of the checkpoint tensors in a tensor of a layer; empty if the checkpoint has none."""
        if (
            name == "kind"
            or name.startswith("distance_")
            or name in self.absent
            or (self.plain_first and (name, layer) == ("norm1.weight", 0))
        ):
            return []
        return [part.format(i=layer) for part in self.layer[name]]

    def canonical(self, names: Mapping[str, tuple[int, ...]]) -> dict[str, str]:
        """Canonical name -> the checkpoint's own name, for all tensors that may be used."""
        found: dict[str, str] = {}
        for name in names:
            clean = self.sanitize(name)
            if clean is not None:
                found[clean] = name
        return found


def part_rows(layer: LayerSpec, tensor: TensorSpec, parts: int) -> list[int]:
    """The number of outputs that each of a layer tensor's `parts` checkpoint tensors contributes."""
    outputs = tensor.shape[-1]
    if parts == 0:
        return []
    if parts == 3:
        return [layer.heads * layer.head_size, *[layer.kv_heads * layer.head_size] * 2]
    return [outputs // parts] * parts


def whole(config: Config, key: str) -> int:
    """A positive whole number of the config; ModelError for anything else."""
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise ModelError(f"config.json: {key} is {value!r}, a positive number is needed")
    return value


def number(config: Config, key: str, default: float) -> float:
    """A number of the config that is not negative, or `default` where the config has none."""
    value = config.get(key, default)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < math.inf:
        raise ModelError(f"config.json: {key} is {value!r}, a number is needed")
    return float(value)


def activation(config: Config, default: str, key: str = "hidden_act") -> Activation:
    """Our name of the config's activation, or of `default`. ModelError if no runtime computes it."""
    name = config.get(key, default)
    if not isinstance(name, str) or name not in ACTIVATIONS:
        known = ", ".join(sorted(ACTIVATIONS))
        raise ModelError(f"config.json: {key}, the activation {name!r}, is not supported; supported: {known}")
    return ACTIVATIONS[name]
