"""What a library's import takes at most: known before it is imported, so that it can be refused or waited for."""

from __future__ import annotations

import sys
from collections.abc import Iterable

_IMPORTED_NBYTES = {
    "faiss": 8 << 20,
    "llama_cpp": 16 << 20,
    "mlx.core": 40 << 20,
    "onnx": 6 << 20,
    "onnxruntime": 10 << 20,
    "tokenizers": 3 << 19,
}
"""Measured on Linux with Python 3.11, beside numpy: 6.1, 13.5, -, 5.2, 8.5 and 1.0 MB. Other versions and systems take
a little more or less."""

_UNKNOWN_NBYTES = 16 << 20


def import_nbytes(names: Iterable[str]) -> int:
    """Bytes by which the process grows, at most, when these modules are imported; none for those that are there."""
    return sum(_IMPORTED_NBYTES.get(name, _UNKNOWN_NBYTES) for name in names if name not in sys.modules)
