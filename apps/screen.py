"""Filters the standard streams, so that no output can control the terminal.

Documents, names of files, memories, answers of models and arguments reach the screen on many paths. All paths end in
one of two streams, so control characters are escaped there.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from edge.text.control_characters import STEERING, escape

_OWN = r"\x1b\[(?:(?:[0123]|3[2356])m|A|K)"
"""The control sequences that this program and its progress bars use: plain, bold, dim, italic, four colours (green,
yellow, magenta, cyan), one line up, and clear to the end of the line. None of them can hide text."""


class Screen:
    """A text stream that writes control characters as escapes such as `\\u202e`. Otherwise it behaves as the stream it
    wraps."""

    encoding = "utf-8"  # Click bypasses streams with another encoding

    def __init__(self, stream: TextIO, *, returns: bool) -> None:
        """Wraps a stream.

        Args:
            returns: let carriage returns pass, with which progress bars redraw their line.
        """
        self._stream = stream
        passing = f"{_OWN}|\r" if returns else _OWN
        self._unsafe = re.compile(f"({passing})|{STEERING.pattern}")

    def write(self, text: str) -> int:
        """Writes text and returns its length."""
        self._stream.write(self._unsafe.sub(_shown, text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Writes texts one after another."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def screens() -> Iterator[None]:
    """Replaces both standard streams by `Screen`s inside the block."""
    output, errors = sys.stdout, sys.stderr
    safe: Any = Screen(output, returns=False), Screen(errors, returns=True)
    sys.stdout, sys.stderr = safe
    try:
        yield
    finally:
        sys.stdout, sys.stderr = output, errors


def _shown(found: re.Match[str]) -> str:
    return found[1] or escape(found)
