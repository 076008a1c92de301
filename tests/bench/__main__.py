"""`python -m tests.bench NAME`, and a function in a new process: `tests/bench/__main__.py --worker MODULE:NAME`."""

from __future__ import annotations

import importlib
import runpy
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent

if __name__ == "__main__":
    # A script's folder is on the path, where modules of the benchmarks would hide others.
    sys.path[:] = [place for place in sys.path if not place or Path(place).resolve() != FOLDER]
    runpy.run_path(str(FOLDER.parent / "packages.py"))["load"]()
    if sys.argv[1:2] == ["--worker"]:
        from edge.apps.bench.worker import serve

        module, _, name = sys.argv[2].partition(":")
        serve(getattr(importlib.import_module(module), name))
    else:
        from bench.command import bench
        from edge.errors import EdgeError

        try:
            bench(prog_name="python -m tests.bench")
        except EdgeError as error:
            print(f"bench: {error}", file=sys.stderr)
            sys.exit(2)
