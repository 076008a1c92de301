"""Which files of a Hugging Face folder make a model, out of all that such folders hold."""

from __future__ import annotations

from collections.abc import Iterable

from edge.models.checkpoint import INDEX, SINGLE

DESCRIPTIONS = (
    "config.json",
    "modules.json",
    "1_Pooling/config.json",
    "config_sentence_transformers.json",
    "sentence_bert_config.json",
    "tokenizer_config.json",
    "tokenizer.json",
)
"""All but the weights."""


def wanted(names: Iterable[str]) -> list[str]:
    """Those of a folder's files that a pack is made from; the weights as one file if there is one, else as shards."""
    present = set(names)
    chosen = [name for name in DESCRIPTIONS if name in present]
    if SINGLE in present:
        return [*chosen, SINGLE]
    shards = sorted(n for n in present if n.startswith("model-") and n.endswith(".safetensors") and "/" not in n)
    return [*chosen, *([INDEX] if INDEX in present else []), *shards]
