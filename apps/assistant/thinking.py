"""`Thinking`: leaves out what a model writes to itself before its reply."""

from __future__ import annotations

from dataclasses import replace

from edge.runtimes.generation.base import Piece

_OPEN, _CLOSE = "<think>", "</think>"


class Thinking:
    """Leaves out `<think>...</think>` at the beginning of a reply, and the empty lines after it. Anywhere else it is
    text like any other.

    Attributes:
        under_way: the reply has begun with it, and it has not ended.
    """

    def __init__(self) -> None:
        self.under_way = False
        self._replying = False
        self._held: list[Piece] = []
        self._thought = ""

    def feed(self, piece: Piece) -> list[Piece]:
        """The tokens that are known to be the reply's after this one."""
        if self._replying:
            return [piece]
        if not self._thought:
            self._held.append(piece)
            written = "".join(held.text for held in self._held).lstrip()
            if not written.startswith(_OPEN):
                return [] if _OPEN.startswith(written) else self.finish()
            self._held.clear()
            self._thought = written
        else:
            self._thought += piece.text
        _, closed, rest = self._thought.partition(_CLOSE)
        self.under_way = not closed
        if not (rest := rest.lstrip("\n")):
            return []
        self._replying = True
        return [replace(piece, text=rest)]

    def finish(self) -> list[Piece]:
        """What was held back when the reply has ended."""
        held, self._held = self._held, []
        self._replying = bool(held)
        return held
