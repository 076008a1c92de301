"""BERT encoders (Devlin et al., 2019) and their kin: RoBERTa, XLM-RoBERTa (Conneau et al., 2020), CamemBERT, data2vec,
ELECTRA (Clark et al., 2020), DistilBERT (Sanh et al., 2019), and MPNet (Song et al., 2020), which adds a bias by
distance."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from edge.errors import ModelError
from edge.models.family import Config, Family, activation, number, whole
from edge.models.keys import SHAPE, Keys, words
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
    """A checkpoint's tensor name without `prefix` and in today's spelling; None for tensors that inference does not
    use."""
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
