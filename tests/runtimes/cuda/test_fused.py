"""Layers by our own kernels, in Triton's interpreter: equal to the reference, and fewer launches than by torch's."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from making.interpreted_triton import Launches, interpreted
from making.tiny_families import TINY, TOKENIZERS, built, ours, saved, theirs
from naive.numpy_runtime import NumpyLayerKernel

from edge.errors import CapabilityError
from edge.models.spec import HeadSpec, LayerSpec
from edge.runtimes.cuda import fused
from edge.runtimes.cuda.fused import FusedLayer
from edge.runtimes.cuda.runtime import CudaRuntime

KINDS = [
    "bert", "qwen3", "gte", "rotary-encoder", "grouped-encoder", "biased-decoder", "ungated-decoder",
]  # fmt: skip
"""All kinds of layers that this runtime runs."""


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kernels in the interpreter, with more than one tile and one block of keys of short sequences."""
    for name, size in (
        ("QUERIES", 4),
        ("_KEYS", 4),
        ("_FEW_KEYS", 2),
        ("_STEP", 16),
        ("_ROWS", 32),
        ("_COLUMNS", 32),
        ("_TOGETHER", 2),
    ):
        monkeypatch.setattr(fused, name, size)
    monkeypatch.setattr("edge.runtimes.cuda.runtime.QUERIES", 4)
    with interpreted(True):
        yield


def kernel_of(spec: LayerSpec, hidden_dtype: Any = "float32", **options: Any) -> Any:
    return CudaRuntime(on="cpu", **options).layer_kernel(spec, threads=1, hidden_dtype=hidden_dtype)


def near(found: Any, expected: Any, spec: LayerSpec, tolerance: float = 1e-5) -> bool:
    """As the contract of kernels has it: in int8 the mean counts."""
    apart = np.abs(found.astype(np.float32) - expected) / np.maximum(1, np.abs(expected))
    return bool(apart.mean() < max(5e-4, tolerance) if spec.precision == "int8" else apart.max() < tolerance)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_a_layer_equals_the_reference(layers: Any, precision: Any, kind: str) -> None:
    spec = replace(layers.LAYERS[kind], precision=precision)
    weights, lengths = layers.random_weights(spec), np.array([5, 1, 2], np.int32)
    states = np.random.default_rng(0).standard_normal((8, spec.hidden)).astype(np.float32)
    kernel = kernel_of(spec)
    assert kernel._fused is not None
    expected = NumpyLayerKernel(spec, "float32").run(states, lengths, weights)
    assert near(kernel.run(states, lengths, weights), expected, spec)
    if spec.causal and precision == "fp32":  # the same with the first tokens as a prefix of both other sequences
        prefix, joined = states[:5], np.concatenate((states[:6], states[:5], states[6:]))
        expected = NumpyLayerKernel(spec, "float32").run(joined, np.array([6, 7], np.int32), weights)
        advanced, shared = kernel.run_prefix(prefix, weights)
        found = kernel.run(states[5:], lengths[1:], weights, shared)
        assert near(advanced, expected[:5], spec)
        assert near(found, np.concatenate((expected[5:6], expected[11:])), spec)


REFUSED = {"deberta-v2", "gemma3_text", "modernbert", "mpnet"}
"""Architectures with biases of distances, local attention or norms after a part."""


@pytest.mark.parametrize("kind", sorted(TINY))
def test_every_architecture_gives_transformers_numbers_or_is_refused(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    model, sequences = built(kind, TINY[kind], "AutoModel"), [[5, 6, 7, 8, 9], [10, 11]]
    folder = saved(model, tmp_path / "checkpoint", {}, TOKENIZERS.get(kind, "xlm-roberta-reranker"))
    head = HeadSpec("last-token" if kind.startswith("qwen") else "mean")
    given = folder, tmp_path, head, "cuda:on=cpu,cap=32MB", "fp32", sequences
    if kind in REFUSED:
        with pytest.raises(CapabilityError, match="cuda runtime does not run layers with"):
            ours(*given)
        return
    found, reason = ours(*given)
    assert found is not None, reason
    assert np.abs(found - theirs(model, head, sequences)).max() < 1e-5


@pytest.mark.parametrize("kind", ["bert", "qwen3"])
def test_half_precision_is_near(layers: Any, kind: str) -> None:
    """In float16; the interpreter multiplies no bfloat16."""
    for precision in ("fp16", "int8"):
        spec = replace(layers.LAYERS[kind], precision=precision)
        weights, lengths = layers.random_weights(spec), np.array([6, 1], np.int32)
        states = np.random.default_rng(0).standard_normal((7, spec.hidden)).astype(np.float32)
        expected = NumpyLayerKernel(spec, "float32").run(states, lengths, weights)
        apart = np.abs(kernel_of(spec, compute="float16").run(states, lengths, weights) - expected)
        assert 0 < (apart / np.maximum(1, np.abs(expected))).mean() < 0.01


def test_products_of_bytes_are_exact() -> None:
    """The sums of products as integers, beyond what single precision holds; only the factors round."""
    spec = LayerSpec(
        hidden=2048, heads=1, kv_heads=1, head_size=16, ffn=32, activation="gelu", gated=False, norm="layer",
        norm_first=False, norm_eps=1e-5, rope_theta=None, causal=False, qk_norm=False, bias=False, precision="int8",
    )  # fmt: skip
    card = kernel_of(spec).card
    layer = FusedLayer(card, spec, torch.float32, torch.float32, fused.kernels(card, spec))
    random = np.random.default_rng(0)
    x = torch.from_numpy(random.integers(100, 128, (5, 2048), dtype=np.int8))
    weight = torch.from_numpy(random.integers(100, 128, (2048, 48), dtype=np.int8))
    w = {"qkv.weight": weight.t().contiguous().t(), "qkv.scale": torch.ones(48)}
    found = layer._product((x, torch.ones(5)), w, "qkv", torch.float32)
    assert (found.numpy() == (x.long() @ weight.long()).numpy().astype(np.float32)).all()


@pytest.mark.parametrize(
    ("kind", "precision", "before", "after"),
    [("bert", "fp16", 16, 8), ("bert", "int8", 68, 10), ("qwen3", "fp16", 44, 12), ("qwen3", "int8", 90, 11)],
)
def test_launches_of_a_layer_and_chunk(layers: Any, kind: str, precision: Any, before: int, after: int) -> None:
    """On a GPU two fewer for a decoder in half precision, whose products write single precision themselves."""
    spec = replace(layers.LAYERS[kind], precision=precision)
    lengths, weights = np.array([3], np.int32), layers.random_weights(spec)
    states = np.zeros((3, spec.hidden), np.float32 if spec.norm_first else np.float16)
    counts = []
    for wanted in (False, True):
        with interpreted(wanted):
            kernel = kernel_of(spec, states.dtype.name, compute="float16")
            assert (kernel._fused is not None) is wanted
            rows, bound = kernel._upload(states), kernel.bind(weights)
            kernel.advance(rows, lengths, bound)
            with Launches() as mode:
                kernel.advance(rows, lengths, bound)
            counts.append(mode.count)
    assert counts == [before, after]


def test_the_kernels_compile_for_a_gpu() -> None:
    """What the interpreter does not see, such as types that change in a loop. Triton compiles without a GPU."""
    program, environment = Path(__file__).with_name("compile_kernels.py"), {**os.environ, "TRITON_INTERPRET": "0"}
    done = subprocess.run(
        [sys.executable, str(program)], env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == ["rows", "activate", "product", "turn", "attend", "scan", "gather"]
