"""edge-rag: semantic search, agent memory and a retrieval-augmented assistant inside one memory limit.

The public classes are imported by name from here and loaded on first use, so that `import edge` stays fast and loads no
runtime: `from edge import Reranker, Embedder`. Type checkers read `__init__.pyi`. Nothing here imports a package
outside `edge`.

The import also turns off the usage reports of libraries that are loaded later. Child processes inherit the switches.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

REPORTS_OFF = {
    # onnxruntime 1.31 and newer keeps a device identifier in the user's cache folder and sends events to its vendor.
    "ORT_DISABLE_TELEMETRY": "1",
    # huggingface_hub, hf_xet and transformers report versions and transfers to the hub.
    "HF_HUB_DISABLE_TELEMETRY": "1",
}
"""Environment variables that tell libraries to report nothing. Each library reads its own when it is first loaded."""

os.environ.update(REPORTS_OFF)

_PUBLIC = {
    "Answer": "edge.apps.assistant.answer", "Assistant": "edge.apps.assistant.assistant",
    "Client": "edge.apps.serve.client", "Collection": "edge.apps.collection.collection", "Config": "edge.config",
    "EdgeError": "edge.errors", "Embedder": "edge.runtimes.embedder", "Hit": "edge.apps.collection.hits",
    "Memory": "edge.apps.memory.memory", "MemoryBudget": "edge.budget", "Ranked": "edge.runtimes.reranker",
    "Reranker": "edge.runtimes.reranker",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'edge' has no attribute {name!r}")
    value = getattr(importlib.import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])
