"""Checkpoints as transformers itself saves them today pack to the same tensors."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from making.token_rows import token_rows

from edge.blocks import BlockId
from edge.models.pack import pack
from edge.models.spec import HeadSpec

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

ENCODER = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 40}
ENCODER |= {"vocab_size": 300, "max_position_embeddings": 40}
DECODER = {
    "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "intermediate_size": 40, "vocab_size": 450,
}  # fmt: skip


def state(model: Any) -> dict[str, np.ndarray]:
    return {name: value.detach().numpy() for name, value in model.state_dict().items()}


def save(model: Any, golden: Path, tokenizer: str, folder: Path) -> Path:
    model.save_pretrained(folder)
    shutil.copy(golden / tokenizer / "tokenizer.json", folder)
    return folder


@pytest.mark.parametrize("name", ["BertForSequenceClassification", "XLMRobertaForSequenceClassification", "BertModel"])
def test_encoders(golden: Path, tmp_path: Path, name: str) -> None:
    torch.manual_seed(0)
    config_class = transformers.XLMRobertaConfig if "XLM" in name else transformers.BertConfig
    model = getattr(transformers, name)(config_class(**ENCODER, num_labels=1))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    folder = save(model, golden, "xlm-roberta-reranker" if "XLM" in name else "bert-reranker", tmp_path / "checkpoint")
    tensors = state(model)
    base = {"X": "roberta.", "B": "bert."}[name[0]] if "Sequence" in name else ""
    with pack(folder, tmp_path / "pack", "fp32", head=None if base else HeadSpec("mean")) as packed:
        for layer, block in enumerate(packed.layer_blocks):
            found = packed.load(block)
            at = f"{base}encoder.layer.{layer}."
            qkv = [tensors[f"{at}attention.self.{part}.weight"] for part in ("query", "key", "value")]
            np.testing.assert_array_equal(found["qkv.weight"], np.concatenate(qkv).T)
            for ours, theirs in (
                ("out.weight", "attention.output.dense.weight"),
                ("up.weight", "intermediate.dense.weight"),
                ("down.weight", "output.dense.weight"),
                ("down.bias", "output.dense.bias"),
                ("norm1.weight", "attention.output.LayerNorm.weight"),
                ("norm2.bias", "output.LayerNorm.bias"),
            ):
                np.testing.assert_array_equal(found[ours], tensors[at + theirs].T)
        table = tensors[f"{base}embeddings.word_embeddings.weight"]
        np.testing.assert_array_equal(token_rows(packed, np.arange(300)), table)
        offset = packed.spec.position_offset
        positions = tensors[f"{base}embeddings.position_embeddings.weight"]
        np.testing.assert_array_equal(packed.position_rows(30), positions[offset : offset + 30])
        head = packed.load(BlockId("head"))
        if base == "bert.":
            np.testing.assert_array_equal(head["dense.weight"], tensors["bert.pooler.dense.weight"].T)
            np.testing.assert_array_equal(head["out.weight"], tensors["classifier.weight"].T)
        elif base:
            np.testing.assert_array_equal(head["dense.bias"], tensors["classifier.dense.bias"])
            np.testing.assert_array_equal(head["out.weight"], tensors["classifier.out_proj.weight"].T)
        else:
            assert head == {}


@pytest.mark.parametrize("tied", [True, False])
def test_decoder(golden: Path, tmp_path: Path, tied: bool) -> None:
    torch.manual_seed(0)
    config = transformers.Qwen3Config(**DECODER, tie_word_embeddings=tied, rope_theta=5e5)
    model = transformers.Qwen3ForCausalLM(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    folder = save(model, golden, "qwen3-reranker", tmp_path / "checkpoint")
    tensors = state(model)
    with pack(folder, tmp_path / "pack", "fp32") as packed:
        assert packed.spec.layer.rope_theta == 5e5
        for layer, block in enumerate(packed.layer_blocks):
            found = packed.load(block)
            at = f"model.layers.{layer}."
            qkv = [tensors[f"{at}self_attn.{part}_proj.weight"] for part in "qkv"]
            np.testing.assert_array_equal(found["qkv.weight"], np.concatenate(qkv).T)
            up = [tensors[f"{at}mlp.{part}_proj.weight"] for part in ("gate", "up")]
            np.testing.assert_array_equal(found["up.weight"], np.concatenate(up).T)
            np.testing.assert_array_equal(found["q_norm.weight"], tensors[f"{at}self_attn.q_norm.weight"])
            np.testing.assert_array_equal(found["norm2.weight"], tensors[f"{at}post_attention_layernorm.weight"])
        head = packed.load(BlockId("head"))
        rows = [packed_id(golden, token) for token in ("no", "yes")]
        np.testing.assert_array_equal(head["rows"], tensors["lm_head.weight"][rows])
        np.testing.assert_array_equal(head["norm.weight"], tensors["model.norm.weight"])


def packed_id(golden: Path, token: str) -> int:
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(golden / "qwen3-reranker" / "tokenizer.json")).token_to_id(token)
