"""edge-rag: semantic search, agent memory and a retrieval-augmented assistant inside one memory limit.

The public classes are imported by name from here and loaded on first use, so that `import edge` stays fast and loads no
runtime: `from edge import Reranker, Embedder`. Type checkers read `__init__.pyi`. Nothing here imports a package
outside `edge`.

The import also turns off the usage reports of libraries that are loaded later (see `edge.libraries`).
"""

from __future__ import annotations

import importlib
from typing import Any

from edge.libraries import silence_libraries

silence_libraries()

_PUBLIC = {
    "Answer": "edge.apps.assistant.answer",
    "Assistant": "edge.apps.assistant.assistant",
    "Client": "edge.apps.serve.client",
    "Collection": "edge.apps.collection.collection",
    "Config": "edge.config",
    "EdgeError": "edge.errors",
    "Embedder": "edge.runtimes.embedder",
    "Hit": "edge.apps.collection.hits",
    "Memory": "edge.apps.memory.memory",
    "MemoryBudget": "edge.budget",
    "Ranked": "edge.runtimes.reranker",
    "Reranker": "edge.runtimes.reranker",
}


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'edge' has no attribute {name!r}")
    value = getattr(importlib.import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])
