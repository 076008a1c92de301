"""GTE (Zhang et al., 2024) and NomicBERT (Nussbaum et al., 2024): BERT's layers with rotary positions and gates, with
the names that transformers saves or those of the published files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from edge.errors import ModelError
from edge.models import bert
from edge.models.family import Config, number, whole
from edge.models.keys import OFF, SHAPE, Keys, words
from edge.models.rotary import rope_theta
from edge.models.spec import Architecture, HeadSpec, ModelSpec, Precision

_USED = ("embeddings.", "layers.", "pooler.", "classifier.")
_PREFIXES = ("new.", "gte.", "nomic_bert.")
_OTHER_NAMES = (
    (r"^encoder\.layers?\.", "layers."),
    (r"^emb_ln\.", "embeddings.LayerNorm."),
    (r"\.(?:attention|attn)\.", ".self_attn."),
    (r"\.out_proj\.", ".o_proj."),
    (r"\.fc11\.", ".up_proj."),
    (r"\.fc12\.", ".gate_proj."),
    (r"\.fc2\.", ".down_proj."),
    (r"\.(?:attn_ln|norm1)\.", ".post_attention_layernorm."),
    (r"\.(?:mlp_ln|norm2)\.", ".post_mlp_layernorm."),
)


def sanitize(name: str) -> str | None:
    """A checkpoint's tensor name as transformers saves it; None for tensors that inference does not use."""
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    for pattern, ours in _OTHER_NAMES:
        name = re.sub(pattern, ours, name)
    return name if name.startswith(_USED) else None


def _spec(
    config: Config, head: HeadSpec, precision: Precision, architecture: Architecture, defaults: Mapping[str, object]
) -> ModelSpec:
    config = {**defaults, **config}
    for old, key in _PUBLISHED.items():
        if old in config:
            if config.get(key, config[old]) not in (config[old], defaults.get(key)):
                raise ModelError(f"config.json: {old} = {config[old]!r}, but {key} = {config[key]!r}")
            config[key] = config[old]
    config.setdefault("max_position_embeddings", config.get("n_positions"))
    spec = bert.encoder_spec(config, head, precision, architecture)
    layer = spec.layer
    size = whole(config, "head_dim") if config.get("head_dim") else layer.head_size
    if size % 2:
        raise ModelError(f"config.json: heads of {size} numbers cannot be rotated in pairs")
    scaling = config.get("rope_scaling") or {"type": "ntk", "factor": 1.0}
    if not isinstance(scaling, dict) or set(scaling) != {"type", "factor"} or scaling["type"] != "ntk":
        raise ModelError(f"config.json: rope_scaling = {scaling!r} is not supported, only type ntk with a factor")
    factor, base = number(scaling, "factor", 0.0), number(config, "rope_theta", 0.0)
    theta = rope_theta(config.get("rope_parameters") or {}, base * factor)
    if not factor or (theta != base and "rotary_emb_base" in config):
        raise ModelError(
            f"config.json: rope_scaling = {scaling!r} and rope_theta = {base:g} are not those of {theta:g}"
        )
    layer = replace(
        layer,
        head_size=size,
        gated=True,
        rope_theta=theta,
        rope_factor=factor ** (2 / size),
        bias=architecture == "gte",
    )
    return replace(spec, layer=layer, positions=0, max_tokens=spec.positions)


_PUBLISHED = {
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "n_layer": "num_hidden_layers",
    "layer_norm_epsilon": "layer_norm_eps",
    "rotary_emb_base": "rope_theta",
}
"""The keys of NomicBERT's published files, and those of transformers."""

_KEYS = Keys(
    used=SHAPE | words("hidden_act layer_norm_eps type_vocab_size rope_parameters rope_theta"),
    harmless=words("tie_word_embeddings"),
    accepted={"rope_scaling": (None,)},
)

GTE = replace(
    bert.FAMILY,
    architecture="gte",
    spec_from_config=partial(_spec, architecture="gte", defaults={"rope_theta": 160_000.0, "type_vocab_size": 1}),
    sanitize=sanitize,
    prefix="gte.",
    layer=bert.layer_names(
        "layers.{i}.",
        {
            "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            "out": ("self_attn.o_proj",),
            "up": ("mlp.gate_proj", "mlp.up_proj"),
            "down": ("mlp.down_proj",),
        },
        ("post_attention_layernorm", "post_mlp_layernorm"),
    ),
    fused={
        **{f"qkv_proj.{kind}": tuple(f"{name}_proj.{kind}" for name in "qkv") for kind in ("weight", "bias")},
        "up_gate_proj.weight": ("up_proj.weight", "gate_proj.weight"),
    },
    absent=frozenset(("up.bias",)),
    positions=None,
    keys=_KEYS,
)

NEW = replace(
    GTE,
    spec_from_config=partial(_spec, architecture="gte", defaults={"rope_theta": 10_000.0, "type_vocab_size": 2}),
    prefix="new.",
    code="Alibaba-NLP/new-impl",
    keys=Keys(
        used=_KEYS.used | {"rope_scaling"},
        harmless=_KEYS.harmless | words("pack_qkv unpad_inputs use_memory_efficient_attention"),
        accepted={
            "layer_norm_type": ("layer_norm", None),
            "position_embedding_type": ("rope", None),
            "logn_attention_scale": OFF,
            "logn_attention_clip1": OFF,
        },
    ),
)
"""The published files of GTE."""

NOMIC = replace(
    GTE,
    architecture="nomic-bert",
    spec_from_config=partial(_spec, architecture="nomic-bert", defaults={"rope_theta": 1000.0, "hidden_act": "silu"}),
    prefix="nomic_bert.",
    fused={"Wqkv.weight": ("q_proj.weight", "k_proj.weight", "v_proj.weight")},
    absent=frozenset(),
    code="nomic-ai/nomic-bert-2048",
    keys=Keys(
        used=_KEYS.used | {"head_dim", "n_positions", *_PUBLISHED},
        harmless=_KEYS.harmless
        | words(
            "attn_pdrop embd_pdrop resid_pdrop dense_seq_output fused_bias_fc fused_dropout_add_ln use_flash_attn"
            " use_xentropy max_trained_positions pad_vocab_size_multiple reorder_and_upcast_attn"
            " summary_activation summary_first_dropout summary_proj_to_labels summary_type summary_use_proj"
        ),
        accepted={
            **_KEYS.accepted,
            "activation_function": ("swiglu", None),
            "rotary_emb_fraction": (1.0, 1, None),
            "rotary_emb_scale_base": (None,),
            "rotary_scaling_factor": (None,),
            "scale_attn_weights": (True, None),
            **dict.fromkeys(
                (
                    *("causal", "prenorm", "qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias", "use_rms_norm"),
                    *("parallel_block", "parallel_block_tied_norm", "rotary_emb_interleaved"),
                    "scale_attn_by_inverse_layer_idx",
                ),
                OFF,
            ),
        },
    ),
)
