"""Models whose layers norm their inputs, rotate queries and keys, and have gates: Qwen, Gemma 3 and ModernBERT."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edge.errors import ModelError
from edge.models.family import Config, number, whole
from edge.models.keys import Keys, words
from edge.models.spec import Architecture, HeadSpec, LayerSpec, ModelSpec, Precision

GLOBAL, LOCAL = "full_attention", "sliding_attention"


def rotary_spec(
    config: Config,
    head: HeadSpec,
    precision: Precision,
    architecture: Architecture,
    local_layers: tuple[int, ...] = (),
    **layer: Any,
) -> ModelSpec:
    """The description from config.json; `layer` are fields of `LayerSpec` in which these models differ."""
    hidden, heads = whole(config, "hidden_size"), whole(config, "num_attention_heads")
    shared, given = config.get("num_key_value_heads"), config.get("head_dim")
    kv_heads = heads if shared is None else whole(config, "num_key_value_heads")
    size = hidden // heads if given is None else whole(config, "head_dim")
    if heads % kv_heads or size % 2 or (given is None and hidden % heads):
        raise ModelError(
            f"config.json: hidden_size = {hidden}, num_attention_heads = {heads}, num_key_value_heads = {kv_heads} and "
            f"heads of {size} numbers do not fit one another"
        )
    common = {"gated": True, "norm": "rms", "norm_first": True, "causal": False, "bias": False, "precision": precision}
    return ModelSpec(
        architecture=architecture,
        layers=whole(config, "num_hidden_layers"),
        layer=LayerSpec(
            hidden=hidden,
            heads=heads,
            kv_heads=kv_heads,
            head_size=size,
            ffn=whole(config, "intermediate_size"),
            **{**common, **layer},
        ),
        vocab=whole(config, "vocab_size"),
        positions=0,
        position_offset=0,
        token_types=0,
        max_tokens=whole(config, "max_position_embeddings"),
        head=head,
        local_layers=local_layers,
    )


def local_layers(config: Config, every: int, first: int) -> tuple[int, ...]:
    """The layers that attend within a window: as `layer_types` says, else all but layer `first` and each `every`-th
    before and after it."""
    layers, kinds = whole(config, "num_hidden_layers"), config.get("layer_types")
    if kinds is None:
        return tuple(number for number in range(min(layers, 1000)) if (number - first) % every)
    if not isinstance(kinds, list) or len(kinds) != layers or not all(kind in (GLOBAL, LOCAL) for kind in kinds):
        raise ModelError(f"config.json: layer_types is not one of {GLOBAL} and {LOCAL} for each of {layers} layers")
    return tuple(number for number, kind in enumerate(kinds) if kind == LOCAL)


def window(config: Config, key: str, default: int) -> int:
    """Tokens on each side that a token of a local layer attends to."""
    tokens = whole({key: default, **config}, key) // 2
    if not tokens:
        raise ModelError(f"config.json: {key} = 1 is not supported")
    return tokens


def layer_theta(config: Config, kind: str, key: str, default: float) -> float:
    """The base of the rotary positions of a kind of layers (`key` in older configurations). ModelError if they are
    scaled."""
    ropes = config.get("rope_parameters") or {}
    if not isinstance(ropes, Mapping) or not set(ropes) <= {GLOBAL, LOCAL}:
        raise ModelError(f"config.json: rope_parameters = {ropes!r} is not supported, only those of layer_types")
    return rope_theta(ropes.get(kind) or {}, number(config, key, default))


def rope_theta(rope: object, default: float) -> float:
    """The base of the rotary positions from a dictionary of transformers 5. ModelError if they are scaled."""
    if not isinstance(rope, dict):
        raise ModelError(f"config.json: rope_parameters = {rope!r} is not supported, an object is needed")
    Keys(
        used=words("rope_theta"), accepted={"rope_type": ("default", None), "partial_rotary_factor": (1.0, 1, None)}
    ).check("config.json: rope_parameters", rope)
    return number(rope, "rope_theta", default)
