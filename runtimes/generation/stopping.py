"""Turns token bytes into text: joins split characters, drops control characters, and ends at stop strings."""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Sequence
from dataclasses import replace

from edge.runtimes.generation.base import Piece
from edge.text.control_characters import CONTROL


class Stopping:
    """Holds tokens back as long as they may be the beginning of a stop string. Pieces stay whole tokens, except that in
    which one begins."""

    def __init__(self, stop: Sequence[str]) -> None:
        self.stopped = False
        self._stop = tuple(stop)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held: list[Piece] = []

    def push(self, data: bytes, token: int | None, logprob: float | None) -> Iterator[Piece]:
        """Takes the next token's bytes, and yields all pieces that are certain now. Yields nothing after `stopped`."""
        yield from self.push_text(self._decoder.decode(data), token, logprob)

    def push_text(self, text: str, token: int | None, logprob: float | None) -> Iterator[Piece]:
        """Like `push`, for a token that is already text."""
        if self.stopped:
            return
        # Control characters are dropped before the search, because without them the text may form a stop string.
        text = CONTROL.sub("", text)
        self._held.append(Piece(text, token, logprob))
        held = "".join(piece.text for piece in self._held)
        found = min((at for at in map(held.find, self._stop) if at >= 0), default=-1)
        if found >= 0:
            self.stopped = True
            yield from self._release(found)
            self._held.clear()
        else:
            yield from self._release(len(held) - self._begun(held))

    def finish(self) -> Iterator[Piece]:
        """Ends the answer: yields the held tokens, and a replacement mark for an incomplete character."""
        if self.stopped:
            return
        yield from self._held
        self._held.clear()
        if rest := self._decoder.decode(b"", final=True):
            yield Piece(rest)

    def _begun(self, held: str) -> int:
        longest = max(map(len, self._stop), default=0)
        for start in range(max(0, len(held) - longest + 1), len(held)):
            if any(stop.startswith(held[start:]) for stop in self._stop):
                return len(held) - start
        return 0

    def _release(self, characters: int) -> Iterator[Piece]:
        """Yields the pieces within the first `characters`, the last one cut there."""
        while self._held and (len(self._held[0].text) <= characters):
            piece = self._held.pop(0)
            characters -= len(piece.text)
            yield piece
        if self.stopped and characters and self._held:
            yield replace(self._held[0], text=self._held[0].text[:characters])
