"""What compiled code gets is compared with what it reads and writes, with `python -O` as well."""

from __future__ import annotations

import json
import subprocess

import pytest

from edge.interpreter import python
from edge.runtimes.native import library
from edge.runtimes.native.library import compiled_file, native_state, processor_level

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
