"""BERT encoders (Devlin et al., 2019) and their kin: RoBERTa, XLM-RoBERTa (Conneau et al., 2020), CamemBERT, data2vec,
ELECTRA (Clark et al., 2020), DistilBERT (Sanh et al., 2019), MPNet (Song et al., 2020), DeBERTa (He et al., 2021 and
2023), JinaBERT (Günther et al., 2023), GTE (Zhang et al., 2024) and NomicBERT (Nussbaum et al., 2024)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from edge.errors import ModelError
from edge.models.family import OFF, SHAPE, Config, Family, Keys, activation, number, whole, words
from edge.models.rotary import rope_theta
from edge.models.spec import Activation, Architecture, HeadSpec, LayerSpec, ModelSpec, Precision

_LEGACY = re.compile(r"\.LayerNorm\.(gamma|beta)$")
_USED = ("embeddings.", "encoder.layer.", "pooler.", "classifier.")


def layer_names(
    place: str, matrices: Mapping[str, tuple[str, ...]], norms: tuple[str, str]
) -> dict[str, tuple[str, ...]]:
    """The names of a layer's tensors below `place`, for matrices with bias and two norms (see `Family.layer`)."""
    theirs = {**matrices, "norm1": (norms[0],), "norm2": (norms[1],)}
    return {
        f"{ours}.{kind}": tuple(f"{place}{name}.{kind}" for name in names)
        for ours, names in theirs.items()
        for kind in ("weight", "bias")
    }


_LAYER = layer_names(
    "encoder.layer.{i}.",
    {
        "qkv": ("attention.self.query", "attention.self.key", "attention.self.value"),
        "out": ("attention.output.dense",),
        "up": ("intermediate.dense",),
        "down": ("output.dense",),
    },
    ("attention.output.LayerNorm", "output.LayerNorm"),
)
_EMBED = {
    "types": "embeddings.token_type_embeddings.weight",
    "norm.weight": "embeddings.LayerNorm.weight",
    "norm.bias": "embeddings.LayerNorm.bias",
}


def sanitize(name: str, prefix: str = "bert.", used: tuple[str, ...] = _USED) -> str | None:
    """A tensor name without `prefix`, in today's spelling; None for tensors that inference does not use."""
    name = name.removeprefix(prefix)
    name = _LEGACY.sub(lambda m: ".LayerNorm." + ("weight" if m[1] == "gamma" else "bias"), name)
    return name if name.startswith(used) and not name.endswith("_ids") else None


def encoder_spec(
    config: Config,
    head: HeadSpec,
    precision: Precision,
    architecture: Architecture = "bert",
    *,
    offset: int | None = 0,
    types: int = 2,
    head_activation: Activation | None = None,
) -> ModelSpec:
    """The description shared by the BERT-like encoders. `offset`: row of the first token's position, None for the one
    after the padding token's; `types` where the config does not say. ModelError for all but bidirectional encoders with
    learned absolute positions."""
    hidden, heads = whole(config, "hidden_size"), whole(config, "num_attention_heads")
    if hidden % heads:
        raise ModelError(f"config.json: hidden_size {hidden} is not a multiple of num_attention_heads {heads}")
    if config.get("embedding_size", 128 if architecture == "electra" else hidden) != hidden:
        raise ModelError("config.json: an embedding_size other than hidden_size is not supported")
    if offset is None:
        # The row of the padding token is a row of the position table as well.
        padding = config.get("pad_token_id")
        offset = (padding if isinstance(padding, int) else 1) + 1
    positions = whole(config, "max_position_embeddings")
    layer = LayerSpec(
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_size=hidden // heads,
        ffn=whole(config, "intermediate_size"),
        activation=activation(config, "gelu"),
        gated=False,
        norm="layer",
        norm_first=False,
        norm_eps=number(config, "layer_norm_eps", 1e-12),
        rope_theta=None,
        causal=False,
        qk_norm=False,
        bias=True,
        precision=precision,
    )
    if head.kind == "classifier" and head_activation is not None:
        head = replace(head, activation=head_activation)
    return ModelSpec(
        architecture=architecture,
        layers=whole(config, "num_hidden_layers"),
        layer=layer,
        vocab=whole(config, "vocab_size"),
        positions=positions,
        position_offset=offset,
        token_types=whole(config, "type_vocab_size") if "type_vocab_size" in config else types,
        max_tokens=positions - offset,
        head=head,
    )


FAMILY = Family(
    architecture="bert",
    spec_from_config=encoder_spec,
    sanitize=sanitize,
    prefix="bert.",
    layer=_LAYER,
    table="embeddings.word_embeddings.weight",
    embed=_EMBED,
    positions="embeddings.position_embeddings.weight",
    dense="pooler.dense",
    out="classifier",
    keys=Keys(
        used=SHAPE | words("hidden_act layer_norm_eps type_vocab_size embedding_size"),
        harmless=words(
            "tie_word_embeddings directionality pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers"
            " pooler_size_per_head pooler_type summary_type summary_use_proj summary_activation summary_last_dropout"
        ),
        accepted={"position_embedding_type": ("absolute", None)},
    ),
)


def _of_roberta(prefix: str) -> Family:
    return replace(
        FAMILY,
        architecture="xlm-roberta",
        spec_from_config=partial(encoder_spec, architecture="xlm-roberta", offset=None),
        sanitize=partial(sanitize, prefix=prefix),
        prefix=prefix,
        dense="classifier.dense",
        out="classifier.out_proj",
    )


ROBERTA = _of_roberta("roberta.")
"""RoBERTa, XLM-RoBERTa and CamemBERT."""

DATA2VEC = _of_roberta("data2vec_text.")

ELECTRA = replace(
    ROBERTA,
    architecture="electra",
    spec_from_config=partial(encoder_spec, architecture="electra", head_activation="gelu"),
    sanitize=partial(sanitize, prefix="electra."),
    prefix="electra.",
)

_BUCKETS = 32  # transformers takes this number, whatever the configuration says


def _mpnet_spec(config: Config, head: HeadSpec, precision: Precision) -> ModelSpec:
    spec = encoder_spec({**config, "pad_token_id": 1}, head, precision, "mpnet", offset=None, types=0)
    return replace(spec, layer=replace(spec.layer, buckets=_BUCKETS))


MPNET = replace(
    ROBERTA,
    architecture="mpnet",
    spec_from_config=_mpnet_spec,
    sanitize=partial(sanitize, prefix="mpnet.", used=("embeddings.", "encoder.", "classifier.")),
    prefix="mpnet.",
    layer={
        **layer_names(
            "encoder.layer.{i}.",
            {
                "qkv": ("attention.attn.q", "attention.attn.k", "attention.attn.v"),
                "out": ("attention.attn.o",),
                "up": ("intermediate.dense",),
                "down": ("output.dense",),
            },
            ("attention.LayerNorm", "output.LayerNorm"),
        ),
        # All layers have the same table. Each packed layer holds a copy, because it is read alone.
        "distances": ("encoder.relative_attention_bias.weight",),
    },
    keys=Keys(
        used=SHAPE | words("hidden_act layer_norm_eps"),
        harmless=words("tie_word_embeddings"),
        accepted={"relative_attention_num_buckets": (_BUCKETS, None)},
    ),
)

_DISTILBERT_KEYS = {
    "dim": "hidden_size",
    "n_heads": "num_attention_heads",
    "n_layers": "num_hidden_layers",
    "hidden_dim": "intermediate_size",
    "activation": "hidden_act",
}


def _distilbert_spec(config: Config, head: HeadSpec, precision: Precision) -> ModelSpec:
    named = {_DISTILBERT_KEYS.get(key, key): value for key, value in config.items()}
    return encoder_spec(named, head, precision, "distilbert", types=0, head_activation="relu")


DISTILBERT = replace(
    FAMILY,
    architecture="distilbert",
    spec_from_config=_distilbert_spec,
    sanitize=partial(
        sanitize, prefix="distilbert.", used=("embeddings.", "transformer.layer.", "pre_classifier.", "classifier.")
    ),
    prefix="distilbert.",
    layer=layer_names(
        "transformer.layer.{i}.",
        {
            "qkv": ("attention.q_lin", "attention.k_lin", "attention.v_lin"),
            "out": ("attention.out_lin",),
            "up": ("ffn.lin1",),
            "down": ("ffn.lin2",),
        },
        ("sa_layer_norm", "output_layer_norm"),
    ),
    dense="pre_classifier",
    keys=Keys(
        used=words("dim n_heads n_layers hidden_dim activation vocab_size max_position_embeddings"),
        # The table of sinusoidal positions is in the checkpoint, as learned positions are.
        harmless=words("tie_word_embeddings sinusoidal_pos_embds qa_dropout seq_classif_dropout tie_weights_"),
    ),
)


_QKV = ("query", "key", "value")


def _deberta_spec(config: Config, head: HeadSpec, precision: Precision) -> ModelSpec:
    """The model description from config.json; ModelError for all but the published models of version 3."""
    kinds = config.get("pos_att_type")
    parts = kinds.lower().split("|") if isinstance(kinds, str) else kinds
    wanted = (
        ("relative_attention", config.get("relative_attention") is True),
        ("share_att_key", config.get("share_att_key") is True),
        ("position_biased_input", config.get("position_biased_input", True) is False),
        ("pos_att_type", isinstance(parts, list) and sorted(str(part).strip() for part in parts) == ["c2p", "p2c"]),
        ("norm_rel_ebd", str(config.get("norm_rel_ebd", "none")).strip().lower() == "layer_norm"),
        ("type_vocab_size", config.get("type_vocab_size", 0) == 0),
        (
            "pooler_hidden_size",
            config.get("pooler_hidden_size", config.get("hidden_size")) == config.get("hidden_size"),
        ),
    )
    for key, right in wanted:
        if not right:
            raise ModelError(f"config.json: {key} = {config.get(key)!r} is not supported in DeBERTa")
    acts = activation(config, "gelu", "pooler_hidden_act")
    plain = {key: value for key, value in config.items() if key != "type_vocab_size"}
    plain.setdefault("layer_norm_eps", 1e-7)
    spec = encoder_spec(plain, head, precision, "deberta", types=0, head_activation=acts)
    farthest = config.get("max_relative_positions", -1)
    layer = replace(
        spec.layer,
        spans=whole(config, "position_buckets"),
        farthest=farthest if isinstance(farthest, int) and farthest > 0 else spec.max_tokens,
    )
    return replace(spec, layer=layer, positions=0)


DEBERTA = replace(
    FAMILY,
    architecture="deberta",
    spec_from_config=_deberta_spec,
    sanitize=partial(sanitize, prefix="deberta.", used=("embeddings.", "encoder.", "pooler.", "classifier.")),
    prefix="deberta.",
    layer={
        **FAMILY.layer,
        **{
            f"qkv.{kind}": tuple(f"encoder.layer.{{i}}.attention.self.{name}_proj.{kind}" for name in _QKV)
            for kind in ("weight", "bias")
        },
    },
    distances=("encoder.rel_embeddings.weight", "encoder.LayerNorm.weight", "encoder.LayerNorm.bias"),
    positions=None,
    keys=Keys(
        used=FAMILY.keys.used
        | words(
            "relative_attention max_relative_positions position_buckets norm_rel_ebd share_att_key pos_att_type"
            " position_biased_input pooler_hidden_act pooler_hidden_size"
        ),
        harmless=words("tie_word_embeddings pooler_dropout cls_dropout legacy"),
        accepted={"conv_kernel_size": (0, None), "attention_head_size": (None,), "is_decoder": OFF},
    ),
)


_GATES: dict[str, Activation] = {"geglu": "gelu", "reglu": "relu"}


def _jina_spec(config: Config, head: HeadSpec, precision: Precision) -> ModelSpec:
    """The description from config.json. ModelError if the feed-forward part has no gates."""
    kind = config.get("feed_forward_type", "original")
    if not isinstance(kind, str) or kind not in _GATES:
        raise ModelError(f"config.json: feed_forward_type = {kind!r} is not supported, only {' and '.join(_GATES)}")
    spec = encoder_spec({**config, "hidden_act": _GATES[kind]}, head, precision, "jina-bert")
    return replace(spec, layer=replace(spec.layer, gated=True, alibi=True), positions=0)


JINA = replace(
    FAMILY,
    architecture="jina-bert",
    spec_from_config=_jina_spec,
    layer={
        **FAMILY.layer,
        **{f"up.{kind}": (f"encoder.layer.{{i}}.mlp.gated_layers.{kind}",) for kind in ("weight", "bias")},
        **{f"down.{kind}": (f"encoder.layer.{{i}}.mlp.wo.{kind}",) for kind in ("weight", "bias")},
        **{f"norm2.{kind}": (f"encoder.layer.{{i}}.mlp.layernorm.{kind}",) for kind in ("weight", "bias")},
    },
    absent=frozenset(("up.bias",)),
    positions=None,
    code="jinaai/jina-bert-implementation",
    keys=Keys(
        used=SHAPE | words("layer_norm_eps type_vocab_size feed_forward_type"),
        # `emb_pooler` is for the published code's own method. The gates have their own activation.
        harmless=words("tie_word_embeddings emb_pooler hidden_act model_max_length"),
        accepted={"position_embedding_type": ("alibi",), "alibi_scaling": (None, 1, 1.0)},
    ),
)


_GTE_USED = ("embeddings.", "layers.", "pooler.", "classifier.")
_GTE_PREFIXES = ("new.", "gte.", "nomic_bert.")
_OTHER_NAMES = (
    (r"^encoder\.layers?\.", "layers."), (r"^emb_ln\.", "embeddings.LayerNorm."),
    (r"\.(?:attention|attn)\.", ".self_attn."), (r"\.out_proj\.", ".o_proj."), (r"\.fc11\.", ".up_proj."),
    (r"\.fc12\.", ".gate_proj."), (r"\.fc2\.", ".down_proj."), (r"\.(?:attn_ln|norm1)\.", ".post_attention_layernorm."),
    (r"\.(?:mlp_ln|norm2)\.", ".post_mlp_layernorm."),
)  # fmt: skip


def _sanitize_gte(name: str) -> str | None:
    """A checkpoint's tensor name as transformers saves it; None for tensors that inference does not use."""
    for prefix in _GTE_PREFIXES:
        name = name.removeprefix(prefix)
    for pattern, ours in _OTHER_NAMES:
        name = re.sub(pattern, ours, name)
    return name if name.startswith(_GTE_USED) else None


def _gte_spec(
    config: Config, head: HeadSpec, precision: Precision, architecture: Architecture, defaults: Mapping[str, object]
) -> ModelSpec:
    config = {**defaults, **config}
    for old, key in _PUBLISHED.items():
        if old in config:
            if config.get(key, config[old]) not in (config[old], defaults.get(key)):
                raise ModelError(f"config.json: {old} = {config[old]!r}, but {key} = {config[key]!r}")
            config[key] = config[old]
    config.setdefault("max_position_embeddings", config.get("n_positions"))
    spec = encoder_spec(config, head, precision, architecture)
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
    "n_embd": "hidden_size", "n_head": "num_attention_heads", "n_inner": "intermediate_size",
    "n_layer": "num_hidden_layers", "layer_norm_epsilon": "layer_norm_eps", "rotary_emb_base": "rope_theta",
}  # fmt: skip
"""The keys of NomicBERT's published files, and those of transformers."""

_GTE_KEYS = Keys(
    used=SHAPE | words("hidden_act layer_norm_eps type_vocab_size rope_parameters rope_theta"),
    harmless=words("tie_word_embeddings"),
    accepted={"rope_scaling": (None,)},
)

GTE = replace(
    FAMILY,
    architecture="gte",
    spec_from_config=partial(_gte_spec, architecture="gte", defaults={"rope_theta": 160_000.0, "type_vocab_size": 1}),
    sanitize=_sanitize_gte,
    prefix="gte.",
    layer=layer_names(
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
    keys=_GTE_KEYS,
)

NEW = replace(
    GTE,
    spec_from_config=partial(_gte_spec, architecture="gte", defaults={"rope_theta": 10_000.0, "type_vocab_size": 2}),
    prefix="new.",
    code="Alibaba-NLP/new-impl",
    keys=Keys(
        used=_GTE_KEYS.used | {"rope_scaling"},
        harmless=_GTE_KEYS.harmless | words("pack_qkv unpad_inputs use_memory_efficient_attention"),
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
    spec_from_config=partial(
        _gte_spec, architecture="nomic-bert", defaults={"rope_theta": 1000.0, "hidden_act": "silu"}
    ),
    prefix="nomic_bert.",
    fused={"Wqkv.weight": ("q_proj.weight", "k_proj.weight", "v_proj.weight")},
    absent=frozenset(),
    code="nomic-ai/nomic-bert-2048",
    keys=Keys(
        used=_GTE_KEYS.used | {"head_dim", "n_positions", *_PUBLISHED},
        harmless=_GTE_KEYS.harmless
        | words(
            "attn_pdrop embd_pdrop resid_pdrop dense_seq_output fused_bias_fc fused_dropout_add_ln use_flash_attn"
            " use_xentropy max_trained_positions pad_vocab_size_multiple reorder_and_upcast_attn"
            " summary_activation summary_first_dropout summary_proj_to_labels summary_type summary_use_proj"
        ),
        accepted={
            **_GTE_KEYS.accepted,
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
