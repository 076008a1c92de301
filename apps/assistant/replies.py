"""Reads a generator's replies: verdicts, lists of questions, a refusal, the thinking before a reply, and its time.

Models often do not keep to the requested form. Every parser therefore takes the nearest meaning, and returns None where
there is none.
"""

from __future__ import annotations

import re
import time
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import cast

from edge.apps.assistant.prompts import REFUSAL
from edge.errors import InputError
from edge.runtimes.generation.base import Piece

_WORD = re.compile(r"[^\W_]+")
_NUMBER = re.compile(r"\d+")
_BULLET = re.compile(r"^\s*(?:[-*•–]|\(?\d{1,2}[.):]|[a-z][.)])\s+", re.IGNORECASE)
_LABEL = re.compile(r"^\s*(?:sub-?question|question|query|q)\s*\d*\s*[:.)]\s*", re.IGNORECASE)

_YES = {"yes", "y", "true", "correct", "fully", "full", "completely", "sure"}
_NO = {"no", "n", "false", "not", "none", "never", "incorrect"}
_PARTLY = {"partly", "partially", "partial", "somewhat"}


def verdict(reply: str) -> bool | None:
    """True for yes, False for no; None when the reply is neither."""
    for word in _words(reply)[:4]:
        if word in _YES:
            return True
        if word in _NO:
            return False
    return None


def support(reply: str) -> float | None:
    """1 for fully, 0.5 for partly, 0 for not supported; None when the reply is none of these."""
    for word in _words(reply)[:4]:
        for value, names in ((0.5, _PARTLY), (0.0, _NO), (1.0, _YES)):
            if word in names:
                return value
    return None


def grade(reply: str, *, least: int = 1, most: int = 5) -> int | None:
    """The first number of a reply; None if there is none or it lies outside the range."""
    match = _NUMBER.search(reply)
    value = int(match[0]) if match else None
    return value if value is not None and least <= value <= most else None


def refused(reply: str) -> bool:
    """Whether a reply is the refusal that the generator was told to give."""
    return REFUSAL in " ".join(reply.split()).upper()


def questions(reply: str, most: int) -> list[str]:
    """The questions of a list, without numbers, bullets and duplicates. Introductory lines are left out."""
    found: list[str] = []
    lines = [line for line in reply.splitlines() if line.strip()]
    asked = [line for line in lines if line.rstrip().endswith("?")] or [
        x for x in lines if not x.rstrip().endswith(":")
    ]
    for line in asked:
        text = _LABEL.sub("", _BULLET.sub("", line)).strip().strip('"*').strip()
        if _words(text) and text.casefold() not in {known.casefold() for known in found}:
            found.append(text)
    return found[:most]


def one_line(reply: str) -> str:
    """The first line that has words, without label and quotes; for replies that should be a single question."""
    for line in reply.splitlines():
        text = _LABEL.sub("", _BULLET.sub("", line)).strip().strip('"').strip()
        if _words(text):
            return text
    return ""


def _words(text: str) -> list[str]:
    return [word.casefold() for word in _WORD.findall(text)]


class Refusal:
    """Holds a reply back while it may still be the refusal that the generator was told to give.

    Attributes:
        said: whether the reply was the refusal.
    """

    def __init__(self) -> None:
        self.said = False
        self._held: str | None = ""

    def feed(self, text: str) -> str:
        """Takes a piece of the reply and returns the text that can be shown now."""
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
        """Ends the reply and returns the text that was held back."""
        held, self._held = self._held, None
        return held or ""


_OPEN, _CLOSE = "<think>", "</think>"


class Thinking:
    """Leaves out `<think>...</think>` at the beginning of a reply, and the empty lines after it. Elsewhere in a reply
    the tags are ordinary text.

    Attributes:
        under_way: whether the reply began with thinking that has not ended.
    """

    def __init__(self) -> None:
        self.under_way = False
        self._replying = False
        self._held: list[Piece] = []
        self._thought = ""

    def feed(self, piece: Piece) -> list[Piece]:
        """Takes a token and returns the tokens that are now known to belong to the reply."""
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
        """Checks that a finished reply was more than thinking. An empty reply would otherwise be read as no answer.

        Args:
            generator: the generator's name.
            longest: the token limit of the reply, if it was reached; None if the reply ended by itself.
            most: the user's token limit for an answer. If the step's own limit was lower, the message does not advise
                to raise it.

        Raises:
            InputError: the reply was nothing but thinking.
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
        """Ends the reply and returns the tokens that were held back."""
        held, self._held = self._held, []
        self._replying = bool(held)
        return held


@dataclass(slots=True)
class GeneratorClock:
    """Times one answer. The time that the reader spends between two tokens does not count.

    Attributes:
        first: seconds to the first token.
        seconds: seconds to the last token.
        count: the number of tokens.
    """

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
