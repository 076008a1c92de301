"""JinaBERT encoders (Günther et al., 2023): BERT's layers with linear biases of distances (ALiBi) and gates. Other code
with the same names normalizes queries and keys, and is refused."""

from __future__ import annotations

from dataclasses import replace

from edge.errors import ModelError
from edge.models import bert
from edge.models.family import Config
from edge.models.keys import SHAPE, Keys, words
from edge.models.spec import Activation, HeadSpec, ModelSpec, Precision

_GATES: dict[str, Activation] = {"geglu": "gelu", "reglu": "relu"}


def spec_from_config(config: Config, head: HeadSpec, precision: Precision) -> ModelSpec:
    """The description from config.json. ModelError if the feed-forward part has no gates."""
    kind = config.get("feed_forward_type", "original")
    if not isinstance(kind, str) or kind not in _GATES:
        raise ModelError(f"config.json: feed_forward_type = {kind!r} is not supported, only {' and '.join(_GATES)}")
    spec = bert.encoder_spec({**config, "hidden_act": _GATES[kind]}, head, precision, "jina-bert")
    return replace(spec, layer=replace(spec.layer, gated=True, alibi=True), positions=0)


FAMILY = replace(
    bert.FAMILY,
    architecture="jina-bert",
    spec_from_config=spec_from_config,
    layer={
        **bert.FAMILY.layer,
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
