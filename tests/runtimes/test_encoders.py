"""Newer encoders from the checkpoint to scores: transformers' numbers, in every arrangement of memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from making import synth as making

from edge.config import Config
from edge.errors import CapabilityError
from edge.models.pack import pack
from edge.models.packed import PackedModel
from edge.runtimes.base import runtime_for
from edge.runtimes.reranker import Reranker

QUERY = "word7 word3 word11"
TEXTS = [" ".join(f"word{(i * j) % 29}" for j in range(1, 4 + 9 * i)) for i in range(8)]
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


def checkpoint(tmp_path: Path, name: str, **changes: Any) -> Path:
    folder = making.synth_checkpoint(name, tmp_path / "checkpoint")
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def encoded(folder: Path, texts: list[Any]) -> Any:
    """A padded batch, as users of transformers make it."""
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    tokenizer.pad_token = tokenizer.convert_ids_to_tokens(0)
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    return {name: batch[name] for name in ("input_ids", "attention_mask")}


@pytest.mark.parametrize("runtime", ["numpy", "onnx"])
@pytest.mark.parametrize("pooling", ["cls", "mean"])
@torch.inference_mode()
def test_scores_equal_those_of_padded_batches(tmp_path: Path, runtime: str, pooling: str) -> None:
    folder = checkpoint(tmp_path, "tiny-modernbert", classifier_pooling=pooling)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    expected = model(**encoded(folder, [(QUERY, text) for text in TEXTS])).logits[:, 0].sigmoid().numpy()
    pack(folder, tmp_path / "pack", "fp32").close()
    with Reranker(tmp_path / "pack", config=Config(memory=10**11, runtime=runtime)) as reranker:
        results = sorted(reranker.rank(QUERY, TEXTS), key=lambda result: result.index)
    assert np.abs([result.score for result in results] - expected).max() < 1e-5
    assert np.std(expected) > 1e-3


def test_layers_are_local_by_their_own_tensor(tmp_path: Path) -> None:
    with making.synth("tiny-modernbert", tmp_path / "pack", "int8") as model:
        kinds = [model.spec.layer.kind(model.load(block)) for block in model.layer_blocks]
        assert kinds == [(False, False), (True, True), (True, True), (False, True)]
    with PackedModel.open(tmp_path / "pack") as model:
        assert model.spec.local_layers == (1, 2)


def test_other_runtimes_refuse_it_by_name(tmp_path: Path, layers: Any) -> None:
    assert runtime_for("auto", layers.MODERN).name == "onnx"
    with pytest.raises(CapabilityError, match="native runtime"):
        runtime_for("native", layers.MODERN).layer_kernel(layers.MODERN, threads=1)
    with pytest.raises(CapabilityError, match="cuda runtime does not run layers with local attention"):
        runtime_for("cuda", layers.MODERN).layer_kernel(layers.MODERN, threads=1)
    mpnet = replace(layers.LAYERS["mpnet"], precision="int8")
    assert runtime_for("auto", mpnet).name == "onnx"
    for name in ("mpnet", "deberta"):
        assert runtime_for("native", layers.LAYERS[name]).refusal(replace(layers.LAYERS[name], precision="int8"))
    with pytest.raises(CapabilityError, match="cuda runtime does not run layers with biases of distances"):
        runtime_for("cuda", mpnet).layer_kernel(mpnet, threads=1)


def test_a_long_text_runs_in_blocks(layers: Any, contract: Callable[..., Any]) -> None:
    """Local blocks of queries, whose windows reach into other blocks."""
    from edge.runtimes.onnx import OnnxRuntime

    checks = contract(OnnxRuntime())
    weights, hidden = layers.random_weights(layers.MODERN), layers.random_hidden(1, 700)
    lengths = layers.lengths_of(700)
    kernel = checks.kernel(layers.MODERN)
    expected = layers.run(checks.reference(kernel), hidden, lengths, weights)
    assert layers.same(layers.run(kernel, hidden, lengths, weights), expected, lengths, layers.MODERN)
