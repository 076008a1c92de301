"""Charging a budget for libraries that stay in memory once they are imported, whoever used them first.

An engine charges what it makes the process grow by, and gives that back when it is closed; the library stays. Where
engines come and go, its part must be held by somebody who stays, too.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from contextlib import suppress

from edge.budget import Lease, MemoryBudget

INDEX = ("faiss",)

_RUNTIMES = {"onnx": ("onnx", "onnxruntime"), "mlx": ("mlx.core",)}


def engine_libraries(runtime: str) -> tuple[str, ...]:
    """What the engines of a runtime import."""
    return ("tokenizers", *_RUNTIMES.get(runtime, ()))


def charge(budget: MemoryBudget, names: Sequence[str]) -> Lease:
    """Imports libraries and holds what the process grew by. One that is missing is its user's business to report.

    Raises:
        BudgetExceeded: they do not fit.
    """
    with budget.charge("libraries") as lease:
        for name in names:
            with suppress(ImportError):
                importlib.import_module(name)
    return lease
