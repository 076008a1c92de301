"""`packing-loss`: architectures in published shapes with random weights, in fp32 and int8, beside transformers."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from making.tiny_families import TOKENIZERS, ours, saved, theirs

from bench.figures import Figure, lower, tabulate
from bench.options import Names, Output, Threads, benchmark, stated
from bench.process import measure, processor
from edge.errors import CapabilityError, EdgeError
from edge.models.spec import HeadSpec

_BASE = {
    "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072,
    "vocab_size": 450, "max_position_embeddings": 514,
}  # fmt: skip
_SHAPES: dict[str, dict[str, Any]] = {
    "bert": {},
    "deberta-v2": {
        "relative_attention": True, "position_buckets": 256, "norm_rel_ebd": "layer_norm", "share_att_key": True,
        "pos_att_type": "p2c|c2p", "position_biased_input": False, "type_vocab_size": 0,
    },
    "distilbert": {
        "dim": 768, "n_layers": 6, "n_heads": 12, "hidden_dim": 3072, "vocab_size": 450, "max_position_embeddings": 514,
    },
    "electra": {"embedding_size": 768},
    "gemma3_text": {
        "num_hidden_layers": 24, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 256,
        "intermediate_size": 1152, "query_pre_attn_scalar": 256, "sliding_window": 512,
        "use_bidirectional_attention": True,
    },
    "gte": {},
    "modernbert": {"num_hidden_layers": 22, "intermediate_size": 1152},
    "mpnet": {},
    "nomic_bert": {},
    "qwen2": {
        "hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,
        "intermediate_size": 4864,
    },
    "qwen3": {
        "hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8,
        "head_dim": 128,
    },
    "xlm-roberta": {},
}  # fmt: skip
"""Those of the base models, EmbeddingGemma, Qwen2-0.5B and Qwen3-Embedding-0.6B, but with few tokens."""
_HEAD = HeadSpec("mean", normalize=True)


@benchmark
def packing_loss(
    *,
    families: Annotated[Sequence[str], Names(_SHAPES), "Model types."] = tuple(_SHAPES),
    sequences: Annotated[int, "Texts of 16 to 240 random tokens."] = 12,
    layers: Annotated[int, "So many layers; 0 for all of the shape."] = 0,
    threads: Threads = 2,
    output: Output,
) -> None:
    """How far embeddings (mean of all tokens, unit length) are from those of transformers in fp32."""
    found: dict[str, dict[str, list[float]]] = {}
    for kind in families:
        task = {"name": kind, "sequences": sequences, "layers": layers}
        found[kind] = measure(work, task, threads=threads)["found"]
    result = {"processor": processor(), "sequences": sequences, "families": found}
    output.put(result, figures(found), stated(result))


def figures(found: dict[str, dict[str, list[float]]]) -> Iterator[Figure]:
    """The figures of a stored run."""
    columns = {
        "fp32": lower("fp32: largest difference", ""),
        "int8": lower("int8: 1 - cosine", ""),
        "worst": lower("int8: 1 - cosine, worst", ""),
    }
    yield from tabulate(found, columns, "", ())


def work(task: dict[str, Any]) -> dict[str, Any]:
    """The distances for one family."""
    try:
        import torch
        import transformers
    except ImportError as error:
        raise CapabilityError(f'transformers needs {error.name}: pip install "edge-rag[bench]"') from error
    transformers.utils.logging.disable_progress_bar()
    kind = task["name"]
    sizes = _SHAPES[kind] if kind == "distilbert" else {**_BASE, **_SHAPES[kind]}
    if task["layers"]:
        sizes = {**sizes, ("n_layers" if "n_layers" in sizes else "num_hidden_layers"): task["layers"]}
    config = transformers.AutoConfig.for_model(kind, **sizes, pad_token_id=0)
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, values in model.named_parameters():
            if values.ndim == 1:
                values += 0.1 * torch.randn(values.shape)
            else:
                values.normal_(std=0.05 if "embed" in name else values.shape[1] ** -0.5)
    random = np.random.default_rng(0)
    texts = [random.integers(6, 230, size).tolist() for size in np.linspace(16, 240, task["sequences"], dtype=int)]
    expected = theirs(model, _HEAD, texts)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = saved(model, Path(folder, "checkpoint"), {}, TOKENIZERS.get(kind, "xlm-roberta-reranker"))
        del model
        exact, reason = ours(checkpoint, Path(folder), _HEAD, "auto", "fp32", texts)
        rounded, _ = ours(checkpoint, Path(folder), _HEAD, "auto", "int8", texts)
    if exact is None or rounded is None:
        raise EdgeError(reason)
    apart = 1 - (rounded * expected).sum(1)
    fp32 = np.abs(exact - expected).max()
    return {"found": {"fp32": [float(fp32)], "int8": [float(apart.mean())], "worst": [float(apart.max())]}}
