"""Every key of a configuration is used, changes nothing, or is refused: tiny models with one key varied at a time.

The expected values are those of transformers for the same random weights and the same configuration.
"""

from __future__ import annotations

import json
import runpy
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from making.tiny_families import (
    ABSENT,
    ENCODER,
    EXTRA,
    GOLDEN,
    TINY,
    TOKENIZERS,
    built,
    ours,
    present,
    saved,
    theirs,
    values_of,
)

from edge.errors import ModelError
from edge.models.architectures import FAMILIES, family_of
from edge.models.pack import pack
from edge.models.spec import HeadSpec
from edge.models.tokenizer import PairTokenizer

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
transformers.utils.logging.disable_progress_bar()
Variant = Callable[..., Path]

ALIASES = {"rope_scaling": "rope_parameters", "is_causal": "is_decoder"}
KIN = ("camembert", "data2vec-text", "xlm-roberta")
KIN_KEYS = ("pad_token_id", "hidden_act", "is_decoder", "wonderful", "layer_norm_eps")
NOT_VARIED = {"model_type", "transformers_version", "vocab_size", "id2label", "label2id", "return_dict"}
LARGE = {"hidden_size", "intermediate_size", "num_hidden_layers", "dim", "hidden_dim", "n_layers"}
"""Keys whose defaults make models too large for a test; the files must have them."""


def variations(kind: str, form: str) -> Iterator[tuple[str, Any]]:
    """Keys with other values, or without one: all keys for the body, and for a classification head those that may
    concern it. The kin of RoBERTa have the same code and the same keys, so few are varied."""
    defaults = transformers.AutoConfig.for_model(kind, **TINY[kind]).to_dict()
    read = {*FAMILIES[kind].keys.used, *FAMILIES[kind].keys.accepted, "pad_token_id"}
    if kind in KIN:
        assert set(defaults) == set(transformers.RobertaConfig().to_dict())
    for key, value in {**dict.fromkeys(EXTRA), **defaults}.items():
        concerned = form == "embedder" or key.startswith(
            ("classifier", "summary", "hidden_a", "pad", "pooler", "wonderful")
        )
        if key not in NOT_VARIED and concerned and (kind not in KIN or key in KIN_KEYS):
            yield from ((key, other) for other in values_of(key, value))
            if key in read and key in defaults and key not in LARGE:
                yield key, ABSENT


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
        model = built(kind, present({**TINY[kind], **labels, **changes}), name)
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
    assert len({*TINY, *OTHERS}) > 30, "are walked below"
    listed = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "model_keys.py"))["OTHERS"]
    assert set(OTHERS) == set(listed.split())


@pytest.mark.parametrize("pooling", ["mean", "first-token", "last-token"])
@pytest.mark.parametrize("causal", [True, False])
def test_poolings_of_a_decoder(tmp_path: Path, pooling: Any, causal: bool) -> None:
    model = built("qwen3", {**TINY["qwen3"], "is_causal": causal}, "AutoModel")
    folder = saved(model, tmp_path / "checkpoint", {"is_causal": causal}, "qwen3-embedder")
    head = HeadSpec(pooling)
    found, reason = ours(folder, tmp_path, head)
    assert found is not None, reason
    assert np.abs(found - theirs(model, head)).max() < 1e-5


@pytest.mark.parametrize("key", sorted(LARGE))
def test_sizes_are_needed(key: str) -> None:
    for kind, config in TINY.items():
        if key in config:
            with pytest.raises(ModelError, match=key if kind != "distilbert" else "config.json"):
                family_of({"model_type": kind, **config, key: None}).spec_from_config(
                    {"model_type": kind, **config, key: None}, HeadSpec("mean"), "fp32"
                )


def test_a_decoder_with_a_head_of_its_own_is_refused(tmp_path: Path) -> None:
    model = built("qwen3", {**TINY["qwen3"], "num_labels": 1, "pad_token_id": 0}, "AutoModelForSequenceClassification")
    folder = saved(model, tmp_path / "checkpoint", {}, "qwen3-reranker")
    with pytest.raises(ModelError, match=r"score\.weight"):
        pack(folder, tmp_path / "pack")
    model = built("bert", {**ENCODER, "num_labels": 1}, "AutoModelForTokenClassification")
    folder = saved(model, tmp_path / "tokens", {}, "bert-embedder")
    with pytest.raises(ModelError, match="BertForTokenClassification"):  # labels of tokens are no scores
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


SIZES = {
    "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 40, "vocab_size": 450,
    "max_position_embeddings": 80, "initializer_range": 0.2, "pad_token_id": 0,
}  # fmt: skip
OTHERS: dict[str, dict[str, Any]] = {
    "albert": {"embedding_size": 32}, "bert-generation": {}, "big_bird": {"attention_type": "original_full"},
    "convbert": {"embedding_size": 32}, "deberta": {}, "ernie": {}, "esm": {}, "eurobert": {"num_key_value_heads": 2},
    "gemma2": {"num_key_value_heads": 2, "head_dim": 8}, "ibert": {}, "jina_embeddings_v3": {}, "layoutlm": {},
    "llama": {"num_key_value_heads": 2}, "megatron-bert": {}, "mistral": {"num_key_value_heads": 2},
    "modernbert-decoder": {}, "nystromformer": {}, "rembert": {"input_embedding_size": 32}, "roberta-prelayernorm": {},
    "roc_bert": {}, "roformer": {"embedding_size": 32}, "splinter": {}, "xlm-roberta-xl": {}, "xmod": {},
}  # fmt: skip


@pytest.mark.parametrize("kind", OTHERS)
def test_under_another_name_it_is_right_or_refused(tmp_path: Path, kind: str) -> None:
    """As if a file said `bert`, also without the keys that the named family does not know: right is what transformers
    makes of that file."""
    model = built(kind, {**SIZES, **OTHERS[kind]}, "AutoModel")
    assert model is not None
    folder = saved(model, tmp_path / "checkpoint", {}, "bert-embedder")
    head = HeadSpec("mean")
    assert ours(folder, tmp_path, head)[1].startswith(f"architecture '{kind}' is not supported")
    config = json.loads((folder / "config.json").read_text())
    for name, family in FAMILIES.items():
        keys = family.all_keys
        known = keys.used | keys.harmless | set(keys.accepted)
        for content in (config, {key: value for key, value in config.items() if key in known}):
            shutil.copy(GOLDEN / TOKENIZERS.get(name, "bert-embedder") / "tokenizer.json", folder)
            (folder / "config.json").write_text(json.dumps({**content, "model_type": name}))
            found, _ = ours(folder, tmp_path, head)
            if found is not None:
                loaded = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
                assert np.abs(found - theirs(loaded, head)).max() < 1e-5, name
