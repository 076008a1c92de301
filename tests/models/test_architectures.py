"""The head and the longest sequence, as a folder describes them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edge.errors import ModelError
from edge.models import rotary
from edge.models.pack import pack
from edge.models.spec import HeadSpec

Variant = Callable[..., Path]
OTHER_MODULES = """Asym BoW CLIPModel CNN Dropout LayerNorm LSTM MLMTransformer Router SparseAutoEncoder
SparseStaticEmbedding SpladePooling StaticEmbedding WeightedLayerPooling WordEmbeddings WordWeights"""
"""All other modules of sentence-transformers 5."""


def write(path: Path, content: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content))


def head_of(folder: Path, tmp_path: Path) -> HeadSpec:
    with pack(folder, tmp_path / "pack") as model:
        return model.spec.head


def test_heads_of_the_golden_models(golden: Path, tmp_path: Path) -> None:
    assert head_of(golden / "bert-reranker", tmp_path) == HeadSpec("classifier")
    assert head_of(golden / "xlm-roberta-reranker", tmp_path) == HeadSpec("classifier")
    assert head_of(golden / "bert-embedder", tmp_path) == HeadSpec("mean", normalize=True)
    assert head_of(golden / "qwen3-reranker", tmp_path) == rotary.reranker_head()
    assert head_of(golden / "qwen3-embedder", tmp_path) == rotary.embedder_head()


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "first-token"),
        ({"pooling_mode_mean_tokens": True}, "mean"),
        ({"pooling_mode_lasttoken": True}, "last-token"),
        ({"pooling_mode": "cls"}, "first-token"),
        ({"pooling_mode": "mean"}, "mean"),
    ],
)
def test_poolings(variant: Variant, tmp_path: Path, config: dict[str, object], kind: str) -> None:
    folder = variant("bert-embedder")
    write(folder / "1_Pooling" / "config.json", config)
    assert head_of(folder, tmp_path).kind == kind


@pytest.mark.parametrize(
    "config",
    [
        {"pooling_mode_max_tokens": True},
        {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True},
        {"pooling_mode": "weightedmean"},
        {"pooling_mode_mean_tokens": True, "include_prompt": False},
        {},
    ],
)
def test_poolings_that_are_refused(variant: Variant, tmp_path: Path, config: dict[str, object]) -> None:
    folder = variant("bert-embedder")
    write(folder / "1_Pooling" / "config.json", config)
    with pytest.raises(ModelError, match="not supported"):
        head_of(folder, tmp_path)


def test_modules(variant: Variant, tmp_path: Path) -> None:
    folder = variant("bert-embedder")
    modules = json.loads((folder / "modules.json").read_text())
    write(folder / "modules.json", modules[:2])
    assert head_of(folder, tmp_path).normalize  # the default similarity is the cosine
    write(folder / "config_sentence_transformers.json", {"similarity_fn_name": "dot"})
    assert not head_of(folder, tmp_path).normalize
    write(folder / "config_sentence_transformers.json", {"similarity_fn_name": "manhattan"})
    with pytest.raises(ModelError, match="similarity_fn_name"):
        head_of(folder, tmp_path)
    (folder / "config_sentence_transformers.json").unlink()
    write(folder / "modules.json", [*modules, {"type": "sentence_transformers.models.Dense", "path": "3_Dense"}])
    with pytest.raises(ModelError, match="names Transformer, Pooling, Normalize, Dense"):
        head_of(folder, tmp_path)
    for name in OTHER_MODULES.split():
        write(folder / "modules.json", [*modules, {"type": f"sentence_transformers.models.{name}", "path": "3_Other"}])
        with pytest.raises(ModelError, match=rf"a {name} module of sentence_transformers\.models is not supported"):
            head_of(folder, tmp_path)
    write(folder / "modules.json", [modules[0], {**modules[1], "path": "../../elsewhere"}])
    with pytest.raises(ModelError, match="points outside"):
        head_of(folder, tmp_path)
    write(folder / "modules.json", [{**modules[0], "path": "0_Transformer"}, *modules[1:]])
    with pytest.raises(ModelError, match=r"0_Transformer has no config\.json"):
        head_of(folder, tmp_path)
    write(folder / "modules.json", [modules[0], modules[2], modules[1]])
    with pytest.raises(ModelError, match="names Transformer, Normalize, Pooling"):
        head_of(folder, tmp_path)
    write(folder / "modules.json", [{**modules[0], "type": "custom_st.Transformer"}, *modules[1:]])
    with pytest.raises(ModelError, match="a Transformer module of custom_st"):
        head_of(folder, tmp_path)
    write(folder / "modules.json", modules[:1])
    with pytest.raises(ModelError, match="names Transformer;"):
        head_of(folder, tmp_path)
    write(folder / "modules.json", {"a": 1})
    with pytest.raises(ModelError, match="not a list"):
        head_of(folder, tmp_path)
    (folder / "modules.json").unlink()
    with pytest.raises(ModelError, match="how tokens are pooled"):
        head_of(folder, tmp_path)


def test_prompts(variant: Variant, tmp_path: Path) -> None:
    folder = variant("qwen3-embedder")
    write(folder / "config_sentence_transformers.json", {"prompts": {"query": "Find: ", "document": "Text: "}})
    head = head_of(folder, tmp_path)
    assert (head.query_prefix, head.document_prefix) == ("Find: ", "Text: ")
    for prompts, default, expected in (
        ({"query": "Find: ", "search": "S: "}, "search", ("Find: ", "S: ")),
        ({"search": "S: "}, "search", ("S: ", "S: ")),
        ({"query": "Q: ", "document": ""}, "query", ("Q: ", "")),
        ({"document": "", "passage": "P: "}, None, (rotary.embedder_head().query_prefix, "P: ")),
    ):
        write(folder / "config_sentence_transformers.json", {"prompts": prompts, "default_prompt_name": default})
        head = head_of(folder, tmp_path)
        assert (head.query_prefix, head.document_prefix) == expected
    write(folder / "config_sentence_transformers.json", {"prompts": {}, "default_prompt_name": "search"})
    with pytest.raises(ModelError, match="default_prompt_name = 'search'"):
        head_of(folder, tmp_path)
    write(folder / "config_sentence_transformers.json", {"prompts": {}})
    assert head_of(folder, tmp_path) == rotary.embedder_head()


@pytest.mark.parametrize("name", ["bert-reranker", "qwen3-reranker"])
def test_prompts_of_a_reranker_are_refused(variant: Variant, tmp_path: Path, name: str) -> None:
    folder = variant(name)
    head = head_of(folder, tmp_path)
    for config in ({"prompts": {"query": "Find: "}}, {"prompts": {"web": "W: "}, "default_prompt_name": "web"}):
        write(folder / "config_sentence_transformers.json", config)
        with pytest.raises(ModelError, match="prompts of a reranker"):
            head_of(folder, tmp_path)
    if name == "bert-reranker":
        write(folder / "config_sentence_transformers.json", {"prompts": {"query": "", "document": ""}})
        assert head_of(folder, tmp_path) == head


@pytest.mark.parametrize(
    ("file", "content", "tokens"),
    [
        ("sentence_bert_config.json", {"max_seq_length": 32}, 32),
        ("sentence_bert_config.json", {"max_seq_length": 512}, 64),
        ("sentence_bert_config.json", {"max_seq_length": None}, 64),
        ("tokenizer_config.json", {"model_max_length": 1e30}, 64),
        ("tokenizer_config.json", {"model_max_length": 48}, 48),
    ],
)
def test_longest_sequence(variant: Variant, tmp_path: Path, file: str, content: Any, tokens: int) -> None:
    folder = variant("bert-embedder")
    write(folder / file, content)
    with pack(folder, tmp_path / "pack") as model:
        assert model.spec.max_tokens == tokens
        assert model.spec.positions == 64


def test_a_description_that_is_no_json(variant: Variant, tmp_path: Path) -> None:
    folder = variant("bert-embedder")
    (folder / "1_Pooling" / "config.json").write_text("{")
    with pytest.raises(ModelError, match="cannot be read as JSON"):
        head_of(folder, tmp_path)
    (folder / "config.json").write_text("[]")
    with pytest.raises(ModelError, match="does not hold a JSON object"):
        head_of(folder, tmp_path)
