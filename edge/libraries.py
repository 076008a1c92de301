"""Upper bounds of the memory that importing a library takes, so that the import can be refused beforehand."""

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
    "torch": 160 << 20,
}
"""Bounds above the values measured on Linux with Python 3.11, beside numpy: 6.1, 13.5, -, 5.2, 8.5, 1.0 and 129 MB
(torch for the CPU). Other versions and systems differ a little."""

_UNKNOWN_NBYTES = 16 << 20


def import_nbytes(names: Iterable[str]) -> int:
    """Bytes by which importing these modules grows the process, at most. Modules that are loaded add nothing."""
    return sum(_IMPORTED_NBYTES.get(name, _UNKNOWN_NBYTES) for name in names if name not in sys.modules)
