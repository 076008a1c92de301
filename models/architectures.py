"""Which architectures can be packed, by the `model_type` of their config.json."""

from __future__ import annotations

from edge.errors import ModelError
from edge.models import bert, qwen3, xlm_roberta
from edge.models.family import Config, Family

FAMILIES: dict[str, Family] = {
    "bert": bert.FAMILY,
    "roberta": xlm_roberta.FAMILY,
    "xlm-roberta": xlm_roberta.FAMILY,
    "qwen3": qwen3.FAMILY,
}


def family_of(config: Config) -> Family:
    """The family that a config.json belongs to.

    Raises:
        ModelError: an architecture that is not supported.
    """
    kind = config.get("model_type")
    if kind not in FAMILIES:
        raise ModelError(f"architecture {kind!r} is not supported; supported: {', '.join(sorted(FAMILIES))}")
    return FAMILIES[kind]
