"""The campaign's command: attacks the program of this checkout, and counts the promises that held.

python tests/campaign/run.py --quick              two minutes, as CI runs it
python tests/campaign/run.py --hours 1            as many cases as an hour has room for
python tests/campaign/run.py --class kills --cases 200
python tests/campaign/run.py --class kills --seed 1 --case 17      one case again
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent


def load() -> None:
    """Makes this folder importable as `campaign`, and the one beside it as `naive`. Not by `sys.path`: beside them lies
    `tests/edge`, which would hide the package under test."""
    for name in {"campaign", "naive"} - sys.modules.keys():
        folder = FOLDER.parent / name
        spec = importlib.util.spec_from_file_location(
            name, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)


if __name__ == "__main__":
    sys.path[:] = [place for place in sys.path if place and Path(place).resolve() != FOLDER]
    load()
    from campaign.command import main

    sys.exit(main())
