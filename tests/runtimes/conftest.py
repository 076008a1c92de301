"""Tiny layers with random weights, and the checks that every runtime must pass."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from making.synth import synth
from naive.numpy_runtime import NumpyLayerKernel
from numpy.typing import NDArray

from edge.config import Config
from edge.errors import CapabilityError
from edge.models.pack import pack as pack_model
from edge.models.spec import LayerSpec, Precision
from edge.runtimes.base import LayerKernel, Runtime
from edge.runtimes.reranker import Reranker

BERT = LayerSpec(
    hidden=48, heads=4, kv_heads=4, head_size=12, ffn=80, activation="gelu", gated=False, norm="layer",
    norm_first=False, norm_eps=1e-12, rope_theta=None, causal=False, qk_norm=False, bias=True, precision="fp32",
)  # fmt: skip
QWEN3 = LayerSpec(
    hidden=48, heads=4, kv_heads=2, head_size=16, ffn=72, activation="silu", gated=True, norm="rms",
    norm_first=True, norm_eps=1e-6, rope_theta=1e6, causal=True, qk_norm=True, bias=False, precision="fp32",
)  # fmt: skip
MODERN = replace(
    BERT, gated=True, norm_first=True, bias=False, norm_eps=1e-5, rope_theta=1.6e5, local_theta=1e4, window=4
)
LAYERS = {
    "bert": BERT,
    "qwen3": QWEN3,
    "modernbert": MODERN,
    "gemma3": replace(
        QWEN3, causal=False, window=4, local_theta=1e4, post_norms=True, activation="gelu_tanh", kv_heads=1
    ),
    "deberta": replace(BERT, spans=8, farthest=32),
    "jina": replace(BERT, heads=3, kv_heads=3, head_size=16, alibi=True, gated=True),
    "mpnet": replace(BERT, buckets=8),
    "gte": replace(BERT, rope_theta=1.6e5, gated=True),
    # No model of ours is one of these; they hold the runtimes to the description rather than to three models.
    "rotary-encoder": replace(BERT, rope_theta=1e4, norm_first=True, activation="relu"),
    "grouped-encoder": replace(QWEN3, causal=False, norm_first=False, rope_theta=None, activation="gelu_tanh"),
    "biased-decoder": replace(QWEN3, norm="layer", norm_eps=1e-5, qk_norm=False, bias=True, activation="gelu"),
    "ungated-decoder": replace(QWEN3, gated=False, bias=False, kv_heads=4),
}


def random_weights(spec: LayerSpec, seed: int = 0) -> dict[str, NDArray[Any]]:
    """Weights of trained magnitude: matrices of deviation 1 / sqrt(inputs), norms around 1."""
    random = np.random.default_rng(seed)
    weights: dict[str, NDArray[Any]] = {}
    for tensor in spec.tensors():
        if tensor.name == "kind":
            value = np.ones(2)  # a local layer that norms its input
        elif tensor.name in (
            "norm1.weight",
            "norm2.weight",
            "norm3.weight",
            "norm4.weight",
            "q_norm.weight",
            "k_norm.weight",
        ):
            value = 1 + 0.1 * random.standard_normal(tensor.shape)
        elif tensor.name.endswith(".scale"):
            rows = spec.matrices()[tensor.name.removesuffix(".scale")][0]
            value = (1 + 0.2 * random.random(tensor.shape)) / (40 * rows**0.5)
        elif tensor.dtype == "int8":
            value = np.clip(np.rint(40 * random.standard_normal(tensor.shape)), -127, 127)
        elif len(tensor.shape) == 2:
            value = random.standard_normal(tensor.shape) / tensor.shape[0] ** 0.5
        else:
            value = 0.1 * random.standard_normal(tensor.shape)
        weights[tensor.name] = value.astype(tensor.dtype)
    return weights


def random_hidden(batch: int, length: int, width: int = 48, seed: int = 1) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((batch, length, width)).astype(np.float32)


def lengths_of(*values: int) -> NDArray[np.int32]:
    return np.array(values, np.int32)


def run(
    kernel: LayerKernel,
    hidden: NDArray[Any],
    lengths: NDArray[np.int32],
    weights: dict[str, NDArray[Any]],
    prefix: object | None = None,
) -> NDArray[Any]:
    """Runs the real tokens of padded sequences [batch, length, hidden], packed; the result is padded with zeros."""
    real = np.arange(hidden.shape[1]) < lengths[:, None]
    result = np.zeros_like(hidden)
    result[real] = kernel.run(np.ascontiguousarray(hidden[real]), lengths, weights, prefix)
    return result


def run_prefix(
    kernel: LayerKernel, hidden: NDArray[Any], weights: dict[str, NDArray[Any]]
) -> tuple[NDArray[Any], object]:
    """Runs a prefix [1, tokens, hidden]."""
    advanced, states = kernel.run_prefix(hidden[0], weights)
    return advanced[None], states


def differences(a: NDArray[Any], b: NDArray[Any], lengths: NDArray[np.int32]) -> NDArray[np.float32]:
    """Differences of two results at real tokens, relative to values beyond 1."""
    assert a.shape == b.shape
    assert a.dtype == b.dtype
    real = np.arange(a.shape[1]) < lengths[:, None]
    x, y = a[real].astype(np.float32), b[real].astype(np.float32)
    return np.asarray(np.abs(x - y) / np.maximum(1, np.abs(y)), np.float32)


def same(
    a: NDArray[Any], b: NDArray[Any], lengths: NDArray[np.int32], spec: LayerSpec, tolerance: float = 1e-5
) -> bool:
    """Equal but for rounding. In int8 an error of the last bit now and then moves a value that lies half-way between
    two integers, which changes a row by some hundredths in layers as narrow as these: there the mean counts."""
    apart = differences(a, b, lengths)
    return bool(apart.mean() < max(5e-4, tolerance) if spec.precision == "int8" else apart.max() < tolerance)


class Contract:
    """The promises of `LayerKernel`, checked for one runtime."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime

    def kernel(self, spec: LayerSpec, hidden_dtype: Any = "float32") -> LayerKernel:
        return self.runtime.layer_kernel(spec, threads=1, hidden_dtype=hidden_dtype)

    def reference(self, kernel: Any, hidden_dtype: Any = "float32") -> LayerKernel:
        """The oracle of a kernel."""
        return NumpyLayerKernel(kernel.spec, hidden_dtype)

    def equals_reference(self, spec: LayerSpec, hidden_dtype: Any) -> None:
        weights = random_weights(spec)
        kernel = self.kernel(spec, hidden_dtype)
        reference = self.reference(kernel, hidden_dtype)
        # One step of float16 between 1 and 2.
        tolerance = 1e-3 if hidden_dtype == "float16" else 1e-5
        for lengths in (lengths_of(1), lengths_of(7), lengths_of(37, 5, 20), lengths_of(3, 3, 3, 1)):
            hidden = random_hidden(len(lengths), int(lengths.max())).astype(hidden_dtype)
            expected = run(reference, hidden, lengths, weights)
            result = run(kernel, hidden, lengths, weights)
            assert result.dtype == hidden_dtype
            assert same(result, expected, lengths, spec, tolerance)

    def survives_odd_values(self, spec: LayerSpec) -> None:
        """A row of zeros, an outlier, and any values in the padding."""
        weights = random_weights(spec)
        lengths = lengths_of(9, 4)
        hidden = random_hidden(2, 9)
        hidden[0, 3] = 0
        hidden[0, 5, 7] = 3000
        clean = hidden.copy()
        hidden[1, 4:] = np.nan
        clean[1, 4:] = 0
        kernel = self.kernel(spec)
        result = run(kernel, hidden, lengths, weights)
        expected = run(self.reference(kernel), clean, lengths, weights)
        assert same(result, expected, lengths, spec, 5e-5)
        zeros = np.zeros((1, 3, 48), np.float32)
        assert np.isfinite(run(self.kernel(spec), zeros, lengths_of(3), weights)).all()

    def ignores_neighbours(self, spec: LayerSpec) -> None:
        """A sequence's result depends neither on the other sequences of its chunk nor on the chunk's width."""
        weights, kernel = random_weights(spec), self.kernel(spec)
        sequences = random_hidden(8, 24)

        @settings(max_examples=20)
        @given(st.lists(st.tuples(st.integers(0, 7), st.integers(1, 24)), min_size=1, max_size=8), st.integers(0, 9))
        def check(chunk: list[tuple[int, int]], padding: int) -> None:
            lengths = lengths_of(*(n for _, n in chunk))
            hidden = np.full((len(chunk), lengths.max() + padding, 48), 9.0, np.float32)
            for row, (i, n) in zip(hidden, chunk, strict=True):
                row[:n] = sequences[i, :n]
            together = run(kernel, hidden, lengths, weights)
            for row, (i, n) in zip(together, chunk, strict=True):
                alone = run(kernel, sequences[i : i + 1, :n], lengths_of(n), weights)
                assert same(row[None, :n], alone, lengths_of(n), spec, 3e-6)

        check()

    def shares_prefix(self, spec: LayerSpec) -> None:
        """Attending to a shared prefix equals running every sequence with the prefix before it."""
        weights, kernel = random_weights(spec), self.kernel(spec)
        prefix, own, lengths = random_hidden(1, 11, seed=2), random_hidden(3, 17), lengths_of(17, 1, 6)
        joined = np.concatenate([np.repeat(prefix, 3, axis=0), own], axis=1)
        expected = run(kernel, joined, lengths + 11, weights)
        advanced, states = run_prefix(kernel, prefix, weights)
        assert same(advanced, expected[:1, :11], lengths_of(11), spec)
        result = run(kernel, own, lengths, weights, prefix=states)
        assert same(result, expected[:, 11:], lengths, spec)

    def keeps_nothing(self, spec: LayerSpec) -> None:
        """The caller may overwrite weights and hidden states as soon as `run` returns, which writes to neither."""
        weights, hidden, lengths = random_weights(spec), random_hidden(2, 9), lengths_of(9, 4)
        kernel = self.kernel(spec)
        first = run(kernel, hidden, lengths, weights)
        for array in (*weights.values(), hidden):
            array.setflags(write=False)
        result = run(kernel, hidden, lengths, weights)
        for array in (*weights.values(), hidden):
            array.setflags(write=True)
            array.fill(0)
        assert differences(result, first, lengths).max() == 0
        assert result.flags.writeable
        assert result.flags.c_contiguous

    def refuses_prefix_of_encoder(self) -> None:
        with pytest.raises(CapabilityError, match="causal"):
            run_prefix(self.kernel(BERT), random_hidden(1, 3), random_weights(BERT))


GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Packs of random shapes and of the golden checkpoints, made once."""
    folder = tmp_path_factory.mktemp("packs")

    def packed(name: str, precision: Any = "fp32") -> Path:
        path = folder / f"{name}-{precision}"
        if not path.exists():
            (
                synth(name, path, precision) if name.startswith("tiny") else pack_model(GOLDEN / name, path, precision)
            ).close()
        return path

    return packed


@pytest.fixture
def open_reranker(tmp_path: Path) -> Iterator[Callable[..., Reranker]]:
    """Opens rerankers, and closes them."""
    opened: list[Reranker] = []

    def make(path: Path, runtime: str = "auto", **options: Any) -> Reranker:
        config = Config(memory=10**11, scratch_dir=str(tmp_path / "scratch"), runtime=runtime)
        opened.append(Reranker(path, config=config, **options))
        return opened[-1]

    yield make
    for reranker in opened:
        reranker.close()


@pytest.fixture
def contract() -> type[Contract]:
    return Contract


@pytest.fixture
def layers() -> Any:
    """This module, which importlib mode does not let the test modules import."""
    return sys.modules[__name__]


@pytest.fixture(params=["fp32", "fp16", "int8"])
def precision(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(params=list(LAYERS))
def layer(request: pytest.FixtureRequest, precision: Precision) -> LayerSpec:
    return replace(LAYERS[request.param], precision=precision)


@pytest.fixture(params=["bert", "qwen3"])
def model_layer(request: pytest.FixtureRequest, precision: Precision) -> LayerSpec:
    """A layer of a model that the project has, in every precision."""
    return replace(LAYERS[request.param], precision=precision)


@pytest.fixture(params=["qwen3", "biased-decoder"])
def decoder(request: pytest.FixtureRequest, precision: Precision) -> LayerSpec:
    return replace(LAYERS[request.param], precision=precision)
