"""`MlxRuntime` against the contract of a layer kernel and the numpy reference."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from naive.kernels import TwinContract

from edge.errors import CapabilityError
from edge.models.spec import LayerSpec
from edge.runtimes.mlx import MlxRuntime


@pytest.fixture
def kernels(contract: Any) -> Any:
    pytest.importorskip("mlx.core")
    return contract(MlxRuntime())


class TestContract(TwinContract):
    pass


def test_weights_are_copied_once_per_layer(
    contract: Any, model_layer: LayerSpec, layers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    mx = pytest.importorskip("mlx.core")
    kernel = MlxRuntime().layer_kernel(model_layer, threads=1)
    weights = layers.random_weights(model_layer)
    states = np.ones((6, model_layer.hidden), np.float32)
    lengths = np.array([2, 4], np.int32)
    expected = kernel.run(states, lengths, weights)
    copied: list[Any] = []
    array = mx.array

    def watched(values: Any) -> Any:
        copied.append(values)
        return array(values)

    monkeypatch.setattr(mx, "array", watched)
    bound = kernel.bind(weights)
    assert len(copied) == len(weights)
    for values in weights.values():
        values[...] = 0  # the window's buffer may be overwritten from now on
    del copied[:]
    for _ in range(3):
        assert (kernel.run(states, lengths, bound) == expected).all()
    assert not [values for values in copied if any(values is weight for weight in weights.values())]
    assert len(copied) <= 3 * 3, "states and positions of each chunk, no weights"


def test_missing_library(monkeypatch: pytest.MonkeyPatch, model_layer: LayerSpec) -> None:
    monkeypatch.setitem(sys.modules, "mlx.core", None)
    with pytest.raises(CapabilityError, match=r'pip install "edge-rag\[mlx\]"'):
        MlxRuntime().layer_kernel(model_layer, threads=1)
