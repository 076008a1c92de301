"""`NativeRuntime` against the contract of a layer kernel and the numpy reference, with every instruction set it has."""

from __future__ import annotations

import importlib.machinery
import json
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from naive.numpy_runtime import NumpyLayerKernel
from naive.program import printed

from edge.errors import CapabilityError
from edge.models.spec import LayerSpec
from edge.runtimes import base
from edge.runtimes.base import AUTOMATIC, Runtime, load_runtime, runtime_for
from edge.runtimes.native import runtime as native
from edge.runtimes.native.library import compiled_file
from edge.runtimes.native.runtime import NativeLayerKernel, NativeRuntime
from edge.runtimes.onnx import OnnxRuntime

WIDE = {"hidden": 384, "heads": 12, "kv_heads": 12, "head_size": 32, "ffn": 1536}
LONG_HEADS = {"hidden": 256, "heads": 4, "kv_heads": 4, "head_size": 64, "ffn": 512}


class Leveled(Runtime):
    """The native runtime with one of its instruction sets."""

    name = "native"

    def __init__(self, level: int, threads: int = 1) -> None:
        self.level = level
        self.threads = threads

    def layer_kernel(self, spec: LayerSpec, *, threads: int, hidden_dtype: Any = "float32") -> NativeLayerKernel:
        return NativeLayerKernel(spec, hidden_dtype, self.threads, level=self.level)


@pytest.fixture
def encoder(layers: Any) -> LayerSpec:
    return replace(layers.BERT, precision="int8")


@pytest.fixture
def levels() -> range:
    """The instruction sets of this machine; none where the code was not compiled, where `test_refusals` says why."""
    return range(1, native.processor_level() + 1)


@pytest.mark.parametrize("hidden_dtype", ["float32", "float16"])
def test_equals_reference(contract: Any, levels: range, encoder: LayerSpec, hidden_dtype: str) -> None:
    for level in levels:
        contract(Leveled(level)).equals_reference(encoder, hidden_dtype)


@pytest.mark.parametrize("sizes", [WIDE, LONG_HEADS], ids=["minilm", "long-heads"])
def test_equals_reference_at_real_widths(layers: Any, levels: range, encoder: LayerSpec, sizes: Any) -> None:
    spec = replace(encoder, **sizes)
    weights, lengths = layers.random_weights(spec), np.array([70, 33, 1, 16], np.int32)
    hidden = layers.random_hidden(4, 70, spec.hidden)
    expected = layers.run(NumpyLayerKernel(spec, "float32"), hidden, lengths, weights)
    for level in levels:
        result = layers.run(NativeLayerKernel(spec, "float32", 2, level=level), hidden, lengths, weights)
        assert layers.same(result, expected, lengths, spec)


def test_odd_shapes(layers: Any, levels: range, encoder: LayerSpec) -> None:
    """Widths that fill no tile, vector or panel, and that differ from each other."""
    random = np.random.default_rng(0)
    for case in range(8):
        hidden, size, ffn = (int(random.integers(1, most)) for most in (150, 70, 200))
        spec = replace(encoder, hidden=hidden, heads=case % 4 + 1, kv_heads=case % 4 + 1, head_size=size, ffn=ffn)
        weights, lengths = layers.random_weights(spec), random.integers(1, 90, 4).astype(np.int32)
        states = layers.random_hidden(4, int(lengths.max()), hidden)
        expected = layers.run(NumpyLayerKernel(spec, "float32"), states, lengths, weights)
        for level in levels:
            result = layers.run(NativeLayerKernel(spec, "float32", 2, level=level), states, lengths, weights)
            assert layers.same(result, expected, lengths, spec)


def test_odd_values(contract: Any, levels: range, encoder: LayerSpec) -> None:
    for level in levels:
        contract(Leveled(level)).survives_odd_values(encoder)


@pytest.mark.parametrize("hidden_dtype", ["float32", "float16"])
def test_in_place_is_equal_to_the_last_bit(
    layers: Any, levels: range, encoder: LayerSpec, hidden_dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one group of sequences and of several, with more blocks than threads."""
    spec = replace(encoder, **WIDE)
    weights, lengths = layers.random_weights(spec), np.array([70, 333, 1, 160, 16], np.int32)
    states = np.random.default_rng(0).standard_normal((int(lengths.sum()), spec.hidden)).astype(hidden_dtype)
    for group in (32, 5_000):
        monkeypatch.setattr(native, "THREAD_GROUP", group)
        for level in levels:
            kernel = NativeLayerKernel(spec, hidden_dtype, 2, level=level)
            expected, changed = kernel.run(states, lengths, weights), states.copy()
            kernel.advance(changed, lengths, weights)
            np.testing.assert_array_equal(changed, expected)


def test_chunk_composition(contract: Any, levels: range, encoder: LayerSpec) -> None:
    for level in levels:
        contract(Leveled(level)).ignores_neighbours(encoder)


def test_results_are_equal_to_the_last_bit(
    layers: Any, levels: range, encoder: LayerSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With any other sequences in the chunk, any grouping and any number of threads."""
    spec, random = replace(encoder, **WIDE), np.random.default_rng(0)
    weights = layers.random_weights(spec)
    lengths = np.array([1, 200, 33, 17, 64, 3, 150, 31, 32, 16], np.int32)
    states = random.standard_normal((int(lengths.sum()), spec.hidden), np.float32)
    for level in levels:
        together = NativeLayerKernel(spec, "float32", 3, level=level).run(states, lengths, weights)
        alone = NativeLayerKernel(spec, "float32", 1, level=level)
        ends = np.cumsum(lengths)
        for end, n in zip(ends, lengths, strict=True):
            one = alone.run(np.ascontiguousarray(states[end - n : end]), np.array([n], np.int32), weights)
            assert (one == together[end - n : end]).all()
        with monkeypatch.context() as patch:
            patch.setattr(native, "THREAD_GROUP", 100)
            grouped = NativeLayerKernel(spec, "float32", 1, level=level)
        assert (grouped.run(states, lengths, weights) == together).all()


def test_every_token_is_in_one_block(layers: Any, levels: range, encoder: LayerSpec) -> None:
    """Whatever the numbers of tokens and threads: a token in no block would keep random memory as its result."""
    weights, random = layers.random_weights(encoder), np.random.default_rng(0)
    states = random.standard_normal((1400, encoder.hidden), np.float32)
    lengths = np.full(1400, 1, np.int32)
    for level in levels:
        expected = NativeLayerKernel(encoder, "float32", 1, level=level).run(states, lengths, weights)
        for threads in (1, 2, 3, 5):
            kernel = NativeLayerKernel(encoder, "float32", threads, level=level)
            bound = kernel.bind(weights)
            for tokens in (1, 31, 32, 33, 64, 65, 127, 129, 255, 257, 289, 511, 513, 545, 1025, 1400):
                found = kernel.run(states[:tokens], lengths[:tokens], bound)
                assert (found == expected[:tokens]).all(), (threads, tokens)


def test_a_bound_layer_serves_chunks_of_any_size(layers: Any, levels: range, encoder: LayerSpec) -> None:
    weights, random = layers.random_weights(encoder), np.random.default_rng(0)
    for level in levels:
        kernel = NativeLayerKernel(encoder, "float32", 2, level=level)
        bound = kernel.bind(weights)
        for tokens in (3, 200, 17, 90):
            states, lengths = random.standard_normal((tokens, encoder.hidden), np.float32), np.array([tokens], np.int32)
            assert (kernel.run(states, lengths, bound) == kernel.run(states, lengths, weights)).all()


def test_buffers_are_free_after_run(contract: Any, levels: range, encoder: LayerSpec) -> None:
    for level in levels:
        contract(Leveled(level, threads=2)).keeps_nothing(encoder)


def test_no_sequences(layers: Any, levels: range, encoder: LayerSpec) -> None:
    for level in levels:
        kernel = NativeLayerKernel(encoder, "float16", 1, level=level)
        states = np.empty((0, encoder.hidden), np.float16)
        assert kernel.run(states, np.empty(0, np.int32), layers.random_weights(encoder)).shape == states.shape


def test_no_prefix_for_encoders(levels: range, encoder: LayerSpec, layers: Any) -> None:
    for level in levels:
        kernel = NativeLayerKernel(encoder, "float32", 1, level=level)
        with pytest.raises(CapabilityError, match="causal"):
            kernel.run_prefix(np.zeros((3, 48), np.float32), layers.random_weights(encoder))


def test_a_forked_child_computes_alone(layers: Any, levels: range, encoder: LayerSpec) -> None:
    """The child has no thread of the parent's pool; it must not wait for one, neither in a run nor when it closes."""
    if not hasattr(os, "fork"):
        return
    weights, lengths = layers.random_weights(encoder), np.array([70, 9], np.int32)
    states = layers.random_hidden(1, 79)[0]
    for level in levels:
        kernel = NativeLayerKernel(encoder, "float32", 3, level=level)
        expected = kernel.run(states, lengths, weights)
        child = os.fork()
        if child == 0:
            same = (kernel.run(states, lengths, weights) == expected).all()
            del kernel
            os._exit(0 if same else 1)
        assert os.waitpid(child, 0)[1] == 0


def test_refusals(layers: Any, layer: LayerSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer runs natively or is refused with the reason, and "auto" then takes onnx."""
    runtime = load_runtime("native")
    assert isinstance(runtime, NativeRuntime)
    fits = layer == replace(layers.BERT, precision="int8")
    if fits and native.processor_level():
        assert isinstance(runtime_for("auto", layer), NativeRuntime)
        runtime.layer_kernel(layer, threads=1)
    else:
        with pytest.raises(CapabilityError, match=r"native runtime .*choose the runtime onnx"):
            runtime.layer_kernel(layer, threads=1)
        assert isinstance(runtime_for("auto", layer), OnnxRuntime)
    assert load_runtime(AUTOMATIC[-1]).refusal(layer) is None
    for name in ("library", "compiled_file"):
        monkeypatch.setattr(f"edge.runtimes.native.library.{name}", lambda: None)
    with pytest.raises(CapabilityError, match="not compiled when edge-rag was installed"):
        runtime.layer_kernel(layer, threads=1)
    assert isinstance(runtime_for("auto", layer), OnnxRuntime)


def test_one_build_serves_all_versions_of_python(monkeypatch: pytest.MonkeyPatch) -> None:
    found = compiled_file()
    monkeypatch.setattr(importlib.machinery, "EXTENSION_SUFFIXES", [".cpython-99.so"])
    assert compiled_file() == found


def test_an_installation_that_does_not_know_the_runtime_takes_the_next(
    encoder: LayerSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An editable installation keeps the entry points of the day it was made."""
    monkeypatch.setattr(base, "names", lambda group: {"onnx", "numpy"})
    assert isinstance(runtime_for("auto", encoder), OnnxRuntime)


PEAK = """
import ctypes, json, sys
import numpy as np
from edge.models.spec import LayerSpec
from edge.runtimes.native.library import processor_level
from edge.runtimes.native.runtime import NativeRuntime
from edge.resident import small_pages

small_pages()

def kilobytes(field):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(field))

for case in json.loads(sys.argv[1]) if processor_level() else []:
    spec, dtype = LayerSpec(**case["spec"]), case["hidden_dtype"]
    kernel = NativeRuntime().layer_kernel(spec, threads=2, hidden_dtype=dtype)
    weights = {t.name: np.ones(t.shape, t.dtype) for t in spec.tensors()}
    lengths = np.array(case["lengths"], np.int32)
    states = np.ones((int(lengths.sum()), spec.hidden), dtype)
    kernel.run(states, lengths, weights)
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/clear_refs", "w") as reset:
        reset.write("5")
    before = kilobytes("VmRSS")
    kernel.run(states, lengths, weights)
    print((kilobytes("VmHWM") - before) * 1024, kernel.workspace(len(states), int(lengths.max())))
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="no high-water mark to reset on this system")
def test_workspace_bounds_memory(encoder: LayerSpec) -> None:
    cases = [
        {"spec": asdict(replace(encoder, **sizes)), "hidden_dtype": dtype, "lengths": lengths}
        for sizes in (WIDE, LONG_HEADS)
        for lengths in ([400] * 9, [2500], [30] * 20)
        for dtype in ("float32", "float16")
    ]
    lines = printed(PEAK, json.dumps(cases)).splitlines()
    assert len(lines) == len(cases) or not native.processor_level()
    for line in lines:
        measured, bound = map(int, line.split())
        assert measured <= bound <= 2.5 * measured
