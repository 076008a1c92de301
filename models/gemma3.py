"""Gemma 3 encoders (EmbeddingGemma, Vera et al., 2025), as `Gemma3TextModel` saves them: bidirectional attention.

Most layers attend to the tokens near them, with another base of the rotary positions. What attention and the
feed-forward part give is normed before it is added. Weights of norms are stored less 1.
"""

from __future__ import annotations

from edge.errors import ModelError
from edge.models import qwen3
from edge.models.family import Config, Family, activation, number, whole
from edge.models.keys import OFF, Keys, words
from edge.models.modernbert import GLOBAL, LOCAL, layer_kinds, layer_theta
from edge.models.spec import HeadSpec, LayerSpec, ModelSpec, Precision


def spec_from_config(config: Config, head: HeadSpec, precision: Precision) -> ModelSpec:
    """The model description from config.json.

    Raises:
        ModelError: something in the config is missing or not supported (causal attention, scaled rotary positions).
    """
    if config.get("use_bidirectional_attention") is not True:
        raise ModelError("config.json: without use_bidirectional_attention the model is no encoder, and not supported")
    config = {"sliding_window": 4096, "sliding_window_pattern": 6, "head_dim": 256, **config}
    heads, kv_heads = whole(config, "num_attention_heads"), whole(config, "num_key_value_heads")
    size, layers = whole(config, "head_dim"), whole(config, "num_hidden_layers")
    if heads % kv_heads or size % 2:
        raise ModelError(f"config.json: {heads} heads of {size} numbers cannot share {kv_heads} key-value heads")
    if config.get("query_pre_attn_scalar", 256) != size:
        raise ModelError("config.json: a query_pre_attn_scalar other than head_dim is not supported")
    window = whole(config, "sliding_window") // 2
    if not window:
        raise ModelError("config.json: sliding_window = 1 is not supported")
    pattern = whole(config, "sliding_window_pattern")
    layer = LayerSpec(
        hidden=whole(config, "hidden_size"),
        heads=heads,
        kv_heads=kv_heads,
        head_size=size,
        ffn=whole(config, "intermediate_size"),
        activation=activation(config, "gelu_pytorch_tanh", "hidden_activation"),
        gated=True,
        norm="rms",
        norm_first=True,
        norm_eps=number(config, "rms_norm_eps", 1e-6),
        rope_theta=layer_theta(config, GLOBAL, "rope_theta", 1_000_000.0),
        causal=False,
        qk_norm=True,
        bias=False,
        precision=precision,
        window=window,
        local_theta=layer_theta(config, LOCAL, "rope_local_base_freq", 10_000.0),
        post_norms=True,
    )
    default = [LOCAL if (number + 1) % pattern else GLOBAL for number in range(min(layers, 1000))]
    return ModelSpec(
        architecture="gemma3",
        layers=layers,
        layer=layer,
        vocab=whole(config, "vocab_size"),
        positions=0,
        position_offset=0,
        token_types=0,
        max_tokens=whole(config, "max_position_embeddings"),
        head=head,
        local_layers=tuple(n for n, kind in enumerate(layer_kinds(config, layers, default)) if kind == LOCAL),
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
        used=words(
            "hidden_size num_attention_heads num_key_value_heads num_hidden_layers head_dim intermediate_size"
            " hidden_activation rms_norm_eps rope_theta rope_local_base_freq rope_parameters vocab_size layer_types"
            " max_position_embeddings sliding_window sliding_window_pattern query_pre_attn_scalar"
            " use_bidirectional_attention"
        ),
        harmless=words("tie_word_embeddings final_logit_softcapping _sliding_window_pattern"),
        accepted={"attention_bias": OFF, "rope_scaling": (None,), "attn_logit_softcapping": (None,)},
    ),
)
