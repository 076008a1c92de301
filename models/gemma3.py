"""Gemma 3 encoders (EmbeddingGemma, Vera et al., 2025): bidirectional attention, most layers local with another rotary
base, outputs normed before they are added. Weights of norms are stored less 1."""

from __future__ import annotations

from edge.errors import ModelError
from edge.models import qwen3
from edge.models.family import Config, Family, activation, number, whole
from edge.models.keys import OFF, SHAPE, Keys, words
from edge.models.rotary import GLOBAL, LOCAL, layer_theta, local_layers, rotary_spec, window
from edge.models.spec import HeadSpec, ModelSpec, Precision


def spec_from_config(config: Config, head: HeadSpec, precision: Precision) -> ModelSpec:
    """The model description from config.json. ModelError for causal attention or scaled rotary positions."""
    if config.get("use_bidirectional_attention") is not True:
        raise ModelError("config.json: without use_bidirectional_attention the model is no encoder, and not supported")
    config = {"sliding_window_pattern": 6, "head_dim": 256, "num_key_value_heads": 4, **config}
    if config.get("query_pre_attn_scalar", 256) != config["head_dim"]:
        raise ModelError("config.json: a query_pre_attn_scalar other than head_dim is not supported")
    pattern = whole(config, "sliding_window_pattern")
    return rotary_spec(
        config,
        head,
        precision,
        "gemma3",
        local_layers(config, pattern, pattern - 1),
        activation=activation(config, "gelu_pytorch_tanh", "hidden_activation"),
        norm_eps=number(config, "rms_norm_eps", 1e-6),
        rope_theta=layer_theta(config, GLOBAL, "rope_theta", 1_000_000.0),
        qk_norm=True,
        window=window(config, "sliding_window", 4096),
        local_theta=layer_theta(config, LOCAL, "rope_local_base_freq", 10_000.0),
        post_norms=True,
    )


FAMILY = Family(
    architecture="gemma3",
    spec_from_config=spec_from_config,
    sanitize=qwen3.sanitize,
    prefix="model.",
    layer={
        **qwen3.LAYER,
        "norm2.weight": ("layers.{i}.pre_feedforward_layernorm.weight",),
        "norm3.weight": ("layers.{i}.post_attention_layernorm.weight",),
        "norm4.weight": ("layers.{i}.post_feedforward_layernorm.weight",),
    },
    table="embed_tokens.weight",
    embed={},
    scaled=True,
    norm_offset=1.0,
    final_norm="norm.weight",
    keys=Keys(
        used=SHAPE
        | words(
            "num_key_value_heads head_dim hidden_activation rms_norm_eps rope_theta rope_local_base_freq"
            " rope_parameters layer_types sliding_window sliding_window_pattern query_pre_attn_scalar"
            " use_bidirectional_attention"
        ),
        harmless=words("tie_word_embeddings final_logit_softcapping _sliding_window_pattern"),
        accepted={"attention_bias": OFF, "rope_scaling": (None,), "attn_logit_softcapping": (None,)},
    ),
)
