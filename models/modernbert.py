"""ModernBERT encoders (Warner et al., 2024): every third layer attends to all tokens, the others locally with another
rotary base. Norms come first, except in layer 0. Norms and matrices have no biases."""

from __future__ import annotations

from dataclasses import replace

from edge.errors import ModelError
from edge.models.family import Config, Family, activation, number, whole
from edge.models.keys import OFF, SHAPE, Keys, words
from edge.models.rotary import GLOBAL, LOCAL, layer_theta, local_layers, rotary_spec, window
from edge.models.spec import HeadSpec, ModelSpec, Precision

_USED = ("embeddings.", "layers.", "final_norm.", "head.", "classifier.")


def sanitize(name: str) -> str | None:
    """A checkpoint's tensor name without its `model.` prefix. None for the masked-language head's output."""
    name = name.removeprefix("model.")
    return name if name.startswith(_USED) else None


def spec_from_config(config: Config, head: HeadSpec, precision: Precision) -> ModelSpec:
    """The model description from config.json. ModelError for biases or scaled rotary positions."""
    if head.kind == "classifier":
        pooling = config.get("classifier_pooling", "cls")
        if pooling not in ("cls", "mean"):
            raise ModelError(f"config.json: classifier_pooling = {pooling!r} is not supported, only cls and mean")
        acts = activation(config, "gelu", "classifier_activation")
        head = replace(head, activation=acts, pooled="first" if pooling == "cls" else "all", normed=True)
    every = whole({"global_attn_every_n_layers": 3, **config}, "global_attn_every_n_layers")
    return rotary_spec(
        {"max_position_embeddings": 8192, **config},
        head,
        precision,
        "modernbert",
        local_layers(config, every, 0),
        activation=activation(config, "gelu", "hidden_activation"),
        norm="layer",
        norm_eps=number(config, "norm_eps", 1e-5),
        rope_theta=layer_theta(config, GLOBAL, "global_rope_theta", 160_000.0),
        qk_norm=False,
        window=window(config, "local_attention", 128),
        local_theta=layer_theta(config, LOCAL, "local_rope_theta", 10_000.0),
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
        used=SHAPE
        | words(
            "hidden_activation norm_eps layer_types global_attn_every_n_layers local_attention rope_parameters"
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
