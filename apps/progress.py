"""`ProgressBar`: how far a long command has come."""

from __future__ import annotations

import sys
from typing import Any


class ProgressBar:
    """A progress bar on a terminal, nothing elsewhere; called with what is done and what there is to do."""

    def __init__(self, unit: str) -> None:
        self._unit = unit
        self._bar: Any = None

    def __call__(self, done: int, total: int) -> None:
        if self._bar is None:
            from tqdm import tqdm

            self._bar = tqdm(
                total=total, unit=self._unit, file=sys.stderr, disable=not sys.stderr.isatty(), leave=False
            )
        self._bar.update(done - self._bar.n)

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._bar is not None:
            self._bar.close()
