"""`OnnxRuntime` against the contract of a layer kernel and numpy; its memory bound; its exact products."""

from __future__ import annotations

import itertools
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from naive.kernels import TwinContract
from naive.peaks import check_workspaces

from edge.errors import CapabilityError
from edge.models.spec import LayerSpec
from edge.runtimes import onnx, onnx_layer
from edge.runtimes.onnx import OnnxLayerKernel, OnnxRuntime


@pytest.fixture
def kernels(contract: Any) -> Any:
    return contract(OnnxRuntime())


class TestContract(TwinContract):
    pass


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of a few tokens, so that tiny layers are cut where large ones would be."""
    for module in (onnx, onnx_layer):
        monkeypatch.setattr(module, "query_tokens", lambda spec, keys: 4)
        monkeypatch.setattr(module, "block_tokens", lambda spec: 8)


@pytest.mark.usefixtures("small_blocks")
class TestContractInBlocks(TwinContract):
    pass


@pytest.mark.parametrize("missing", ["onnx", "onnxruntime"])
def test_missing_library(monkeypatch: pytest.MonkeyPatch, model_layer: LayerSpec, missing: str) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(CapabilityError, match=f"needs {missing}: pip install onnxruntime onnx"):
        OnnxRuntime().layer_kernel(model_layer, threads=1)


def test_attention_without_flash(layers: Any) -> None:
    """Where onnxruntime cannot tile attention, our own blocks keep the scores of a sequence small."""
    spec, lengths = layers.BERT, np.array([200, 131], np.int32)
    hidden, weights = layers.random_hidden(2, 200), layers.random_weights(spec)
    kernels = [OnnxLayerKernel(spec, "float32", 1, flash=flash) for flash in (False, True)]
    results = [layers.run(kernel, hidden, lengths, weights) for kernel in kernels]
    assert layers.same(*results, lengths, spec)


class Saturates(OnnxRuntime):
    """The runtime as on a processor whose product of unsigned and signed bytes saturates."""

    def layer_kernel(self, spec: LayerSpec, *, threads: int, hidden_dtype: Any = "float32") -> OnnxLayerKernel:
        return OnnxLayerKernel(spec, hidden_dtype, threads, saturates=True)


def test_every_processor_computes_the_same(layers: Any, contract: Any, model_layer: LayerSpec) -> None:
    contract(Saturates()).equals_reference(model_layer, "float32")
    contract(Saturates()).survives_odd_values(model_layer)
    weights, lengths = layers.random_weights(model_layer), np.array([70, 33], np.int32)
    hidden = layers.random_hidden(2, 70)
    kernels = [OnnxLayerKernel(model_layer, "float32", 1, saturates=saturates) for saturates in (False, True)]
    if not onnx.product_saturates():
        one, other = (layers.run(kernel, hidden, lengths, weights) for kernel in kernels)
        assert (one == other).all()


def test_no_product_mixes_signs_where_that_saturates(layers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever this machine has: the types that the graphs multiply there."""
    import onnx as library

    found: set[tuple[str, ...]] = set()

    class Noting(onnx.CompiledGraph):
        def __init__(self, graph: Any, threads: int) -> None:
            super().__init__(graph, threads)
            model = library.load_from_string(graph.serialize())
            kinds = {each.name: each.type.tensor_type.elem_type for each in (*model.graph.input, *model.graph.output)}
            kinds |= {each.name: each.data_type for each in model.graph.initializer}
            for node in model.graph.node:
                if "Integer" in node.op_type:
                    named = [library.TensorProto.DataType.Name(kinds[each]) for each in node.input[:2]]
                    found.add((*named, str(len(node.input))))

    monkeypatch.setattr(onnx, "CompiledGraph", Noting)
    monkeypatch.setattr(onnx, "product_saturates", lambda: True)
    OnnxRuntime().layer_kernel(replace(layers.BERT, precision="int8"), threads=1)
    assert found == {("UINT8", "UINT8", "6")}


def test_saturation_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Saturating:
        def __init__(self, graph: Any, threads: int) -> None:
            pass

        def run(self, weights: Any, scratch: Any, outputs: dict[str, Any], a: Any, b: Any, scale: Any) -> None:
            pairs = a.astype(int)[:, 0::2] @ b.astype(int)[0::2] * 0
            for k in range(0, a.shape[1], 2):
                pairs += np.clip(a[:, k : k + 2].astype(int) @ b[k : k + 2].astype(int), -(2**15), 2**15 - 1)
            outputs["product"][:] = pairs - 128 * b.astype(int).sum(axis=0)

    monkeypatch.setattr(onnx, "CompiledGraph", Saturating)
    assert onnx.product_saturates.__wrapped__()


@given(st.integers(1, 5000), st.lists(st.integers(1, 60), max_size=20), st.integers(1, 600))
def test_blocks_and_groups_cover_everything(total: int, lengths: list[int], most: int) -> None:
    cuts = list(onnx.blocks(total, most))
    assert list(itertools.chain(*(range(*cut) for cut in cuts))) == list(range(total))
    assert max(stop - start for start, stop in cuts) <= most
    cuts = list(onnx.groups(np.array(lengths, np.int32), most))
    assert list(itertools.chain(*(range(*cut) for cut in cuts))) == list(range(len(lengths)))
    assert all(stop - start == 1 or sum(lengths[start:stop]) <= most for start, stop in cuts)


WIDE = {"hidden": 512, "heads": 8, "kv_heads": 8, "head_size": 64, "ffn": 2048}
GATED = {"hidden": 512, "heads": 8, "kv_heads": 4, "head_size": 128, "ffn": 1536}
SHAPES = [("bert", WIDE, (3, 300, 0)), ("bert", WIDE, (1, 900, 0)), ("qwen3", GATED, (4, 200, 90))]
SHAPES += [
    ("modernbert", {**WIDE, "ffn": 768, "window": 64}, (1, 900, 0)),
    ("mpnet", {**WIDE, "buckets": 32}, (1, 900, 0)),
    ("deberta", {**WIDE, "spans": 256, "farthest": 512}, (2, 400, 0)),
]


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="no high-water mark to reset on this system")
def test_workspace_bounds_memory(layers: Any, precision: Any) -> None:
    """Each precision with one of both types of states; each shape meets both."""
    first = precision == "fp16"
    cases = []
    for at, (name, sizes, (batch, length, prefix)) in enumerate(SHAPES):
        spec = replace(layers.LAYERS[name], precision=precision, **sizes)
        lengths = np.full(batch, length, np.int32) - np.arange(batch, dtype=np.int32) % 3
        cases.append((spec, ("float32", "float16")[(at + first) % 2], lengths, prefix))
    check_workspaces("onnx", cases)
