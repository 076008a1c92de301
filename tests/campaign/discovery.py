"""Finds the parts of the campaign: classes in the modules of a folder."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from typing import TypeVar

Kind = TypeVar("Kind")


def found(kind: type[Kind], folder: str = "") -> list[type[Kind]]:
    """The subclasses of `kind` with a name, from the modules of this folder or of a folder below it."""
    place = Path(__file__).parent / folder
    package = ".".join(part for part in ("campaign", folder) if part)
    result = {}
    for path in sorted(place.glob("*.py")):
        if path.stem in ("__init__", "run") or path.stem.startswith("test_"):
            continue
        module = importlib.import_module(f"{package}.{path.stem}")
        for name, value in sorted(vars(module).items()):
            own = inspect.isclass(value) and value.__module__ == module.__name__
            if own and issubclass(value, kind) and not inspect.isabstract(value) and hasattr(value, "name"):
                result[module.__name__, name] = value
    return list(result.values())
