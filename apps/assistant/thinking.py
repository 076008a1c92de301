"""`Thinking`: leaves out what a model writes to itself before its reply."""

from __future__ import annotations

from dataclasses import replace

from edge.errors import InputError
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

    def check_ended(self, generator: str, *, longest: int | None, most: int) -> None:
        """Checks that a reply that has ended was not all thinking, since an empty one means something else then.

        Args:
            generator: its name.
            longest: tokens it was allowed, if they were used up; None if it ended by itself.
            most: what the user allows an answer: a step may allow less, and then more would not help.

        Raises:
            InputError: it was.
        """
        if not self.under_way:
            return
        when = "when it ended by itself" if longest is None else f"when its {longest:,} tokens were used up"
        more = "allow more (--max-tokens), or " if longest == most else ""
        raise InputError(
            f"{generator} was still thinking {when}, and had not begun to answer: "
            f"{more}take a model that does not think"
        )

    def finish(self) -> list[Piece]:
        """What was held back when the reply has ended."""
        held, self._held = self._held, []
        self._replying = bool(held)
        return held
