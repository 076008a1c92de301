"""Symmetric int8 quantization of weights: a column's (or a row's) largest magnitude becomes 127."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


def scales(values: Floats, axis: int) -> Floats:
    """max|w| / 127 along `axis`; 1 where all values are zero, so that no scale is zero."""
    # Two reductions avoid abs(), which would allocate an array as large as the values.
    largest = np.maximum(values.max(axis=axis), -values.min(axis=axis))
    result: Floats = np.asarray(largest / np.float32(127), np.float32)
    result[result == 0] = 1
    return result


def quantize(values: Floats, scale: Floats) -> npt.NDArray[np.int8]:
    """round(values / scale), half to even, limited to -127 ... 127; `scale` broadcasts against `values`."""
    quotient = values / scale
    np.rint(quotient, out=quotient)
    np.clip(quotient, -127, 127, out=quotient)
    return quotient.astype(np.int8)


def dequantize(values: npt.NDArray[np.int8], scale: Floats) -> Floats:
    """values * scale as fp32."""
    result = values.astype(np.float32)
    result *= scale
    return result
