"""The token rows of a packed model. A runtime reads rows through a row cache."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from edge.models.packed import PackedModel


def token_rows(model: PackedModel, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    """Token rows as fp32 [n, hidden] of ids that ascend and are unique. Every row's checksum is compared."""
    raw = model._checked_rows("embedding", ids, model.embedding_checksums())
    values = raw.view(model.embedding_dtype).astype(np.float32)
    if (scales := model.embedding_scales()) is not None:
        values *= scales[ids][:, None]
    return values
