"""Families of transformers that are not packed: refused by name with every key varied, and under another name right or
refused. With those of `test_keys.py`, the configuration classes of more than thirty families are walked."""

from __future__ import annotations

import json
import runpy
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from making.tiny_families import EXTRA, GOLDEN, TINY, TOKENIZERS, built, ours, saved, theirs, values_of

from edge.errors import ModelError
from edge.models.architectures import FAMILIES, family_of
from edge.models.spec import HeadSpec

transformers = pytest.importorskip("transformers")

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


def test_thirty_families_are_walked_and_named() -> None:
    assert len({*TINY, *OTHERS}) > 30
    listed = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "model_keys.py"))["OTHERS"]
    assert set(OTHERS) == set(listed.split())


@pytest.mark.parametrize("kind", OTHERS)
def test_a_family_is_refused_by_name_whatever_its_keys_say(kind: str) -> None:
    config = transformers.AutoConfig.for_model(kind, **SIZES, **OTHERS[kind]).to_dict()
    varied = [(key, other) for key in {**config, **EXTRA} for other in values_of(key, config.get(key))]
    assert len({key for key, _ in varied} & set(config)) > 15
    for key, other in [("", None), *varied]:
        if key != "model_type":
            with pytest.raises(ModelError, match=f"architecture '{kind}' is not supported") as refused:
                family_of({**config, key: other})
            assert "\n" not in str(refused.value)


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
