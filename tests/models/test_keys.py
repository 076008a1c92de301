"""Every key of a configuration is used, changes nothing, or is refused: tiny models with one key varied at a time.

The expected values are those of transformers for the same random weights and the same configuration.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge.budget import MemoryBudget
from edge.errors import ModelError
from edge.models.architectures import FAMILIES, family_of
from edge.models.pack import pack
from edge.models.spec import HeadSpec
from edge.models.tokenizer import PairTokenizer, TokenBatch
from edge.runtimes.embedder import PoolingObserver
from edge.runtimes.engine import Engine, Tuning
from edge.runtimes.passes import Job
from edge.runtimes.scoring import embeddings, logits

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
transformers.utils.logging.disable_progress_bar()
Variant = Callable[..., Path]
GOLDEN = Path(__file__).parents[1] / "golden"

ENCODER = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "vocab_size": 450,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
}
DISTIL = {"dim": 32, "n_layers": 3, "n_heads": 4, "hidden_dim": 40, "vocab_size": 450, "max_position_embeddings": 64}
TINY: dict[str, dict[str, Any]] = {
    "bert": ENCODER,
    "camembert": ENCODER,
    "data2vec-text": ENCODER,
    "distilbert": DISTIL,
    "electra": {**ENCODER, "embedding_size": 32},
    "modernbert": {**ENCODER, "local_attention": 6, "pad_token_id": 0, "initializer_range": 0.05},
    "deberta-v2": {
        **ENCODER,
        "relative_attention": True,
        "position_buckets": 8,
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
        "pos_att_type": "p2c|c2p",
        "position_biased_input": False,
        "type_vocab_size": 0,
        "max_position_embeddings": 64,
    },
    "gemma3_text": {
        **ENCODER,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "query_pre_attn_scalar": 8,
        "sliding_window": 6,
        "use_bidirectional_attention": True,
    },
    "gte": {**ENCODER, "pad_token_id": 1},
    "mpnet": {**ENCODER, "max_position_embeddings": 66},
    "nomic_bert": ENCODER,
    "qwen2": {**ENCODER, "num_key_value_heads": 2},
    "qwen3": {**ENCODER, "num_key_value_heads": 2, "head_dim": 8},
    "roberta": ENCODER,
    "xlm-roberta": ENCODER,
}
TOKENIZERS = {
    "qwen2": "qwen3-embedder",
    "qwen3": "qwen3-embedder",
    "gemma3_text": "qwen3-embedder",
    "modernbert": "qwen3-embedder",
    "bert": "bert-embedder",
    "distilbert": "bert-embedder",
    "electra": "bert-embedder",
    "mpnet": "bert-embedder",
    "nomic_bert": "bert-embedder",
}
TUNING = Tuning(chunk_tokens=64)  # nothing is measured
SEQUENCES = [[7, 9, 11, 200, 33, 5, 18], [12, 140, 6], [50, *range(20, 60)]]
WORDS: dict[str, list[Any]] = {
    "hidden_act": ["relu", "gelu_new", "silu", "quick_gelu", "tanh"],
    "activation": ["relu", "quick_gelu"],
    "hidden_activation": ["relu", "gelu_new", "quick_gelu"],
    "classifier_activation": ["relu", "tanh", "quick_gelu"],
    "layer_types": [["sliding_attention", "full_attention", "sliding_attention"], ["full_attention"] * 3],
    "rope_parameters": [
        {"rope_theta": 500.0, "rope_type": "default"},
        {"rope_type": "linear", "factor": 2.0},
        {"full_attention": {"rope_theta": 500.0}, "sliding_attention": {"rope_theta": 50.0}},
        {"full_attention": {"rope_theta": 500.0, "rope_type": "linear", "factor": 2.0}},
    ],
    "dtype": ["float32"],
    "local_attention": [2, 7, 200, 1],
    "relative_attention_num_buckets": [4, 32],
    "pos_att_type": [["p2c", "c2p"], "c2p"],
    "norm_rel_ebd": ["none"],
    "max_relative_positions": [20],
    "pooler_hidden_act": ["relu", "quick_gelu"],
    "position_buckets": [16],
    "problem_type": ["regression"],
    "initializer_range": [0.1],
    "chunk_size_feed_forward": [1],
    "architectures": [["OtherModel"]],
    "embedding_size": [16],
    "num_key_value_heads": [1, 4],
    "num_attention_heads": [2, 8],
    "n_heads": [2],
    "head_dim": [16],
}
EXTRA: dict[str, list[Any]] = {
    "is_causal": [False, True],
    "is_decoder": [True],
    "tie_word_embeddings": [True, False],
    "use_bidirectional_attention": [True, False],
    "use_sliding_window": [True],
    "sliding_window": [2, 20],
    "sliding_window_pattern": [2],
    "query_pre_attn_scalar": [16],
    "rope_theta": [77.0],
    "global_attn_every_n_layers": [2],
    "global_rope_theta": [99.0],
    "local_rope_theta": [55.0],
    "classifier_pooling": ["mean", "cls"],
    "rope_scaling": [{"rope_type": "linear", "factor": 2.0}],
    "position_embedding_type": ["relative_key", "absolute"],
    "pruned_heads": [{"0": [1]}, {}],
    "quantization_config": [{"quant_method": "bitsandbytes"}],
    "auto_map": [{"AutoModel": "modeling.Own"}],
    "wonderful": [3],
}
ALIASES = {"rope_scaling": "rope_parameters", "is_causal": "is_decoder"}
KIN = ("camembert", "data2vec-text", "xlm-roberta")
KIN_KEYS = ("pad_token_id", "hidden_act", "is_decoder", "wonderful", "layer_norm_eps")
NOT_VARIED = {"model_type", "transformers_version", "vocab_size", "id2label", "label2id", "return_dict"}


def values_of(key: str, value: Any) -> list[Any]:
    if key in WORDS or key in EXTRA:
        return [*WORDS.get(key, []), *EXTRA.get(key, [])]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, 2 * value] if value else [2]
    if isinstance(value, float):
        return [0.25 if value < 0.1 else 7 * value]
    return [True, 3] if value is None else []


def built(kind: str, config: dict[str, Any], name: str, seed: int = 0) -> Any:
    """A model with random weights, or None if transformers refuses the configuration."""
    torch.manual_seed(seed)
    try:
        made = transformers.AutoConfig.for_model(kind, **config)
        made._attn_implementation = "eager"
        model = getattr(transformers, name).from_config(made, attn_implementation="eager").eval()
    except Exception:
        return None
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape)
    return model


def saved(model: Any, folder: Path, changes: dict[str, Any], tokenizer: str) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(config))
    shutil.copy(GOLDEN / tokenizer / "tokenizer.json", folder)
    return folder


def ours(folder: Path, tmp_path: Path, head: HeadSpec | None) -> tuple[np.ndarray | None, str]:
    """What the packed model gives for `SEQUENCES`, with the reference runtime in fp32; or None and the reason why the
    checkpoint is refused."""
    try:
        model = pack(folder, tmp_path / "pack", "fp32", head=head)
    except ModelError as error:
        return None, str(error)
    lengths = np.array([len(ids) for ids in SEQUENCES], np.int32)
    tokens = np.concatenate(SEQUENCES).astype(np.int32)
    types = np.zeros(len(tokens), np.uint8) if model.spec.token_types > 1 else None
    batch = TokenBatch(np.empty(0, np.int32), tokens, lengths, types, False)
    budget = MemoryBudget(1 << 40)
    with Engine(model, budget, runtime="numpy", threads=1, scratch=tmp_path, tuning=TUNING) as engine:
        observer = PoolingObserver(model.spec, engine.head, len(batch))
        engine.run(Job(batch, lambda: observer))
        finish = logits if model.spec.head.scores else embeddings
        return np.asarray(finish(model.spec, engine.head, observer.vectors)), ""


@torch.inference_mode()
def theirs(model: Any, head: HeadSpec | None) -> np.ndarray:
    rows = []
    for ids in SEQUENCES:
        output = model(input_ids=torch.tensor([ids]))
        if head is None:
            rows.append(output.logits[0, 0].numpy())
        else:
            states = output.last_hidden_state[0].numpy()
            rows.append({"mean": states.mean(0), "first-token": states[0], "last-token": states[-1]}[head.kind])
    return np.stack(rows)


def variations(kind: str, form: str) -> Iterator[tuple[str, Any]]:
    """Keys with other values: all keys for the body, and for a classification head those that may concern it. The kin
    of RoBERTa have the same code and the same keys, so few are varied."""
    defaults = transformers.AutoConfig.for_model(kind, **TINY[kind]).to_dict()
    if kind in KIN:
        assert set(defaults) == set(transformers.RobertaConfig().to_dict())
    for key, value in {**dict.fromkeys(EXTRA), **defaults}.items():
        concerned = form == "embedder" or key.startswith(
            ("classifier", "summary", "hidden_a", "pad", "pooler", "wonderful")
        )
        if key not in NOT_VARIED and concerned and (kind not in KIN or key in KIN_KEYS):
            for other in values_of(key, value):
                yield key, other


@pytest.mark.parametrize(
    ("kind", "form"),
    # A classifier of Qwen3 is refused, see below.
    [
        (kind, form)
        for kind in sorted(TINY)
        for form in ("embedder", "reranker")
        if form == "embedder" or kind not in ("gemma3_text", "qwen2", "qwen3")
    ],
)
def test_one_key_at_a_time(tmp_path: Path, kind: str, form: str) -> None:
    head = HeadSpec("mean") if form == "embedder" else None
    name = "AutoModel" if head else "AutoModelForSequenceClassification"
    labels = {} if head else {"num_labels": 1}
    equal: set[str] = set()
    refused: set[str] = set()
    tokenizer = TOKENIZERS.get(kind, "xlm-roberta-reranker")
    for key, value in [("", None), *variations(kind, form)]:
        changes = {key: value} if key else {}
        model = built(kind, {**TINY[kind], **labels, **changes}, name)
        if model is None:
            continue
        folder = saved(model, tmp_path / "checkpoint", changes, tokenizer)
        found, reason = ours(folder, tmp_path, head)
        if found is None:
            assert any(word in reason for word in (key, ALIASES.get(key, key))), (key, value, reason)
            refused.add(key)
            continue
        expected = theirs(model, head)
        assert np.abs(found - expected.reshape(found.shape)).max() < 1e-5, (key, value)
        equal.add(key)
    assert "" in equal
    assert "wonderful" in refused
    if form == "embedder" and kind not in KIN:
        assert len(equal) > 15
        assert {"pruned_heads", "auto_map", "quantization_config"} <= refused
        assert not {"intermediate_size", "hidden_dim", "initializer_range"} & refused


def test_all_other_families_are_refused_by_name() -> None:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    others = set(CONFIG_MAPPING_NAMES) - set(FAMILIES)
    assert len(others) > 100
    for kind in others:
        with pytest.raises(ModelError, match=f"architecture '{kind}' is not supported"):
            family_of({"model_type": kind})


@pytest.mark.parametrize("pooling", ["mean", "first-token", "last-token"])
@pytest.mark.parametrize("causal", [True, False])
def test_poolings_of_a_decoder(tmp_path: Path, pooling: Any, causal: bool) -> None:
    model = built("qwen3", {**TINY["qwen3"], "is_causal": causal}, "AutoModel")
    folder = saved(model, tmp_path / "checkpoint", {"is_causal": causal}, "qwen3-embedder")
    head = HeadSpec(pooling)
    found, reason = ours(folder, tmp_path, head)
    assert found is not None, reason
    assert np.abs(found - theirs(model, head)).max() < 1e-5


def test_a_decoder_with_a_head_of_its_own_is_refused(tmp_path: Path) -> None:
    model = built("qwen3", {**TINY["qwen3"], "num_labels": 1, "pad_token_id": 0}, "AutoModelForSequenceClassification")
    folder = saved(model, tmp_path / "checkpoint", {}, "qwen3-reranker")
    with pytest.raises(ModelError, match=r"score\.weight"):
        pack(folder, tmp_path / "pack")


def test_labels_of_tokens_are_no_scores(tmp_path: Path) -> None:
    model = built("bert", {**ENCODER, "num_labels": 1}, "AutoModelForTokenClassification")
    folder = saved(model, tmp_path / "checkpoint", {}, "bert-embedder")
    with pytest.raises(ModelError, match="BertForTokenClassification"):
        pack(folder, tmp_path / "pack")


@pytest.mark.parametrize(
    ("name", "changes", "key"),
    [
        ("bert-embedder", {"do_lower_case": False}, "do_lower_case"),
        ("bert-embedder", {"strip_accents": False}, "strip_accents"),
        ("bert-embedder", {"tokenize_chinese_chars": False}, "tokenize_chinese_chars"),
        ("bert-embedder", {"do_lower_case": True, "strip_accents": None, "tokenize_chinese_chars": True}, None),
        ("bert-embedder", {"truncation_side": "left"}, "truncation_side"),
        ("bert-embedder", {"split_special_tokens": True}, "split_special_tokens"),
        ("bert-embedder", {"cls_token": "[SEP]", "sep_token": "[CLS]"}, None),
        ("bert-embedder", {"cls_token": "[MASK]"}, "cls_token"),
        ("bert-embedder", {"additional_special_tokens": ["energy"]}, "additional_special_tokens"),
        ("bert-embedder", {"added_tokens_decoder": {"9": {"content": "[SEP]"}}}, "added_tokens_decoder"),
        ("bert-embedder", {"added_tokens_decoder": []}, None),
        ("bert-embedder", {"added_tokens_decoder": [1]}, "added_tokens_decoder"),
        ("bert-embedder", {"unheard_of": "x"}, "unheard_of"),
        ("bert-embedder", {"unheard_of": None}, None),
        ("bert-reranker", {"model_input_names": ["input_ids", "attention_mask"]}, "model_input_names"),
        ("bert-embedder", {"model_input_names": ["input_ids", "attention_mask"]}, None),
        ("xlm-roberta-reranker", {"add_prefix_space": False}, "add_prefix_space"),
        ("xlm-roberta-reranker", {"add_prefix_space": True}, None),
        ("xlm-roberta-reranker", {"do_lower_case": True}, "do_lower_case"),
        ("qwen3-embedder", {"add_prefix_space": True}, "add_prefix_space"),
        ("qwen3-embedder", {"add_eos_token": True, "eos_token": "<|im_end|>"}, "add_eos_token"),
        ("xlm-roberta-reranker", {"add_bos_token": True, "bos_token": "<s>", "eos_token": "</s>"}, None),
        ("qwen3-embedder", {"add_prefix_space": False, "add_bos_token": False}, None),
    ],
)
def test_settings_of_a_tokenizer(variant: Variant, tmp_path: Path, name: str, changes: Any, key: str | None) -> None:
    folder = variant(name)
    (folder / "tokenizer_config.json").write_text(json.dumps(changes))
    if key is None:
        pack(folder, tmp_path / "pack").close()
    else:
        with pytest.raises(ModelError, match=key):
            pack(folder, tmp_path / "pack")


@pytest.mark.parametrize("name", ["bert-embedder", "xlm-roberta-reranker", "qwen3-embedder"])
def test_what_transformers_saves_of_a_tokenizer_packs_to_the_same_ids(
    variant: Variant, tmp_path: Path, name: str
) -> None:
    folder = variant(name)
    transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json")).save_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    texts = ["Énergie [MASK] of Cells", "two  spaces <mask> 東京", "yes <|im_end|>"]
    with pack(folder, tmp_path / "pack", "fp32") as model:
        batch = PairTokenizer(model.tokenizer_path, model.spec).encode_texts(texts)
        found = [ids.tolist() for ids in np.split(batch.tokens, batch.starts[1:-1])]
    assert found == [tokenizer(text, truncation=False, padding=False).input_ids for text in texts]


@pytest.mark.parametrize(
    ("file", "content", "key"),
    [
        ("sentence_bert_config.json", {"transformer_task": "text-generation"}, "transformer_task"),
        ("sentence_bert_config.json", {"query_expansion": True}, "query_expansion"),
        ("sentence_bert_config.json", {"max_seq_length": "many"}, "max_seq_length"),
        ("sentence_bert_config.json", {"wonderful": 1}, "wonderful"),
        ("config_sentence_transformers.json", {"truncate_dim": 16}, "truncate_dim"),
        ("config_sentence_transformers.json", {"model_type": "SparseEncoder"}, "model_type"),
        ("config_sentence_transformers.json", {"prompts": {"query": 3}}, "prompts"),
        ("config_sentence_transformers.json", {"prompts": ["query"]}, "prompts"),
        ("2_Normalize/config.json", {"module_input_name": "token_embeddings"}, "module_input_name"),
        ("1_Pooling/config.json", {"pooling_mode": "mean", "wonderful": 1}, "wonderful"),
    ],
)
def test_settings_of_sentence_transformers(variant: Variant, tmp_path: Path, file: str, content: Any, key: str) -> None:
    folder = variant("bert-embedder")
    (folder / file).parent.mkdir(exist_ok=True)
    (folder / file).write_text(json.dumps(content))
    with pytest.raises(ModelError, match=key):
        pack(folder, tmp_path / "pack")


def test_capital_letters_of_a_cased_tokenizer(variant: Variant, tmp_path: Path) -> None:
    folder = variant("bert-embedder")
    (folder / "sentence_bert_config.json").write_text('{"do_lower_case": true}')
    pack(folder, tmp_path / "pack").close()
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["normalizer"]["lowercase"] = False
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(ModelError, match="do_lower_case = True, but tokenizer"):
        pack(folder, tmp_path / "pack")


def _fuse(state: dict[str, Any], ending: str, parts: tuple[str, ...]) -> None:
    for name in [name for name in state if name.endswith(parts[0])]:
        stem = name.removesuffix(parts[0])
        state[stem + ending] = torch.cat([state.pop(stem + part) for part in parts])


@pytest.mark.parametrize(
    ("kind", "fused", "renamed"),
    [
        (
            "gte",
            {
                "qkv_proj.weight": ("q_proj.weight", "k_proj.weight", "v_proj.weight"),
                "qkv_proj.bias": ("q_proj.bias", "k_proj.bias", "v_proj.bias"),
                "up_gate_proj.weight": ("up_proj.weight", "gate_proj.weight"),
            },
            {
                "layers.": "encoder.layer.", "self_attn": "attention", "post_attention_layernorm": "attn_ln",
                "post_mlp_layernorm": "mlp_ln",
            },
        ),
        (
            "nomic_bert",
            {"Wqkv.weight": ("q_proj.weight", "k_proj.weight", "v_proj.weight")},
            {
                "layers.": "encoder.layers.", "embeddings.LayerNorm": "emb_ln", "self_attn.o_proj": "attn.out_proj",
                "self_attn": "attn", "up_proj": "fc11", "gate_proj": "fc12", "down_proj": "fc2",
                "post_attention_layernorm": "norm1", "post_mlp_layernorm": "norm2",
            },
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("published", [True, False])
def test_the_names_of_published_files_and_of_the_library(
    tmp_path: Path, kind: str, fused: Any, renamed: dict[str, str], published: bool
) -> None:
    from safetensors.torch import save_file

    model = built(kind, TINY[kind], "AutoModel")
    folder = saved(model, tmp_path / "checkpoint", {}, TOKENIZERS.get(kind, "xlm-roberta-reranker"))
    state = {name: values.contiguous() for name, values in model.state_dict().items()}
    if published:
        for ending, parts in fused.items():
            _fuse(state, ending, parts)
        for own, other in renamed.items():
            state = {name.replace(own, other): values for name, values in state.items()}
    save_file(state, folder / "model.safetensors")
    found, reason = ours(folder, tmp_path, HeadSpec("mean"))
    assert found is not None, reason
    assert np.abs(found - theirs(model, HeadSpec("mean"))).max() < 1e-5
