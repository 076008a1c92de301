"""Dense modules after the pooling: their product is packed, or the folder is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from making import synth as making
from safetensors.numpy import save_file

from edge.config import Config
from edge.errors import ModelError
from edge.models.checkpoint import wanted
from edge.models.pack import pack
from edge.models.spec import HeadSpec
from edge.runtimes.embedder import Embedder

CONFIG = Config(memory=10**11)
TEXTS = ["word1 word2 word3", "word7", "word5 word5 word9 word11"]
RANDOM = np.random.default_rng(3)
FIRST = RANDOM.standard_normal((96, 64)).astype(np.float32) / 8
LAST = RANDOM.standard_normal((48, 96)).astype(np.float32) / 8
BIAS = RANDOM.standard_normal(48).astype(np.float32)


def checkpoint(tmp_path: Path, activations: tuple[str, str], **changes: Any) -> Path:
    folder = making.synth_checkpoint("tiny-bert-embedder", tmp_path / "checkpoint")
    modules = json.loads((folder / "modules.json").read_text())
    kind = "sentence_transformers.models.Dense"
    modules[2:2] = [{"idx": n, "name": str(n), "path": f"{n}_Dense", "type": kind} for n in (2, 3)]
    (folder / "modules.json").write_text(json.dumps(modules))
    tensors = ({"linear.weight": FIRST}, {"linear.weight": LAST, "linear.bias": BIAS})
    for number, activation, weights in zip((2, 3), activations, tensors, strict=True):
        rows, columns = weights["linear.weight"].shape
        (folder / f"{number}_Dense").mkdir()
        save_file(weights, folder / f"{number}_Dense" / "model.safetensors")
        config = {
            "in_features": columns, "out_features": rows, "bias": number == 3,
            "activation_function": f"torch.nn.modules.{activation}",
        }  # fmt: skip
        (folder / f"{number}_Dense" / "config.json").write_text(json.dumps(config | changes))
    return folder


@pytest.mark.parametrize("last", ["linear.Identity", "activation.Tanh"])
def test_vectors_are_projected(tmp_path: Path, last: str) -> None:
    folder = checkpoint(tmp_path, ("linear.Identity", last))
    pack(folder, tmp_path / "plain", "fp32", head=HeadSpec("mean")).close()
    with Embedder(tmp_path / "plain", config=CONFIG) as embedder:
        projected = embedder.embed(TEXTS) @ FIRST.T @ LAST.T + BIAS
    projected = np.tanh(projected) if last == "activation.Tanh" else projected
    pack(folder, tmp_path / "pack", "fp32").close()
    with Embedder(tmp_path / "pack", config=CONFIG) as embedder:
        assert embedder.dim == 48
        found = embedder.embed(TEXTS)
        assert np.abs(found - projected / np.linalg.norm(projected, axis=1, keepdims=True)).max() < 1e-6
        assert np.array_equal(np.concatenate([embedder.embed([text]) for text in TEXTS]), found)


@pytest.mark.parametrize(
    ("activations", "changes", "reason"),
    [
        (("activation.Tanh", "linear.Identity"), {}, "3_Dense.*Identity' is not supported here"),
        (("linear.Identity", "activation.GELU"), {}, "GELU' is not supported"),
        (("linear.Identity", "linear.Identity"), {"in_features": 64}, "after a width of 96"),
        (("linear.Identity", "linear.Identity"), {"out_features": "many"}, "out_features"),
        (("linear.Identity", "linear.Identity"), {"wonderful": 1}, "wonderful"),
        (("linear.Identity", "linear.Identity"), {"in_features": 32, "out_features": 32}, "no tensor linear.weight"),
    ],
)
def test_other_modules_are_refused(tmp_path: Path, activations: Any, changes: Any, reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        pack(checkpoint(tmp_path, activations, **changes), tmp_path / "pack")


def test_their_files_are_downloaded() -> None:
    names = [
        "config.json", "2_Dense/config.json", "2_Dense/model.safetensors", "2_Dense/pytorch_model.bin", "x_Dense/y",
        "2_Dense_512/model.safetensors", "0_Transformer/model-00001-of-00001.safetensors", "0_Transformer/config.json",
        "3_Normalize/config.json",
    ]  # fmt: skip
    assert wanted(names) == [
        "config.json", "0_Transformer/config.json", "2_Dense/config.json", "3_Normalize/config.json",
        "0_Transformer/model-00001-of-00001.safetensors", "2_Dense/model.safetensors",
    ]  # fmt: skip
