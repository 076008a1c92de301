"""The standard streams as this program writes them: nothing that steers a terminal passes, whoever printed it.

Documents, names of files, memories, answers of models and arguments reach the screen by many ways. All of them end in
one of two streams, so that is where their characters are judged.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from edge.control_characters import STEERING, escape

_OWN = r"\x1b\[(?:(?:[0123]|3[2356])m|A|K)"
"""What this program and its progress bars themselves send: plain, bold, dim, italic, four colours (green, yellow,
magenta, cyan), a line up, the rest of a line cleared. None of them hides a text."""


class Screen:
    """A text stream that writes escapes such as `\\u202e` in the place of characters that steer; in all else it is the
    stream it wraps."""

    encoding = "utf-8"  # Click goes around a stream in another one

    def __init__(self, stream: TextIO, *, returns: bool) -> None:
        """Wraps a stream.

        Args:
            returns: let carriage returns pass, by which progress bars begin their line again.
        """
        self._stream = stream
        passing = f"{_OWN}|\r" if returns else _OWN
        self._unsafe = re.compile(f"({passing})|{STEERING.pattern}")

    def write(self, text: str) -> int:
        """Writes text; returns its length."""
        self._stream.write(self._unsafe.sub(_shown, text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Writes texts, one after the other."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def screens() -> Iterator[None]:
    """Inside the block both standard streams are `Screen`s."""
    output, errors = sys.stdout, sys.stderr
    safe: Any = Screen(output, returns=False), Screen(errors, returns=True)
    sys.stdout, sys.stderr = safe
    try:
        yield
    finally:
        sys.stdout, sys.stderr = output, errors


def _shown(found: re.Match[str]) -> str:
    return found[1] or escape(found)
