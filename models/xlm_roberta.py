"""RoBERTa and XLM-RoBERTa encoders (Conneau et al., 2020): BERT's layers, positions that start after the padding row,
and a classification head of its own (dense, tanh, out_proj on the first token)."""

from __future__ import annotations

from edge.models import bert
from edge.models.family import Config, Family
from edge.models.spec import HeadSpec, ModelSpec, Precision


def sanitize(name: str) -> str | None:
    """A checkpoint's tensor name without its `roberta.` prefix, or None for a tensor that inference does not use."""
    return bert.sanitize(name, prefix="roberta.")


def spec_from_config(config: Config, head: HeadSpec, precision: Precision) -> ModelSpec:
    """The model description from config.json.

    Raises:
        ModelError: something in the config is missing or not supported.
    """
    # Positions start after the row of the padding token, which is a row of the position table as well.
    padding = config.get("pad_token_id")
    offset = (padding if isinstance(padding, int) else 1) + 1
    return bert.encoder_spec(config, head, precision, "xlm-roberta", position_offset=offset)


FAMILY = Family(
    architecture="xlm-roberta",
    spec_from_config=spec_from_config,
    sanitize=sanitize,
    prefix="roberta.",
    layer=bert.LAYER,
    table="embeddings.word_embeddings.weight",
    embed=bert.EMBED,
    positions="embeddings.position_embeddings.weight",
    dense="classifier.dense",
    out="classifier.out_proj",
)
