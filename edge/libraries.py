"""The libraries that this program imports: what each adds to the process at most, so that its import can be refused
beforehand, and the switches that stop it from reporting about this machine and its use.

Each library reads its switch when it is first loaded, so `import edge` sets all of them. Child processes inherit them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

_IMPORTED_NBYTES = {
    "edge.apps.memory.memory": 17 << 20,
    "edge.runtimes.embedder": 14 << 20,
    "edge.runtimes.reranker": 14 << 20,
    "faiss": 8 << 20,
    "llama_cpp": 16 << 20,
    "mlx.core": 40 << 20,
    "onnx": 6 << 20,
    "onnxruntime": 10 << 20,
    "tokenizers": 3 << 19,
    "torch": 160 << 20,
}
"""Bounds above the values measured on Linux with Python 3.11. Our modules, with numpy and all that the command line
imports with them: 15.4 MB for a memory, 13.2 MB for a model. The others, beside numpy: 6.1, 13.5, -, 5.2, 8.5, 1.0 and
129 MB (torch for the CPU). Other versions and systems differ a little."""

_UNKNOWN_NBYTES = 16 << 20


def import_nbytes(names: Iterable[str]) -> int:
    """Bytes by which importing these modules grows the process, at most. Modules that are loaded add nothing."""
    return sum(_IMPORTED_NBYTES.get(name, _UNKNOWN_NBYTES) for name in names if name not in sys.modules)


REPORTS_OFF = {
    # onnxruntime 1.31 and newer keeps a device identifier in the user's cache folder and sends events to its vendor.
    "ORT_DISABLE_TELEMETRY": "1",
    # huggingface_hub, hf_xet and transformers report versions and transfers to the hub.
    "HF_HUB_DISABLE_TELEMETRY": "1",
}
"""Environment variables that tell libraries to report nothing."""


def silence_libraries() -> None:
    """Sets the switches in the environment of this process, even if they have other values."""
    os.environ.update(REPORTS_OFF)
