"""`ProgressBar`: shows the progress of a long command."""

from __future__ import annotations

import sys
from typing import Any


class ProgressBar:
    """A progress bar, shown only on a terminal. It is called with the amount done and the whole amount.

    The remaining time is computed from the average speed since the first call, so that it does not jump with the speed
    of the last step. Time before the first call, such as for opening a model, does not count.
    """

    def __init__(self, unit: str, label: str = "") -> None:
        """
        Args:
            unit: the unit of the amounts; `B` shows bytes in kB and MB.
            label: the text before the bar.
        """
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
