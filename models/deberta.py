"""DeBERTa encoders, versions 2 and 3 (He et al., 2021 and 2023). The projections of the embeddings of distances depend
on no text, so they are packed."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from edge.errors import ModelError
from edge.models import bert
from edge.models.family import Config, activation, whole
from edge.models.keys import OFF, Keys, words
from edge.models.spec import HeadSpec, ModelSpec, Precision

_QKV = ("query", "key", "value")


def spec_from_config(config: Config, head: HeadSpec, precision: Precision) -> ModelSpec:
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
    spec = bert.encoder_spec(plain, head, precision, "deberta", types=0, head_activation=acts)
    farthest = config.get("max_relative_positions", -1)
    layer = replace(
        spec.layer,
        spans=whole(config, "position_buckets"),
        farthest=farthest if isinstance(farthest, int) and farthest > 0 else spec.max_tokens,
    )
    return replace(spec, layer=layer, positions=0)


FAMILY = replace(
    bert.FAMILY,
    architecture="deberta",
    spec_from_config=spec_from_config,
    sanitize=partial(bert.sanitize, prefix="deberta.", used=("embeddings.", "encoder.", "pooler.", "classifier.")),
    prefix="deberta.",
    layer={
        **bert.FAMILY.layer,
        **{
            f"qkv.{kind}": tuple(f"encoder.layer.{{i}}.attention.self.{name}_proj.{kind}" for name in _QKV)
            for kind in ("weight", "bias")
        },
    },
    distances=("encoder.rel_embeddings.weight", "encoder.LayerNorm.weight", "encoder.LayerNorm.bias"),
    positions=None,
    keys=Keys(
        used=bert.FAMILY.keys.used
        | words(
            "relative_attention max_relative_positions position_buckets norm_rel_ebd share_att_key pos_att_type"
            " position_biased_input pooler_hidden_act pooler_hidden_size"
        ),
        harmless=words("tie_word_embeddings pooler_dropout cls_dropout legacy"),
        accepted={"conv_kernel_size": (0, None), "attention_head_size": (None,), "is_decoder": OFF},
    ),
)
