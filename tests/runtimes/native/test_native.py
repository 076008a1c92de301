"""`NativeRuntime` against the contract of a layer kernel and the numpy reference, with every instruction set it has."""

from __future__ import annotations

import importlib.machinery
import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from making.synth import synth
from naive.numpy_runtime import NumpyLayerKernel
from naive.peaks import check_workspaces

from edge.config import Config
from edge.errors import CapabilityError
from edge.interpreter import python
from edge.models.spec import LayerSpec
from edge.runtimes import base, scoring
from edge.runtimes.base import AUTOMATIC, Runtime, load_runtime, runtime_for
from edge.runtimes.input import Feed
from edge.runtimes.native import library
from edge.runtimes.native import runtime as native
from edge.runtimes.native.library import (
    EmbeddingTables,
    compiled_file,
    embedding_tables,
    mean_rows,
    native_state,
    processor_level,
)
from edge.runtimes.native.runtime import NativeLayerKernel, NativeRuntime
from edge.runtimes.onnx import OnnxRuntime
from edge.runtimes.reranker import Reranker
from edge.streaming.hidden_states import plan_chunks

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


def test_the_contract_of_a_kernel(contract: Any, layers: Any, levels: range, encoder: LayerSpec) -> None:
    for level in levels:
        kept = contract(Leveled(level, threads=2))
        kept.equals_reference(encoder, "float32")
        kept.equals_reference(encoder, "float16")
        kept.survives_odd_values(encoder)
        kept.keeps_nothing(encoder)
        kernel = NativeLayerKernel(encoder, "float16", 1, level=level)
        states, weights = np.empty((0, encoder.hidden), np.float16), layers.random_weights(encoder)
        assert kernel.run(states, np.empty(0, np.int32), weights).shape == states.shape
        with pytest.raises(CapabilityError, match="causal"):
            kernel.run_prefix(np.zeros((3, 48), np.float16), weights)


def test_equals_reference_at_real_and_odd_widths(layers: Any, levels: range, encoder: LayerSpec) -> None:
    """Also widths that fill no tile, vector or panel, and that differ from each other."""
    random, shapes = np.random.default_rng(0), [WIDE, LONG_HEADS]
    for case in range(8):
        hidden, size, ffn = (int(random.integers(1, most)) for most in (150, 70, 200))
        heads = case % 4 + 1
        shapes.append({"hidden": hidden, "heads": heads, "kv_heads": heads, "head_size": size, "ffn": ffn})
    for sizes in shapes:
        spec = replace(encoder, **sizes)
        weights, lengths = layers.random_weights(spec), random.integers(1, 90, 4).astype(np.int32)
        states = layers.random_hidden(4, int(lengths.max()), spec.hidden)
        expected = layers.run(NumpyLayerKernel(spec, "float32"), states, lengths, weights)
        for level in levels:
            result = layers.run(NativeLayerKernel(spec, "float32", 2, level=level), states, lengths, weights)
            assert layers.same(result, expected, lengths, spec)


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


def test_an_installation_that_does_not_know_the_runtime_takes_the_next(
    encoder: LayerSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An editable installation keeps the entry points of the day it was made."""
    monkeypatch.setattr(base, "names", lambda group: {"onnx", "numpy"})
    assert isinstance(runtime_for("auto", encoder), OnnxRuntime)
    found = compiled_file()
    monkeypatch.setattr(importlib.machinery, "EXTENSION_SUFFIXES", [".cpython-99.so"])
    assert compiled_file() == found, "one build serves all versions of Python"


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="no high-water mark to reset on this system")
def test_workspace_bounds_memory(encoder: LayerSpec) -> None:
    cases = [
        (replace(encoder, **sizes), dtype, lengths, 0)
        for sizes in (WIDE, LONG_HEADS)
        for lengths in ([400] * 9, [2500], [30] * 20)
        for dtype in ("float32", "float16")
    ]
    check_workspaces("native", cases if native.processor_level() else [])


CALLS = """
import json
import numpy as np
from edge.devices.faiss_codec import FaissCodecs
from edge.models.spec import LayerSpec
from edge.runtimes.native.library import EmbeddingTables, mean_rows
from edge.runtimes.native.runtime import NativeLayerKernel
from edge.runtimes.onnx import OnnxLayerKernel

assert False, "asserts are off"
f4, i4, i8 = np.float32, np.int32, np.int64

def lengths(*values):
    return np.array(values, i4)

ones = np.ones((4, 32), f4)
fitting = {"scales": ones[0], "positions": ones, "types": ones[:2], "norm_weight": ones[0], "norm_bias": ones[0]}
tables = lambda **own: EmbeddingTables(**{**fitting, "eps": 1e-6, **own})
rows, ids, into = np.ones((4, 32), np.int8), np.zeros(4, i4), np.empty((4, 32), f4)
given = {"rows": rows, "ids": ids, "lengths": lengths(4), "types": None, "into": into}
embed = lambda **own: tables().embed(**{**given, **own})
spec = LayerSpec(
    hidden=32, heads=2, kv_heads=2, head_size=16, ffn=64, activation="gelu", gated=False, norm="layer",
    norm_first=False, norm_eps=1e-12, rope_theta=None, causal=False, qk_norm=False, bias=True, precision="int8",
)
weights = {each.name: np.ones(each.shape, each.dtype) for each in spec.tensors()}
kernel = NativeLayerKernel(spec, "float32", 1)
layer = lambda states=ones, counts=lengths(4), **own: kernel.run(states, counts, {**weights, **own})
codecs = FaissCodecs()
flat = codecs.open(codecs.train("flat", np.eye(32, dtype=f4), seed=0))
scanner = flat.scanner()
def scan(codes=ones, labels=np.zeros(4, i8), scores=np.zeros(8, f4), found=np.zeros(8, i8)):
    scanner.set_query(ones[0])
    scanner.scan(codes, labels, scores, found)
wide = np.ones((4, 64), f4)[:, ::2]
table = {
    "mean: lengths": lambda: mean_rows(ones, lengths(400_000)),
    "mean: negative": lambda: mean_rows(ones, lengths(-4, 8)),
    "mean: overflow": lambda: mean_rows(ones, np.array([2**32 + 4], i8)),
    "mean: gaps": lambda: mean_rows(wide, lengths(4)),
    "mean: flat": lambda: mean_rows(ones[0], lengths(32)),
    "tables: positions": lambda: tables(positions=ones[:, :16]),
    "tables: types": lambda: tables(types=np.ones((2, 16), f4)),
    "tables: norm": lambda: tables(norm_bias=ones[0, :16]),
    "tables: dtype": lambda: tables(norm_weight=np.ones(32)),
    "tables: wide": lambda: tables(positions=np.ones((4, 5000), f4)),
    "embed: rows": lambda: embed(rows=rows[:2]),
    "embed: width": lambda: embed(rows=rows[:, :16].copy()),
    "embed: row type": lambda: embed(rows=rows.astype(np.uint8)),
    "embed: ids": lambda: embed(ids=ids[:2]),
    "embed: token": lambda: embed(ids=ids + 32),
    "embed: negative token": lambda: embed(ids=ids - 1),
    "embed: types": lambda: embed(types=np.zeros(2, np.uint8)),
    "embed: type": lambda: embed(types=np.full(4, 2)),
    "embed: negative type": lambda: embed(types=np.full(4, -1)),
    "embed: lengths": lambda: embed(lengths=lengths(2, 400_000)),
    "embed: long": lambda: embed(
        rows=np.ones((8, 32), np.int8), ids=np.zeros(8, i4), lengths=lengths(8), into=np.empty((8, 32), f4)),
    "embed: result": lambda: embed(into=into[:2]),
    "embed: result's type": lambda: embed(into=np.empty((4, 32))),
    "embed: gaps": lambda: embed(into=wide),
    "layer: lengths": lambda: layer(counts=lengths(400_000)),
    "layer: width": lambda: layer(ones[:, :16].copy()),
    "layer: type": lambda: layer(ones.astype(np.float16)),
    "layer: gaps": lambda: layer(wide),
    "layer: weight": lambda: layer(**{"up.weight": np.ones((32, 32), np.int8)}),
    "layer: scale": lambda: layer(**{"down.scale": np.ones(16, f4)}),
    "layer: weight's type": lambda: layer(**{"qkv.weight": np.ones((32, 96), f4)}),
    "layer: prefix": lambda: kernel.run(ones, lengths(4), weights, prefix=object()),
    "layer: level": lambda: NativeLayerKernel(spec, "float32", 1, level=9),
    "onnx: scratch": lambda: OnnxLayerKernel(spec, "float32", 1)._finish.run(
        weights, np.empty(8, np.uint8), {"advanced": into}, hidden=ones, context=ones),
    "onnx: gaps": lambda: OnnxLayerKernel(spec, "float32", 1)._finish.run(
        weights, np.empty(10**6, np.uint8), {"advanced": wide}, hidden=ones, context=ones),
    "onnx: prefix": lambda: OnnxLayerKernel(spec, "float32", 1).run(ones, lengths(4), weights, prefix=object()),
    "scan: codes": lambda: scan(codes=ones[:2]),
    "scan: found": lambda: scan(found=np.zeros(2, i8)),
    "scan: labels": lambda: scan(labels=np.zeros(4, i4)),
    "scan: gaps": lambda: scan(scores=np.zeros(16, f4)[::2]),
    "scan: query": lambda: scanner.set_query(ones[0, :16]),
}
said = {}
for name, call in table.items():
    try:
        call()
        said[name] = "nothing"
    except Exception as error:
        said[name] = type(error).__name__
print(json.dumps(said))
"""


@pytest.mark.skipif(not processor_level(), reason="the layers are not compiled here")
def test_wrong_arrays_are_refused_with_asserts_off() -> None:
    executable, *rest = python(CALLS)
    done = subprocess.run([executable, "-O", *rest], capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
    said = json.loads(done.stdout)
    assert len(said) > 30
    assert {name: kind for name, kind in said.items() if kind not in ("ValueError", "IndexError", "TypeError")} == {}


@pytest.mark.skipif(compiled_file() is None, reason="the layers are not compiled here")
def test_code_of_another_interface_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "INTERFACE", library.INTERFACE + 1)
    for cached in (library.library, library.compiled):
        cached.cache_clear()
    try:
        assert processor_level() == 0
        assert "another version of edge-rag has compiled it" in native_state()
    finally:
        monkeypatch.undo()
        for cached in (library.library, library.compiled):
            cached.cache_clear()


WIDTHS = (1, 7, 8, 15, 16, 33, 128, 129, 257, 384, 1025)
LENGTHS = np.array([1, 2, 300, 3, 57], np.int32)


@pytest.fixture
def types() -> Sequence[str]:
    """The types of states; none where the compiled code cannot be used, so that numpy does the work."""
    return ("float16", "float32") if library.compiled() else ()


def test_means(types: Sequence[str]) -> None:
    random = np.random.default_rng(0)
    for dtype, width in product(types, WIDTHS[1:]):  # numpy sums a single column in another order
        states = (random.standard_normal((int(LENGTHS.sum()), width)) * 30).astype(dtype)
        parts = np.split(states, np.cumsum(LENGTHS)[:-1])
        expected = np.stack([part.mean(axis=0, dtype=np.float32) for part in parts])
        assert (mean_rows(states, LENGTHS) == expected).all(), width
        assert (scoring._means(states[::-1], LENGTHS[::-1]) == scoring._means(states[::-1].copy(), LENGTHS[::-1])).all()


def test_embedding(types: Sequence[str], layer_0: Any) -> None:
    random, tokens = np.random.default_rng(0), int(LENGTHS.sum())
    for dtype, width in product(types, WIDTHS):
        shapes = ((50,), (300, width), (2, width), (width,), (width,))
        tables = EmbeddingTables(*(random.standard_normal(shape).astype(np.float32) for shape in shapes), eps=1e-12)
        rows = random.integers(-127, 128, (tokens, width), np.int8)
        ids, kinds = random.integers(0, 50, tokens, np.int32), random.integers(0, 2, tokens, np.uint8)
        into = np.empty((tokens, width), dtype)
        tables.embed(rows, ids, LENGTHS, kinds, into)
        assert (into == layer_0(tables, rows, ids, kinds, LENGTHS, dtype)).all(), width
        tables.embed(rows, ids, LENGTHS, None, into)
        assert (into == layer_0(tables, rows, ids, 0 * kinds, LENGTHS, dtype)).all()


def test_a_model_s_input_is_the_same_without_compiled_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, types: Sequence[str]
) -> None:
    synth("tiny-bert", tmp_path / "m", "int8").close()
    docs = [" ".join(f"word{(i * j) % 29}" for j in range(1, 4 + 3 * i)) for i in range(8)]
    with Reranker(tmp_path / "m", config=Config(memory=10**11)) as reranker:
        embedding, batch = reranker.engine.embedding, reranker.engine.vocabulary.pairs("word1 word2", docs)
        for dtype in types:
            results = []
            for compiled in (True, False):
                monkeypatch.setattr(library, "compiled", lambda answer=compiled: answer)
                embedding._positions = embedding._positions[:0]  # read again, so that the tables are chosen again
                embedding.prepare(batch, rows=True)
                assert (embedding._compiled is not None) == compiled
                (chunk,) = plan_chunks(np.arange(len(docs)), batch.lengths, 10**6)
                into = np.empty((chunk.tokens, embedding.width), dtype)
                Feed(embedding, batch, dtype).chunk(chunk, into)
                results.append(into)
            assert (results[0] == results[1]).all()


def test_other_models_are_left_to_numpy(types: Sequence[str]) -> None:
    ones = np.ones((2, 8), np.float32)
    small = {"types": ones, "norm.weight": ones[0], "norm.bias": ones[0]}
    assert (embedding_tables(ones[0], ones, small, 1e-6) is not None) == bool(types)
    assert embedding_tables(None, ones, small, 1e-6) is None, "rows that are not int8"
    assert embedding_tables(ones[0], ones, {"types": ones}, 1e-6) is None, "no norm"
    assert embedding_tables(ones[0], np.ones((2, 5000), np.float32), small, 1e-6) is None, "wider than the buffers"
