"""Makes folders of helpers importable by their names, for pytest and for programs that are started from a checkout.

Not by putting `tests` on the path: that folder also holds `tests/edge`, which would hide the package under test.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

NAMES = ("naive", "making", "campaign", "bench")


def load() -> None:
    """Makes the packages of `NAMES` importable in this process."""
    for name in NAMES:
        folder = Path(__file__).resolve().parent / name
        if name in sys.modules:
            continue
        spec = importlib.util.spec_from_file_location(
            name, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
