"""What a checkpoint's folder says about its model: the architecture, the head and the longest sequence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from edge.errors import ModelError
from edge.models import bert, rotary
from edge.models.checkpoint import Checkpoint, Floats, read_any_json, read_json
from edge.models.family import DENSE, MODULE, NORMALIZE, POOLING, SENTENCES, TRANSFORMER, Config, Family
from edge.models.spec import HeadKind, HeadSpec

FAMILIES: dict[str, Family] = {
    "bert": bert.FAMILY, "camembert": bert.ROBERTA, "data2vec-text": bert.DATA2VEC, "deberta-v2": bert.DEBERTA,
    "distilbert": bert.DISTILBERT, "electra": bert.ELECTRA, "gemma3_text": rotary.GEMMA3, "gte": bert.GTE,
    "jina_bert": bert.JINA, "modernbert": rotary.MODERNBERT, "mpnet": bert.MPNET, "new": bert.NEW,
    "nomic_bert": bert.NOMIC, "qwen2": rotary.QWEN2, "qwen3": rotary.QWEN3, "roberta": bert.ROBERTA,
    "xlm-roberta": bert.ROBERTA,
}  # fmt: skip


def family_of(config: Config) -> Family:
    """The family of a config.json. ModelError for another one, or a key that may change the results."""
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise ModelError(f"architecture {kind!r} is not supported; supported: {', '.join(sorted(FAMILIES))}")
    if kind == "bert" and config.get("position_embedding_type") == "alibi":
        kind = "jina_bert"  # published files call it bert
    family = FAMILIES[kind]
    family.check(config)
    tied = family.output is not None and config.get("tie_word_embeddings") is True
    return replace(family, output=family.table) if tied else family


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
    """The head of the model in `folder`: a classifier where there are its weights, else as modules.json says, else
    `yes` and `no` rows of a decoder. `names` are the canonical tensor names. ModelError if no pooling is supported."""
    if "score.weight" in names:
        raise ModelError(
            f"{folder} scores with the tensor score.weight, which is not supported: the text of its pairs is unknown"
        )
    if family.out is not None and f"{family.out}.weight" in names:
        head = _classifier(folder)
    elif (folder / "modules.json").is_file():
        return _sentence_transformer(folder, family)
    elif family.output is not None:
        head = rotary.reranker_head()
    else:
        raise ModelError(
            f"{folder} has neither classification weights nor a modules.json that says how tokens are pooled; "
            "pass the head, such as HeadSpec('mean', normalize=True)"
        )
    path = folder / "config_sentence_transformers.json"
    if path.is_file() and _prompted(path, head, read_json(path)) != head:
        raise ModelError(f"{path}: prompts of a reranker are not supported")
    return head


def _classifier(folder: Path) -> HeadSpec:
    path = body_folder(folder) / "config.json"
    names = read_json(path).get("architectures") or []
    if not isinstance(names, list) or not all(str(name).endswith("ForSequenceClassification") for name in names):
        raise ModelError(f"{path}: architectures = {names!r} is no reranker, whose pairs get one score")
    return HeadSpec(kind="classifier")


def body_folder(folder: Path) -> Path:
    """The folder with a checkpoint's config.json, tokenizer and weights: `folder`, or what modules.json names."""
    modules = _modules(folder) if (folder / "modules.json").is_file() else []
    places = [module.get("path", "") for module in modules if str(module.get("type", "")).endswith(".Transformer")]
    return folder / _inside(folder, str(places[0] if places else ""))


def token_limit(folder: Path, most: int) -> int:
    """The longest sequence, in tokens: `most`, or a smaller limit from the files of `body_folder`."""
    for file, key in (("sentence_bert_config.json", "max_seq_length"), ("tokenizer_config.json", "model_max_length")):
        if (folder / file).is_file():
            value = read_json(folder / file).get(key)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or value < 1):
                raise ModelError(f"{folder / file}: {key} is {value!r}, a number of tokens is needed")
            if value is not None:
                # Tokenizers without a limit of their own write 1e30.
                return int(min(value, most))
    return most


def _sentence_transformer(folder: Path, family: Family) -> HeadSpec:
    """The head of a sentence-transformers folder. Embeddings that are compared by their cosine get unit length, because
    searches here compare by inner products."""
    listed = folder / "modules.json"
    kinds = []
    dense: list[Path] = []
    kind: HeadKind = "mean"
    for module in _modules(folder):
        MODULE.check(listed, module)
        package, _, name = str(module.get("type", "")).rpartition(".")
        path = _inside(folder, str(module.get("path", "")))
        if name not in ("Transformer", "Pooling", "Dense", "Normalize") or not package.startswith(
            "sentence_transformers"
        ):
            raise ModelError(f"{listed}: a {name} module of {package or 'no package'} is not supported")
        if name == "Pooling":
            kind = _pooling(folder / path / "config.json")
        elif name == "Dense":
            dense.append(folder / path)
        elif name == "Normalize" and path != Path() and (folder / path / "config.json").is_file():
            NORMALIZE.check(folder / path / "config.json", read_json(folder / path / "config.json"))
        kinds.append(name)
    projected = ["Dense"] * len(dense)
    if kinds not in (["Transformer", "Pooling", *projected, *end] for end in ([], ["Normalize"])):
        raise ModelError(
            f"{listed} names {', '.join(kinds) or 'no module'}; Transformer, Pooling, Dense, Normalize are supported"
        )
    settings = body_folder(folder) / "sentence_bert_config.json"
    if settings.is_file():
        TRANSFORMER.check(settings, read_json(settings))
    head = rotary.embedder_head() if family.architecture == "qwen3" else HeadSpec(kind=kind)
    config: dict[str, Any] = {}
    path = folder / "config_sentence_transformers.json"
    if path.is_file():
        config = read_json(path)
        SENTENCES.check(path, config)
    similarity = config.get("similarity_fn_name") or "cosine"
    normalize = "Normalize" in kinds or similarity == "cosine"
    if similarity not in ("cosine", "dot") and not (similarity == "euclidean" and normalize):
        raise ModelError(f"{path}: similarity_fn_name = {similarity!r} is not supported, only cosine and dot")
    width, activation = _projected(dense)
    head = replace(_prompted(path, head, config), projection=width, projected=activation)
    return replace(head, kind=kind, normalize=normalize)


def dense_folders(folder: Path) -> list[Path]:
    """The folders of a sentence-transformers model's Dense modules, in order."""
    modules = _modules(folder)
    return [
        folder / _inside(folder, str(m.get("path", ""))) for m in modules if str(m.get("type", "")).endswith(".Dense")
    ]


def _prompted(path: Path, head: HeadSpec, config: Mapping[str, Any]) -> HeadSpec:
    """The head with the prefixes of `prompts`. The prompt `default_prompt_name` stands for one that is missing."""
    prompts = config.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(isinstance(text, str | None) for text in prompts.values()):
        raise ModelError(f"{path}: prompts is {prompts!r}, an object of texts is needed")
    name = config.get("default_prompt_name")
    if name is not None and name not in prompts:
        raise ModelError(f"{path}: default_prompt_name = {name!r} is not among the prompts")
    default = None if name is None else prompts[name]

    def prompt(*keys: str) -> str | None:
        own = [prompts[key] for key in keys if prompts.get(key) is not None]
        return next(filter(None, own), own[0] if own else default)

    query, document = prompt("query"), prompt("document", "passage", "corpus")
    return replace(
        head,
        query_prefix=head.query_prefix if query is None else query,
        document_prefix=head.document_prefix if document is None else document,
    )


def _modules(folder: Path) -> list[dict[str, Any]]:
    path = folder / "modules.json"
    modules = read_any_json(path)
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise ModelError(f"{path} is not a list of modules")
    return modules


def _inside(folder: Path, path: str) -> Path:
    if not (folder / path).resolve().is_relative_to(folder.resolve()):
        raise ModelError(f"{folder / 'modules.json'} points outside its folder: {path!r}")
    return Path(path)


def _pooling(path: Path) -> HeadKind:
    config = read_json(path)
    POOLING.check(path, config)
    mode = config.get("pooling_mode")
    modes = [mode] if isinstance(mode, str) else [name for key, name in _BOOLEANS.items() if config.get(key)]
    if len(modes) != 1 or modes[0] not in _POOLINGS:
        raise ModelError(f"{path}: pooling {' + '.join(modes) or 'none'} is not supported, only cls, mean or lasttoken")
    return _POOLINGS[modes[0]]


Projection: TypeAlias = tuple[Floats, Floats]
"""A matrix [in, out] and a bias [out]."""

_Activation = Literal["identity", "tanh"]

_ACTIVATIONS: dict[object, _Activation] = {
    "torch.nn.modules.linear.Identity": "identity",
    "torch.nn.modules.activation.Tanh": "tanh",
}


def _projected(folders: Sequence[Path]) -> tuple[int, _Activation]:
    """The width after the last of several Dense modules, and its activation; only the last may have one."""
    width, activation = 0, _ACTIVATIONS["torch.nn.modules.linear.Identity"]
    for folder in folders:
        path = folder / "config.json"
        config = read_json(path)
        DENSE.check(path, config)
        name = config.get("activation_function", "torch.nn.modules.activation.Tanh")
        if activation != "identity" or name not in _ACTIVATIONS:
            raise ModelError(
                f"{path}: the activation {name!r} is not supported here, only Identity, and Tanh at the end"
            )
        sizes = [config.get("in_features"), config.get("out_features")]
        if not all(type(size) is int and size > 0 for size in sizes) or (width and sizes[0] != width):
            raise ModelError(f"{path}: in_features and out_features are {sizes}, after a width of {width}")
        width, activation = int(config["out_features"]), _ACTIVATIONS[name]
    return width, activation


def read_projection(folders: Sequence[Path], hidden: int) -> Projection:
    """The product of the modules' matrices, and their bias, after vectors of width `hidden`."""
    matrix: Floats = np.eye(hidden, dtype=np.float32)
    bias: Floats = np.zeros(hidden, np.float32)
    for folder in folders:
        width = int(read_json(folder / "config.json")["out_features"])
        with Checkpoint(folder) as checkpoint:
            if checkpoint.shapes.get("linear.weight") != (width, len(bias)):
                raise ModelError(f"{folder} has no tensor linear.weight of the shape {[width, len(bias)]}")
            weight = checkpoint.read("linear.weight").T
            added = checkpoint.read("linear.bias") if "linear.bias" in checkpoint.shapes else np.float32(0)
            if np.shape(added) not in ((), (width,)):
                raise ModelError(f"{folder} has a tensor linear.bias of the shape {list(np.shape(added))}")
        matrix, bias = matrix @ weight, bias @ weight + added
    return np.ascontiguousarray(matrix), bias
