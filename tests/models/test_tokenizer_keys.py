"""Every key of tokenizer_config.json, one at a time: the token ids are those of transformers, or the key is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge.errors import ModelError
from edge.models.family import TOKENIZER
from edge.models.pack import pack
from edge.models.tokenizer import PairTokenizer

transformers = pytest.importorskip("transformers")
BOOLEANS = """do_lower_case strip_accents tokenize_chinese_chars add_prefix_space add_bos_token add_eos_token legacy
split_special_tokens trim_offsets clean_up_tokenization_spaces spaces_between_special_tokens use_fast from_slow
do_basic_tokenize remove_space keep_accents is_local local_files_only"""
TOKENS = "bos_token eos_token cls_token sep_token unk_token pad_token mask_token"
OTHERS: dict[str, list[Any]] = {
    "padding_side": ["left", "right"], "truncation_side": ["left", "right"],
    "additional_special_tokens": [["energy"], []], "extra_special_tokens": [["energy"], {"own": "energy"}, {}],
    "added_tokens_decoder": [{"9": {"content": "energy", "special": True}}, {}],
    "model_input_names": [["input_ids", "attention_mask"], ["input_ids"]], "model_max_length": [8, 1e30],
    "max_length": [3], "stride": [2], "padding": [True, "max_length"], "truncation": [True],
    "truncation_strategy": ["only_first"], "pad_to_multiple_of": [8], "pad_token_type_id": [1],
    "never_split": [["energy"]], "wordpieces_prefix": ["@@", "##"], "errors": ["ignore"],
    "sp_model_kwargs": [{}, {"alpha": 0.1}], "backend": ["tokenizers"],
    "auto_map": [{"AutoTokenizer": "own.Tokenizer"}], "chat_template": ["{{ messages }}"],
    "special_tokens_map_file": ["special_tokens_map.json"], "tokenizer_file": ["other.json"],
    "vocab_file": ["vocab.txt"], "merges_file": ["merges.txt"], "name_or_path": ["x/y"], "_name_or_path": ["x/y"],
    "processor_class": ["Processor"], "wonderful": [3],
}  # fmt: skip
VALUES: dict[str, list[Any]] = {
    **{key: [True, False] for key in BOOLEANS.split()},
    **{key: ["energy", {"content": "energy", "lstrip": True, "__type": "AddedToken"}, None] for key in TOKENS.split()},
    **OTHERS,
}
SAMPLES = ["Énergie [MASK] of Cells energy", "two  spaces <mask> 東京 , it 's </s>", "yes <|im_end|> [SEP]"]


def test_every_key_of_the_table_is_varied() -> None:
    assert {*TOKENIZER.used, *TOKENIZER.harmless, *TOKENIZER.accepted} - {*VALUES} == {"tokenizer_class"}


@pytest.mark.parametrize(
    ("name", "kind", "capitals"),
    [
        ("bert-embedder", "BertTokenizer", False),
        ("bert-embedder", "BertTokenizerFast", True),
        ("bert-embedder", None, True),
        ("bert-embedder", "PreTrainedTokenizerFast", False),
        ("bert-embedder", "PreTrainedTokenizerFast", True),
        ("xlm-roberta-reranker", "PreTrainedTokenizerFast", True),
        ("qwen3-embedder", "PreTrainedTokenizerFast", True),
    ],
)
def test_one_key_at_a_time(
    variant: Callable[..., Path], tmp_path: Path, name: str, kind: str | None, capitals: bool
) -> None:
    folder = variant(name)
    tokenizer_json = json.loads((folder / "tokenizer.json").read_text())
    if "lowercase" in tokenizer_json["normalizer"]:
        tokenizer_json["normalizer"]["lowercase"] = not capitals
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json))
    refused, equal = set(), set()
    for key, value in [("", None), *((key, value) for key, values in VALUES.items() for value in values)]:
        written = {**({"tokenizer_class": kind} if kind else {}), **({key: value} if key else {})}
        (folder / "tokenizer_config.json").write_text(json.dumps(written))
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
            expected = [tokenizer(text, truncation=key == "model_max_length", padding=False) for text in SAMPLES]
        except Exception:
            continue
        found, reason = _ids(folder, tmp_path)
        if reason:
            assert key in reason or "do_lower_case" in reason, (key, value, reason)
            refused.add(key)
        else:
            assert found == [encoded.input_ids for encoded in expected], (key, value)
            equal.add(key)
    assert "wonderful" in refused
    if capitals and name == "bert-embedder" and kind != "PreTrainedTokenizerFast":
        assert equal == {"do_lower_case"}  # the class lowers unless it is told not to
    else:
        assert len(equal) > 20


def _ids(folder: Path, tmp_path: Path) -> tuple[list[list[int]], str]:
    """The ids of the packed tokenizer, or the reason why it is refused."""
    try:
        with pack(folder, tmp_path / "pack", "fp32") as model:
            batch = PairTokenizer(model.tokenizer_path, model.spec).encode_texts(SAMPLES)
    except ModelError as error:
        return [], str(error)
    return [ids.tolist() for ids in np.split(batch.tokens, batch.starts[1:-1])], ""
