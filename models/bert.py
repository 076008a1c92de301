"""BERT encoders (Devlin et al., 2019), as `BertModel` and `BertForSequenceClassification` save them.

RoBERTa and XLM-RoBERTa (Conneau et al., 2020) have BERT's layers, positions that start after the padding row, and a
classification head of their own (dense, tanh, out_proj on the first token).
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial

from edge.errors import ModelError
from edge.models.family import Config, Family, activation, refuse, whole
from edge.models.spec import Architecture, HeadSpec, LayerSpec, ModelSpec, Precision

_LEGACY = re.compile(r"\.LayerNorm\.(gamma|beta)$")
_USED = ("embeddings.", "encoder.layer.", "pooler.", "classifier.")

_LAYER = {
    "norm1.weight": ("encoder.layer.{i}.attention.output.LayerNorm.weight",),
    "norm1.bias": ("encoder.layer.{i}.attention.output.LayerNorm.bias",),
    "norm2.weight": ("encoder.layer.{i}.output.LayerNorm.weight",),
    "norm2.bias": ("encoder.layer.{i}.output.LayerNorm.bias",),
    **{
        f"{ours}.{kind}": tuple(f"encoder.layer.{{i}}.{name}.{kind}" for name in theirs)
        for kind in ("weight", "bias")
        for ours, theirs in {
            "qkv": ("attention.self.query", "attention.self.key", "attention.self.value"),
            "out": ("attention.output.dense",),
            "up": ("intermediate.dense",),
            "down": ("output.dense",),
        }.items()
    },
}
_EMBED = {
    "types": "embeddings.token_type_embeddings.weight",
    "norm.weight": "embeddings.LayerNorm.weight",
    "norm.bias": "embeddings.LayerNorm.bias",
}


def sanitize(name: str, prefix: str = "bert.") -> str | None:
    """A checkpoint's tensor name without `prefix` and in today's spelling (TensorFlow's `gamma` and `beta` become
    `weight` and `bias`). None for tensors that inference does not use (`position_ids`, masked-language heads)."""
    name = name.removeprefix(prefix)
    name = _LEGACY.sub(lambda m: ".LayerNorm." + ("weight" if m[1] == "gamma" else "bias"), name)
    return name if name.startswith(_USED) and not name.endswith("_ids") else None


def _encoder_spec(
    config: Config, head: HeadSpec, precision: Precision, architecture: Architecture, position_offset: int
) -> ModelSpec:
    """The description shared by the BERT-like encoders.

    Raises:
        ModelError: the config describes anything but a bidirectional encoder with learned absolute positions.
    """
    refuse(config, "position_embedding_type", ("absolute", None))
    refuse(config, "is_decoder", (False, None))
    refuse(config, "add_cross_attention", (False, None))
    hidden, heads = whole(config, "hidden_size"), whole(config, "num_attention_heads")
    if hidden % heads:
        raise ModelError(f"config.json: hidden_size {hidden} is not a multiple of num_attention_heads {heads}")
    if config.get("embedding_size", hidden) != hidden:
        raise ModelError("config.json: an embedding_size other than hidden_size is not supported")
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
        norm_eps=float(config.get("layer_norm_eps", 1e-12)),
        rope_theta=None,
        causal=False,
        qk_norm=False,
        bias=True,
        precision=precision,
    )
    return ModelSpec(
        architecture=architecture,
        layers=whole(config, "num_hidden_layers"),
        layer=layer,
        vocab=whole(config, "vocab_size"),
        positions=positions,
        position_offset=position_offset,
        token_types=int(config.get("type_vocab_size", 2)),
        max_tokens=positions - position_offset,
        head=head,
    )


def spec_from_config(config: Config, head: HeadSpec, precision: Precision) -> ModelSpec:
    """The model description from config.json.

    Raises:
        ModelError: something in the config is missing or not supported.
    """
    return _encoder_spec(config, head, precision, "bert", position_offset=0)


FAMILY = Family(
    architecture="bert",
    spec_from_config=spec_from_config,
    sanitize=sanitize,
    prefix="bert.",
    layer=_LAYER,
    table="embeddings.word_embeddings.weight",
    embed=_EMBED,
    positions="embeddings.position_embeddings.weight",
    dense="pooler.dense",
    out="classifier",
)


def _roberta_spec(config: Config, head: HeadSpec, precision: Precision) -> ModelSpec:
    # Positions start after the row of the padding token, which is a row of the position table as well.
    padding = config.get("pad_token_id")
    offset = (padding if isinstance(padding, int) else 1) + 1
    return _encoder_spec(config, head, precision, "xlm-roberta", position_offset=offset)


ROBERTA = replace(
    FAMILY,
    architecture="xlm-roberta",
    spec_from_config=_roberta_spec,
    sanitize=partial(sanitize, prefix="roberta."),
    prefix="roberta.",
    dense="classifier.dense",
    out="classifier.out_proj",
)
"""RoBERTa and XLM-RoBERTa."""
