"""`ProgressBar`: how far a long command has come."""

from __future__ import annotations

import sys
from typing import Any


class ProgressBar:
    """A progress bar on a terminal, nothing elsewhere; called with the amount done and the amount there is to do.

    The time that is left follows from the average speed since the first call, so it does not jump with the speed of
    the last step. The bar counts from the first call: what happens before (opening a model, a download) is not taken
    for slow progress.
    """

    def __init__(self, unit: str, label: str = "") -> None:
        """`unit` of the amounts; `B` shows bytes in kB and MB. `label` stands in front."""
        self._unit = unit
        self._label = label
        self._bar: Any = None

    def __call__(self, done: int, total: int) -> None:
        if self._bar is None:
            from tqdm import tqdm

            self._bar = tqdm(
                total=total, initial=done, unit=self._unit, unit_scale=self._unit == "B", desc=self._label or None,
                file=sys.stderr, disable=not sys.stderr.isatty(), leave=False, smoothing=0,
            )  # fmt: skip
            return
        self._bar.total = max(total, done)
        if done != self._bar.n:
            self._bar.update(done - self._bar.n)

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._bar is not None:
            self._bar.close()
