"""What a checkpoint's folder says about its model: the architecture, the head and the longest sequence.

The `model_type` of config.json names the architecture. The head is a classifier, `yes` and `no` rows, or a pooling.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from edge.errors import ModelError
from edge.models import bert, qwen3
from edge.models.checkpoint import read_json
from edge.models.family import Config, Family
from edge.models.spec import HeadKind, HeadSpec

FAMILIES: dict[str, Family] = {
    "bert": bert.FAMILY,
    "roberta": bert.ROBERTA,
    "xlm-roberta": bert.ROBERTA,
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


_POOLINGS: dict[str, HeadKind] = {"cls": "first-token", "mean": "mean", "lasttoken": "last-token"}
_BOOLEANS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "lasttoken",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
}


def detect_head(folder: Path, family: Family, names: Mapping[str, str]) -> HeadSpec:
    """The head of the model in `folder`.

    Classification weights mean a classifier. Otherwise modules.json describes the head of a sentence-transformers
    folder. A decoder without modules.json is a reranker with `yes` and `no` rows.

    Args:
        names: the checkpoint's canonical tensor names.

    Raises:
        ModelError: the folder names no pooling, or one that is not supported.
    """
    if family.out is not None and f"{family.out}.weight" in names:
        return HeadSpec(kind="classifier")
    if (folder / "modules.json").is_file():
        return _sentence_transformer(folder, family)
    if family.output is not None:
        return qwen3.reranker_head()
    raise ModelError(
        f"{folder} has neither classification weights nor a modules.json that says how tokens are pooled; "
        "pass the head, such as HeadSpec('mean', normalize=True)"
    )


def token_limit(folder: Path, most: int) -> int:
    """The longest sequence, in tokens: `most`, which the model's tables allow, or a smaller limit from the folder."""
    limits = [most]
    for file, key in (("sentence_bert_config.json", "max_seq_length"), ("tokenizer_config.json", "model_max_length")):
        if (folder / file).is_file():
            value = read_json(folder / file).get(key)
            # Tokenizers without a limit of their own write 1e30.
            if isinstance(value, int | float) and 0 < value < most:
                limits.append(int(value))
    return min(limits)


def _sentence_transformer(folder: Path, family: Family) -> HeadSpec:
    kind: HeadKind | None = None
    normalize = False
    modules = _modules(folder)
    for module in modules:
        name = str(module.get("type", "")).rsplit(".", 1)[-1]
        if name == "Pooling":
            kind = _pooling(folder / _inside(folder, str(module.get("path", ""))) / "config.json")
        elif name == "Normalize":
            normalize = True
        elif name != "Transformer":
            raise ModelError(f"{folder / 'modules.json'}: a {name} module is not supported")
    if kind is None:
        raise ModelError(f"{folder / 'modules.json'} names no Pooling module")
    head = HeadSpec(kind=kind, normalize=normalize)
    if family.architecture == "qwen3":
        head = replace(qwen3.embedder_head(), kind=kind, normalize=normalize)
    prompts_file = folder / "config_sentence_transformers.json"
    prompts = read_json(prompts_file).get("prompts") if prompts_file.is_file() else None
    if isinstance(prompts, dict):
        if isinstance(prompts.get("query"), str):
            head = replace(head, query_prefix=prompts["query"])
        for key in ("document", "passage"):
            if prompts.get(key):
                head = replace(head, document_prefix=str(prompts[key]))
    return head


def _modules(folder: Path) -> list[dict[str, Any]]:
    path = folder / "modules.json"
    try:
        modules = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read as JSON ({error})") from error
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise ModelError(f"{path} is not a list of modules")
    return modules


def _inside(folder: Path, path: str) -> Path:
    if not (folder / path).resolve().is_relative_to(folder.resolve()):
        raise ModelError(f"{folder / 'modules.json'} points outside its folder: {path!r}")
    return Path(path)


def _pooling(path: Path) -> HeadKind:
    config = read_json(path)
    if config.get("include_prompt") is False:
        raise ModelError(f"{path}: pooling that leaves the prompt out is not supported")
    mode = config.get("pooling_mode")
    modes = [mode] if isinstance(mode, str) else [name for key, name in _BOOLEANS.items() if config.get(key)]
    if len(modes) != 1 or modes[0] not in _POOLINGS:
        raise ModelError(f"{path}: pooling {' + '.join(modes) or 'none'} is not supported, only cls, mean or lasttoken")
    return _POOLINGS[modes[0]]
