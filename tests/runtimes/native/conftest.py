"""What numpy computes at the ends of a pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from edge.runtimes.native.library import EmbeddingTables


@pytest.fixture
def layer_0() -> Any:
    """Layer 0's input of packed sequences, by numpy."""

    def compute(
        tables: EmbeddingTables, rows: Any, ids: Any, types: Any, lengths: npt.NDArray[np.int32], dtype: str
    ) -> npt.NDArray[Any]:
        x = rows.astype(np.float32) * tables.scales[ids, None]
        x += tables.positions[np.concatenate([np.arange(length) for length in lengths])]
        x += tables.types[types]
        x -= x.mean(axis=1, keepdims=True)
        x *= 1 / np.sqrt(np.mean(np.square(x), axis=1, keepdims=True) + np.float32(tables.eps))
        return (x * tables.norm_weight + tables.norm_bias).astype(dtype)

    return compute
