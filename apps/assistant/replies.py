"""A reply on its way to the reader: timed, without thinking or a refusal, its citations numbered, its facts checked."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import cast

from edge.apps.assistant.citations import Citations, MarkReader
from edge.apps.assistant.grounding import Grounding, Judge, Unsupported
from edge.apps.assistant.prompts import REFUSAL
from edge.apps.collection.hits import Hit
from edge.errors import InputError
from edge.runtimes.generation.base import Piece
from edge.runtimes.generation.extractive import Quoted


@dataclass(slots=True)
class GeneratorClock:
    """Times one answer: seconds to the `first` token and to the last, without the time that the reader spends between
    two tokens."""

    first: float = 0.0
    seconds: float = 0.0
    count: int = 0

    def timed(self, answer: Iterator[Piece]) -> Iterator[Piece]:
        """Yields the answer's tokens. Closing this iterator closes the answer."""
        with closing(cast("Generator[Piece, None, None]", answer)):
            while True:
                asked = time.perf_counter()
                token = next(answer, None)
                self.seconds += time.perf_counter() - asked
                if token is None:
                    return
                self.count += 1
                self.first = self.first or self.seconds
                yield token


_OPEN, _CLOSE = "<think>", "</think>"


class Thinking:
    """Leaves out `<think>...</think>` at the beginning of a reply, and the empty lines after it; elsewhere the tags are
    text. `under_way`: it has not ended; `replying`: all further tokens belong to the reply."""

    def __init__(self) -> None:
        self.under_way = False
        self.replying = False
        self._held: list[Piece] = []
        self._thought = ""

    def feed(self, piece: Piece) -> list[Piece]:
        if self.replying:
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
        self.replying = True
        return [replace(piece, text=rest)]

    def check_ended(self, generator: str, *, longest: int | None, most: int) -> None:
        """Raises `InputError` if a reply was nothing but thinking, which would be read as no answer. `longest`: its
        token limit, if that was reached; `most`: the user's own."""
        if not self.under_way:
            return
        when = "when it ended by itself" if longest is None else f"when its {longest:,} tokens were used up"
        more = "allow more (--max-tokens), or " if longest == most else ""
        raise InputError(
            f"{generator} was still thinking {when}, and had not begun to answer: "
            f"{more}take a model that does not think"
        )

    def finish(self) -> list[Piece]:
        held, self._held = self._held, []
        self.replying = bool(held)
        return held


class Refusal:
    """Holds a reply back while it may still be the refusal that the generator was told to give; `said` if it is."""

    def __init__(self) -> None:
        self.said = False
        self._held: str | None = ""

    def feed(self, text: str) -> str:
        if self._held is None:
            return text
        self._held += text
        begun = " ".join(self._held.split()).strip("\"'*. ").upper()
        if REFUSAL in begun:
            self.said = True
            return ""
        if REFUSAL.startswith(begun):
            return ""
        shown, self._held = self._held, None
        return shown

    def finish(self) -> str:
        held, self._held = self._held, None
        return held or ""


class Showing:
    """The text that an answer has shown so far, in several parts if the pipeline wants: its citations, and the checks
    of each part."""

    def __init__(self, *, copied: bool = False) -> None:
        self._copied = copied
        self.citations = Citations()
        self.checks: list[Grounding] = []

    @property
    def unsupported(self) -> tuple[Unsupported, ...]:
        return tuple(found for check in self.checks for found in check.unsupported)

    def whole(
        self, text: str, passages: Sequence[Hit], *, question: str | None = None, judge: Judge | None = None
    ) -> str:
        """The text to show for a finished part, which was written from `passages`. It is checked as an answer to
        `question`, if that is given."""
        check = self._check(question, passages, judge)
        if check is not None:
            text = check.feed(text) + check.finish()
        reader = self.citations.reader(passages)
        return reader.feed(text) + reader.finish()

    def begin(self, passages: Sequence[Hit], *, question: str | None = None, judge: Judge | None = None) -> GrowingText:
        return GrowingText(self.citations.reader(passages), self._check(question, passages, judge))

    def _check(self, question: str | None, passages: Sequence[Hit], judge: Judge | None) -> Grounding | None:
        if question is None:
            return None
        self.checks.append(Grounding(question, passages, judge, copied=self._copied))
        return self.checks[-1]


class GrowingText:
    def __init__(self, reader: MarkReader, check: Grounding | None) -> None:
        self._reader = reader
        self._check = check
        self._refusal = Refusal()

    @property
    def refused(self) -> bool:
        return self._refusal.said

    @property
    def loops(self) -> bool:
        return self._check is not None and self._check.loops

    def feed(self, piece: Piece) -> str:
        if isinstance(piece, Quoted):
            return self._reader.feed(piece.text, quoted=True)
        text = self._refusal.feed(piece.text)
        return self._reader.feed(text if self._check is None else self._check.feed(text), quoted=False)

    def finish(self, *, complete: bool) -> Iterator[str]:
        """Yields the rest of the text; without an unfinished mark at its end, unless it is `complete`."""
        text = self._refusal.finish()
        if self._check is not None:
            text = self._check.feed(text) + self._check.finish()
        if text := self._reader.feed(text):
            yield text
        if complete and (text := self._reader.finish()):
            yield text
