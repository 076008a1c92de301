"""Writes a packed BERT as a Hugging Face directory: ``python -m edge.models.training.unpack --pack DIR --out DIR``.

Training continues from the shipped int8 pack with it, because no other form of the shipped weights is kept.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import load_file
from safetensors.torch import save_file
from torch import Tensor

from ..manifest import DATA, TOKENIZER
from ..packed import PackedModel
from ..spec import ModelSpec


def weights(pack: Path, spec: ModelSpec) -> dict[str, Tensor]:
    """The float32 weights under Hugging Face's names. A matrix of a pack is stored as input x output."""
    stored = load_file(pack / DATA)

    def floats(name: str) -> Tensor:
        values = stored[f"{name}.weight"].astype(np.float32)
        if f"{name}.scale" in stored:
            scale = stored[f"{name}.scale"]
            values *= scale[:, None] if len(scale) == len(values) and name == "embedding" else scale[None, :]
        return torch.from_numpy(values)

    def plain(name: str) -> Tensor:
        return torch.from_numpy(stored[name].astype(np.float32))

    below = "bert.embeddings."
    found = {
        f"{below}word_embeddings.weight": floats("embedding"),
        f"{below}position_embeddings.weight": floats("positions"),
        f"{below}token_type_embeddings.weight": plain("embed.types"),
        f"{below}LayerNorm.weight": plain("embed.norm.weight"),
        f"{below}LayerNorm.bias": plain("embed.norm.bias"),
    }
    for layer in range(spec.layers):
        here, there = f"layers.{layer}.", f"bert.encoder.layer.{layer}."
        matrices = {"out": "attention.output.dense", "up": "intermediate.dense", "down": "output.dense"}
        for name, target in matrices.items():
            found |= _linear(there + target, floats(here + name), plain(f"{here}{name}.bias"))
        parts = (floats(f"{here}qkv").chunk(3, dim=1), plain(f"{here}qkv.bias").chunk(3))
        for target, matrix, bias in zip(("query", "key", "value"), *parts, strict=True):
            found |= _linear(f"{there}attention.self.{target}", matrix, bias)
        for name, target in {"norm1": "attention.output", "norm2": "output"}.items():
            for part in ("weight", "bias"):
                found[f"{there}{target}.LayerNorm.{part}"] = plain(f"{here}{name}.{part}")
    found |= _linear("bert.pooler.dense", plain("head.dense.weight"), plain("head.dense.bias"))
    return found | _linear("classifier", plain("head.out.weight"), plain("head.out.bias"))


def _linear(name: str, matrix: Tensor, bias: Tensor) -> dict[str, Tensor]:
    return {f"{name}.weight": matrix.T.contiguous(), f"{name}.bias": bias.contiguous()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the directory."""
    parser = argparse.ArgumentParser(prog="edge.models.training.unpack", description=__doc__)
    parser.add_argument("--pack", type=Path, required=True, help="a packed reranker of BERT's architecture")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    with PackedModel.open(options.pack) as packed:
        spec = packed.spec
    if spec.architecture != "bert" or spec.head.kind != "classifier":
        parser.error(f"{options.pack} is no reranker of BERT's architecture")
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    save_file(weights(options.pack, spec), out / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": ["BertForSequenceClassification"],
        "model_type": "bert",
        "hidden_size": spec.layer.hidden,
        "num_hidden_layers": spec.layers,
        "num_attention_heads": spec.layer.heads,
        "intermediate_size": spec.layer.ffn,
        "vocab_size": spec.vocab,
        "max_position_embeddings": spec.positions,
        "type_vocab_size": spec.token_types,
        "hidden_act": spec.layer.activation,
        "layer_norm_eps": spec.layer.norm_eps,
        "num_labels": 1,
    }
    (out / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    shutil.copyfile(options.pack / TOKENIZER, out / TOKENIZER)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
