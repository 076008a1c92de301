"""Tiny models of transformers' families, saved as checkpoints, with transformers' results and ours."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edge.budget import MemoryBudget
from edge.errors import ModelError
from edge.models.pack import pack
from edge.models.spec import HeadSpec, Precision
from edge.models.tokenizer import TokenBatch
from edge.runtimes.embedder import PoolingObserver
from edge.runtimes.engine import Engine, Tuning
from edge.runtimes.passes import Job
from edge.runtimes.scoring import embeddings, logits

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
ABSENT = object()
"""Stands for a file without the key, for which the class of the configuration has a default."""


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


def present(config: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if value is not ABSENT}


def built(kind: str, config: dict[str, Any], name: str, seed: int = 0) -> Any:
    """A model with random weights, or None if transformers refuses the configuration."""
    import torch
    import transformers

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
    (folder / "config.json").write_text(json.dumps(present(config)))
    shutil.copy(GOLDEN / tokenizer / "tokenizer.json", folder)
    return folder


def ours(
    folder: Path,
    tmp_path: Path,
    head: HeadSpec | None,
    runtime: str = "numpy",
    precision: Precision = "fp32",
    sequences: Sequence[Sequence[int]] = SEQUENCES,
) -> tuple[np.ndarray | None, str]:
    """What the packed model gives for the sequences; or None and the reason why the checkpoint is refused."""
    try:
        model = pack(folder, tmp_path / "pack", precision, head=head)
    except ModelError as error:
        return None, str(error)
    lengths = np.array([len(ids) for ids in sequences], np.int32)
    tokens = np.concatenate(sequences).astype(np.int32)
    types = np.zeros(len(tokens), np.uint8) if model.spec.token_types > 1 else None
    batch = TokenBatch(np.empty(0, np.int32), tokens, lengths, types, False)
    budget = MemoryBudget(1 << 40)
    with Engine(model, budget, runtime=runtime, threads=1, scratch=tmp_path, tuning=TUNING) as engine:
        observer = PoolingObserver(model.spec, engine.head, len(batch))
        engine.run(Job(batch, lambda: observer))
        finish = logits if model.spec.head.scores else embeddings
        return np.asarray(finish(model.spec, engine.head, observer.vectors)), ""


def theirs(model: Any, head: HeadSpec | None, sequences: Sequence[Sequence[int]] = SEQUENCES) -> np.ndarray:
    """Transformers' scores of the sequences, or their pooled vectors."""
    import torch

    rows = []
    for ids in sequences:
        with torch.inference_mode():
            output = model(input_ids=torch.tensor([ids]))
        if head is None:
            rows.append(output.logits[0, 0].numpy())
        else:
            states = output.last_hidden_state[0].numpy()
            rows.append({"mean": states.mean(0), "first-token": states[0], "last-token": states[-1]}[head.kind])
    return np.stack(rows)
