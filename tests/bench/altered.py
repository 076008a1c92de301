"""`edge` without some of its parts. `load` compares such servers with the whole one.

The first argument names the parts, with commas between them: `tree` (no states of documents are kept), `queue`
(requests wait in the order of their arrival).
"""

from __future__ import annotations

import sys
from collections.abc import Callable


def _without_tree() -> None:
    from edge.apps.assistant import generator

    generator._knowledge = lambda *_: None  # type: ignore[assignment]


def _without_queue() -> None:
    from edge.runtimes.generation import engine

    engine.WINDOW = 0


_CHANGES: dict[str, Callable[[], None]] = {"tree": _without_tree, "queue": _without_queue}

if __name__ == "__main__":
    for change in sys.argv.pop(1).split(","):
        _CHANGES[change]()
    from edge.apps.cli import main

    main()
