"""`ProgressBar`: shows the progress of a long command."""

from __future__ import annotations

import os
import sys
from typing import Any, TextIO

_USUAL = os.terminal_size((80, 24))
"""The size of a terminal that does not know its own."""


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

            columns, lines = _size(sys.stderr)
            self._bar = tqdm(
                total=total, initial=done, unit=self._unit, unit_scale=self._unit == "B", desc=self._label or None,
                file=sys.stderr, disable=not sys.stderr.isatty(), leave=False, smoothing=0,
                ncols=columns - 1, nrows=lines - 1,
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


def _size(stream: TextIO) -> os.terminal_size:
    """Columns and lines of the terminal. Some report 0, such as a serial line; no bar would fit into them."""
    try:
        columns, lines = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        return _USUAL
    return os.terminal_size((columns or _USUAL.columns, lines or _USUAL.lines))
