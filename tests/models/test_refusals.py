"""What a checkpoint says, and no model here computes, is refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from making.synth import synth_checkpoint

from edge.errors import ModelError
from edge.models.pack import pack

BERT, XLM, QWEN, EMBEDDER, EMBEDS = (
    "bert-reranker",
    "xlm-roberta-reranker",
    "qwen3-reranker",
    "bert-embedder",
    "qwen3-embedder",
)
JINA = "tiny-jina-embedder"
CONFIG, POOLING, TOKENIZER = "config.json", "1_Pooling/config.json", "tokenizer_config.json"
SENTENCES, SETTINGS, MODULES = "config_sentence_transformers.json", "sentence_bert_config.json", "modules.json"

_PACKAGE = "sentence_transformers.models"
_TRANSFORMER = {"path": "", "type": f"{_PACKAGE}.Transformer"}
_POOLING = {"path": "1_Pooling", "type": f"{_PACKAGE}.Pooling"}
_NORMALIZE = {"path": "2_Normalize", "type": f"{_PACKAGE}.Normalize"}
_OTHERS = """Asym BoW CLIPModel CNN Dropout LayerNorm LSTM MLMTransformer Router SparseAutoEncoder SparseStaticEmbedding
SpladePooling StaticEmbedding WeightedLayerPooling WordEmbeddings WordWeights"""
"""All other modules of sentence-transformers 5."""


def _named(name: str) -> dict[str, str]:
    return {"path": "3_Other", "type": f"{_PACKAGE}.{name}"}


REFUSED: list[tuple[str, str, Any, str]] = [
    (BERT, CONFIG, {"model_type": "t5"}, "architecture 't5' is not supported; supported: bert"),
    (BERT, CONFIG, {"hidden_act": "tanh"}, "hidden_act, the activation 'tanh'"),
    (BERT, CONFIG, {"position_embedding_type": "relative_key"}, "position_embedding_type = 'relative_key'"),
    (BERT, CONFIG, {"is_decoder": True}, "is_decoder"),
    (BERT, CONFIG, {"num_hidden_layers": None}, "num_hidden_layers is None"),
    (BERT, CONFIG, {"num_attention_heads": 5}, "not a multiple"),
    (BERT, CONFIG, {"num_hidden_layers": 3}, "lacks tensor encoder.layer.2.attention.output.LayerNorm.weight"),
    (BERT, CONFIG, {"intermediate_size": 64}, "intermediate.dense.bias has shape"),
    (QWEN, CONFIG, {"use_sliding_window": True}, "use_sliding_window"),
    (QWEN, CONFIG, {"rope_scaling": {"type": "yarn"}}, "rope_scaling"),
    (QWEN, CONFIG, {"rope_parameters": {"rope_type": "yarn"}}, "rope_type"),
    (QWEN, CONFIG, {"layer_types": ["sliding_attention"] * 2}, "layer_types"),
    (QWEN, CONFIG, {"attention_bias": True}, "attention_bias"),
    (QWEN, CONFIG, {"vocab_size": 406}, "embed_tokens.weight has shape"),
    (JINA, CONFIG, {"feed_forward_type": "original"}, "feed_forward_type"),
    (JINA, CONFIG, {"feed_forward_type": None}, "feed_forward_type"),
    (JINA, CONFIG, {"position_embedding_type": "relative_key"}, "position_embedding_type"),
    (JINA, CONFIG, {"auto_map": {"AutoModel": "jinaai/jina-bert-v2--modeling_bert.JinaBertModel"}}, "auto_map"),
    (JINA, CONFIG, {"auto_map": {"AutoModel": "modeling_bert.JinaBertModel"}}, "auto_map"),
    (JINA, CONFIG, {"auto_map": ["jinaai/jina-bert-implementation--"]}, "auto_map"),
    (JINA, CONFIG, {"alibi_scaling": 2}, "alibi_scaling"),
    (JINA, CONFIG, {"is_decoder": True}, "is_decoder"),
    (JINA, CONFIG, {"wonderful": 1}, "wonderful"),
    (EMBEDDER, CONFIG, "[]", "does not hold a JSON object"),
    (EMBEDDER, POOLING, "{", "cannot be read as JSON"),
    (EMBEDDER, POOLING, {"pooling_mode_max_tokens": True}, "not supported"),
    (EMBEDDER, POOLING, {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}, "not supported"),
    (EMBEDDER, POOLING, {"pooling_mode": "weightedmean"}, "not supported"),
    (EMBEDDER, POOLING, {"pooling_mode_mean_tokens": True, "include_prompt": False}, "not supported"),
    (EMBEDDER, POOLING, {"pooling_mode": "mean", "wonderful": 1}, "wonderful"),
    (EMBEDDER, POOLING, {}, "not supported"),
    (EMBEDDER, MODULES, {"a": 1}, "not a list"),
    (EMBEDDER, MODULES, [_TRANSFORMER], "names Transformer;"),
    (EMBEDDER, MODULES, [_TRANSFORMER, _NORMALIZE, _POOLING], "names Transformer, Normalize, Pooling"),
    (EMBEDDER, MODULES, [_TRANSFORMER, _POOLING, _NORMALIZE, _named("Dense")], "Normalize, Dense"),
    (EMBEDDER, MODULES, [_TRANSFORMER, {**_POOLING, "path": "../../elsewhere"}], "points outside"),
    (EMBEDDER, MODULES, [{**_TRANSFORMER, "path": "0_Transformer"}, _POOLING], r"0_Transformer has no config\.json"),
    (EMBEDDER, MODULES, [{**_TRANSFORMER, "type": "custom_st.Transformer"}, _POOLING], "module of custom_st"),
    *((EMBEDDER, MODULES, [_TRANSFORMER, _POOLING, _named(name)], rf"a {name} module of .* is not")
      for name in _OTHERS.split()),
    (EMBEDDER, MODULES, None, "how tokens are pooled"),
    (EMBEDDER, SENTENCES, {"similarity_fn_name": "manhattan"}, "similarity_fn_name"),
    (EMBEDDER, SENTENCES, {"truncate_dim": 16}, "truncate_dim"),
    (EMBEDDER, SENTENCES, {"model_type": "SparseEncoder"}, "model_type"),
    (EMBEDDER, SENTENCES, {"prompts": {"query": 3}}, "prompts"),
    (EMBEDDER, SENTENCES, {"prompts": ["query"]}, "prompts"),
    (EMBEDS, SENTENCES, {"prompts": {}, "default_prompt_name": "search"}, "default_prompt_name = 'search'"),
    *((name, SENTENCES, {"prompts": {"web": "W", "query": prompt}, "default_prompt_name": "web"}, "prompts of a re")
      for name in (BERT, QWEN) for prompt in ("Find: ", None)),
    (EMBEDDER, SETTINGS, {"transformer_task": "text-generation"}, "transformer_task"),
    (EMBEDDER, SETTINGS, {"query_expansion": True}, "query_expansion"),
    (EMBEDDER, SETTINGS, {"max_seq_length": "many"}, "max_seq_length"),
    (EMBEDDER, SETTINGS, {"wonderful": 1}, "wonderful"),
    (EMBEDDER, "2_Normalize/config.json", {"module_input_name": "token_embeddings"}, "module_input_name"),
    (EMBEDDER, TOKENIZER, {"do_lower_case": False}, "do_lower_case"),
    (EMBEDDER, TOKENIZER, {"strip_accents": False}, "strip_accents"),
    (EMBEDDER, TOKENIZER, {"tokenize_chinese_chars": False}, "tokenize_chinese_chars"),
    (EMBEDDER, TOKENIZER, {"do_lower_case": True, "strip_accents": None, "tokenize_chinese_chars": True}, ""),
    (EMBEDDER, TOKENIZER, {"truncation_side": "left"}, "truncation_side"),
    (EMBEDDER, TOKENIZER, {"split_special_tokens": True}, "split_special_tokens"),
    (EMBEDDER, TOKENIZER, {"cls_token": "[SEP]", "sep_token": "[CLS]"}, ""),
    (EMBEDDER, TOKENIZER, {"cls_token": "[MASK]"}, "cls_token"),
    (EMBEDDER, TOKENIZER, {"additional_special_tokens": ["energy"]}, "additional_special_tokens"),
    (EMBEDDER, TOKENIZER, {"added_tokens_decoder": {"9": {"content": "[SEP]"}}}, "added_tokens_decoder"),
    (EMBEDDER, TOKENIZER, {"added_tokens_decoder": []}, ""),
    (EMBEDDER, TOKENIZER, {"added_tokens_decoder": [1]}, "added_tokens_decoder"),
    (EMBEDDER, TOKENIZER, {"unheard_of": "x"}, "unheard_of"),
    (EMBEDDER, TOKENIZER, {"unheard_of": None}, ""),
    (BERT, TOKENIZER, {"model_input_names": ["input_ids", "attention_mask"]}, "model_input_names"),
    (EMBEDDER, TOKENIZER, {"model_input_names": ["input_ids", "attention_mask"]}, ""),
    (XLM, TOKENIZER, {"add_prefix_space": False}, "add_prefix_space"),
    (XLM, TOKENIZER, {"add_prefix_space": True}, ""),
    (XLM, TOKENIZER, {"do_lower_case": True}, "do_lower_case"),
    (XLM, TOKENIZER, {"add_bos_token": True, "bos_token": "<s>", "eos_token": "</s>"}, ""),
    (EMBEDS, TOKENIZER, {"add_prefix_space": True}, "add_prefix_space"),
    (EMBEDS, TOKENIZER, {"add_eos_token": True, "eos_token": "<|im_end|>"}, "add_eos_token"),
    (EMBEDS, TOKENIZER, {"add_prefix_space": False, "add_bos_token": False}, ""),
]  # fmt: skip
"""A checkpoint, a file of it, its new content (of config.json: changes), and what is said; nothing if it is packed."""


@pytest.mark.parametrize(("name", "file", "content", "message"), REFUSED)
def test_a_checkpoint(
    variant: Callable[..., Path], tmp_path: Path, name: str, file: str, content: Any, message: str
) -> None:
    merged = content if file == CONFIG and isinstance(content, dict) else {}
    if name == JINA:
        folder = synth_checkpoint(name, tmp_path / "checkpoint")
        (folder / CONFIG).write_text(json.dumps(json.loads((folder / CONFIG).read_text()) | merged))
    else:
        folder = variant(name, **merged)
    if content is None:
        (folder / file).unlink()
    elif not merged:
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_text(content if isinstance(content, str) else json.dumps(content))
    if not message:
        pack(folder, tmp_path / "pack").close()
        return
    with pytest.raises(ModelError, match=message):
        pack(folder, tmp_path / "pack")
    assert not (tmp_path / "pack").exists()
