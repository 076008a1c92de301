"""The tests that every kind of layer kernel passes; `contract` in `tests/runtimes` says how each one is checked."""

from __future__ import annotations

from typing import Any

import pytest

from edge.models.spec import LayerSpec


class KernelContract:
    """A test class inherits these tests. Its module has the fixture `kernels`: the contract of one runtime."""

    def test_odd_values(self, kernels: Any, model_layer: LayerSpec) -> None:
        kernels.survives_odd_values(model_layer)

    def test_chunk_composition(self, kernels: Any, model_layer: LayerSpec) -> None:
        kernels.ignores_neighbours(model_layer)

    def test_prefix(self, kernels: Any, decoder: LayerSpec) -> None:
        kernels.shares_prefix(decoder)

    def test_buffers_are_free_after_run(self, kernels: Any, model_layer: LayerSpec) -> None:
        kernels.keeps_nothing(model_layer)

    def test_no_prefix_for_encoders(self, kernels: Any) -> None:
        kernels.refuses_prefix_of_encoder()


class TwinContract(KernelContract):
    """The same for kernels other than the numpy reference, which they are also compared with."""

    @pytest.mark.parametrize("hidden_dtype", ["float32", "float16"])
    def test_equals_reference(self, kernels: Any, layer: LayerSpec, hidden_dtype: str) -> None:
        kernels.equals_reference(layer, hidden_dtype)
