"""ModernBERT encoders (Warner et al., 2024), as `ModernBertModel` and `ModernBertForSequenceClassification` save them.

Every third layer attends to all tokens, the others to the tokens near them, with another base of the rotary positions.
The norms come first, except in layer 0, whose input the embedding has normed. Norms and matrices have no biases.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edge.errors import ModelError
from edge.models.family import Config, Family, activation, number, whole
from edge.models.keys import OFF, Keys, words
from edge.models.qwen3 import rope_theta
from edge.models.spec import HeadSpec, LayerSpec, ModelSpec, Precision

GLOBAL, LOCAL = "full_attention", "sliding_attention"
_USED = ("embeddings.", "layers.", "final_norm.", "head.", "classifier.")


def sanitize(name: str) -> str | None:
    """A checkpoint's tensor name without its `model.` prefix. None for the masked-language head's output."""
    name = name.removeprefix("model.")
    return name if name.startswith(_USED) else None


def layer_kinds(config: Config, layers: int, default: list[str]) -> list[str]:
    """The kind of attention of each layer, `GLOBAL` or `LOCAL`; `default` where the config does not say it.

    Raises:
        ModelError: the config names another kind, or another number of layers.
    """
    kinds = config.get("layer_types")
    if kinds is None:
        return default
    if not isinstance(kinds, list) or len(kinds) != layers or not all(kind in (GLOBAL, LOCAL) for kind in kinds):
        raise ModelError(f"config.json: layer_types is not one of {GLOBAL} and {LOCAL} for each of {layers} layers")
    return kinds


def layer_theta(config: Config, kind: str, key: str, default: float) -> float:
    """The base of the rotary positions of a kind of layers. `key` is its name in older configurations.

    Raises:
        ModelError: the positions are scaled.
    """
    ropes = config.get("rope_parameters") or {}
    if not isinstance(ropes, Mapping) or not set(ropes) <= {GLOBAL, LOCAL}:
        raise ModelError(f"config.json: rope_parameters = {ropes!r} is not supported, only those of layer_types")
    return rope_theta(ropes.get(kind) or {}, number(config, key, default))


def spec_from_config(config: Config, head: HeadSpec, precision: Precision) -> ModelSpec:
    """The model description from config.json.

    Raises:
        ModelError: something in the config is missing or not supported (biases, scaled rotary positions).
    """
    hidden, heads, layers = (
        whole(config, f"{key}") for key in ("hidden_size", "num_attention_heads", "num_hidden_layers")
    )
    if hidden % heads or hidden // heads % 2:
        raise ModelError(f"config.json: hidden_size {hidden} has no num_attention_heads = {heads} heads of even size")
    defaults: dict[str, Any] = {"local_attention": 128, "max_position_embeddings": 8192}
    window = whole({**defaults, **config}, "local_attention") // 2
    if not window:
        raise ModelError("config.json: local_attention = 1 is not supported")
    if head.kind == "classifier":
        pooling = config.get("classifier_pooling", "cls")
        if pooling not in ("cls", "mean"):
            raise ModelError(f"config.json: classifier_pooling = {pooling!r} is not supported, only cls and mean")
        acts = activation(config, "gelu", "classifier_activation")
        head = replace(head, activation=acts, pooled="first" if pooling == "cls" else "all", normed=True)
    layer = LayerSpec(
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_size=hidden // heads,
        ffn=whole(config, "intermediate_size"),
        activation=activation(config, "gelu", "hidden_activation"),
        gated=True,
        norm="layer",
        norm_first=True,
        norm_eps=number(config, "norm_eps", 1e-5),
        rope_theta=layer_theta(config, GLOBAL, "global_rope_theta", 160_000.0),
        causal=False,
        qk_norm=False,
        bias=False,
        precision=precision,
        window=window,
        local_theta=layer_theta(config, LOCAL, "local_rope_theta", 10_000.0),
    )
    every = whole({"global_attn_every_n_layers": 3, **config}, "global_attn_every_n_layers")
    default = [LOCAL if number % every else GLOBAL for number in range(min(layers, 1000))]
    return ModelSpec(
        architecture="modernbert",
        layers=layers,
        layer=layer,
        vocab=whole(config, "vocab_size"),
        positions=0,
        position_offset=0,
        token_types=0,
        max_tokens=whole({**defaults, **config}, "max_position_embeddings"),
        head=head,
        local_layers=tuple(number for number, kind in enumerate(layer_kinds(config, layers, default)) if kind == LOCAL),
    )


FAMILY = Family(
    architecture="modernbert",
    spec_from_config=spec_from_config,
    sanitize=sanitize,
    prefix="model.",
    layer={
        "norm1.weight": ("layers.{i}.attn_norm.weight",),
        "norm2.weight": ("layers.{i}.mlp_norm.weight",),
        "qkv.weight": ("layers.{i}.attn.Wqkv.weight",),
        "out.weight": ("layers.{i}.attn.Wo.weight",),
        "up.weight": ("layers.{i}.mlp.Wi.weight",),
        "down.weight": ("layers.{i}.mlp.Wo.weight",),
    },
    absent=frozenset(("norm1.bias", "norm2.bias", "norm.bias", "dense.bias")),
    plain_first=True,
    table="embeddings.tok_embeddings.weight",
    embed={"norm.weight": "embeddings.norm.weight"},
    dense="head.dense",
    dense_norm="head.norm.weight",
    out="classifier",
    final_norm="final_norm.weight",
    keys=Keys(
        used=words(
            "hidden_size num_attention_heads num_hidden_layers intermediate_size hidden_activation norm_eps vocab_size"
            " max_position_embeddings layer_types global_attn_every_n_layers local_attention rope_parameters"
            " global_rope_theta local_rope_theta classifier_pooling classifier_activation"
        ),
        harmless=words(
            "tie_word_embeddings initializer_cutoff_factor embedding_dropout mlp_dropout deterministic_flash_attn"
            " decoder_bias sparse_prediction sparse_pred_ignore_index reference_compile repad_logits_with_grad"
            " layer_norm_eps position_embedding_type"  # published files have both; no code reads them
        ),
        accepted={
            "attention_bias": OFF,
            "mlp_bias": OFF,
            "norm_bias": OFF,
            "classifier_bias": OFF,
            "rope_scaling": (None,),
            "is_causal": OFF,
            "causal_mask": OFF,
        },
    ),
)
