"""Prepares an answer's text to be shown: numbers its citations, and checks each sentence against the passages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from edge.apps.assistant.citations import Citations
from edge.apps.assistant.grounding import Grounding, Unsupported
from edge.apps.assistant.marks import MarkReader
from edge.apps.assistant.replies import Refusal
from edge.apps.collection.hits import Hit
from edge.runtimes.generation.base import Piece
from edge.runtimes.generation.extractive import Quoted


class Showing:
    """The text that an answer has shown so far. A pipeline may show an answer in several parts.

    Attributes:
        citations: the passages that the answer has referred to so far.
        checks: the checks of the answer's sentences, one for each checked part.
    """

    def __init__(self) -> None:
        self.citations = Citations()
        self.checks: list[Grounding] = []

    @property
    def unsupported(self) -> tuple[Unsupported, ...]:
        """The sentences so far that the passages do not support."""
        return tuple(found for check in self.checks for found in check.unsupported)

    def whole(self, text: str, passages: Sequence[Hit], *, question: str | None = None) -> str:
        """The text to show for a finished part of the answer.

        Args:
            passages: the passages that the part was written from.
            question: the question that the sentences are checked as an answer to; None leaves them unchecked.
        """
        check = self._check(question, passages)
        if check is not None:
            text = check.feed(text) + check.finish()
        reader = self.citations.reader(passages)
        return reader.feed(text) + reader.finish()

    def begin(self, passages: Sequence[Hit], *, question: str | None = None) -> GrowingText:
        """A part of the answer that is shown while it is written. The arguments are those of `whole`."""
        return GrowingText(self.citations.reader(passages), self._check(question, passages))

    def _check(self, question: str | None, passages: Sequence[Hit]) -> Grounding | None:
        if question is None:
            return None
        self.checks.append(Grounding(question, passages))
        return self.checks[-1]


class GrowingText:
    """A part of an answer that is still being written."""

    def __init__(self, reader: MarkReader, check: Grounding | None) -> None:
        self._reader = reader
        self._check = check
        self._refusal = Refusal()

    @property
    def refused(self) -> bool:
        """Whether the generator has said that the passages hold no answer."""
        return self._refusal.said

    @property
    def loops(self) -> bool:
        """Whether the generator keeps repeating sentences."""
        return self._check is not None and self._check.loops

    def feed(self, piece: Piece) -> str:
        """Takes a piece from the generator and returns the text that can be shown now, which may be empty."""
        if isinstance(piece, Quoted):
            return self._reader.feed(piece.text, quoted=True)
        text = self._refusal.feed(piece.text)
        return self._reader.feed(text if self._check is None else self._check.feed(text), quoted=False)

    def finish(self, *, complete: bool) -> Iterator[str]:
        """Yields the rest of the text to show.

        Args:
            complete: whether the text ended by itself. Otherwise an unfinished mark at its end is left out.
        """
        text = self._refusal.finish()
        if self._check is not None:
            text = self._check.feed(text) + self._check.finish()
        if text := self._reader.feed(text):
            yield text
        if complete and (text := self._reader.finish()):
            yield text
