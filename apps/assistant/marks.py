"""Marks in text: which brackets are an answer's citations, and which are the documents' own.

A paper refers to its literature as [2], and `frame[3]` is code. A generator that copies either must not be taken to
cite a passage, and what it copied must not look as if it did: a document's own [2] is shown as [ 2 ] where the answer
could have a citation of that number.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

MARK = re.compile(r"\[\s*(?:passages?|sources?)?\s*(\d{1,3}(?:\s*(?:[,;&–-]|and)\s*\d{1,3})*)\s*\]", re.IGNORECASE)
_MARK_BEGUN = re.compile(r"\[[\sa-z0-9,;&–-]*", re.IGNORECASE)
_LONGEST_MARK = 40
_RANGE = re.compile(r"(\d+)\s*[–-]\s*(\d+)")
_NAME = re.compile(r"(?<![^\W_])[A-Za-z_][A-Za-z0-9_]*$")
"""What code gives an index to. Not just any word: Chinese has no space before a mark either."""

_LAST_WORD = re.compile(r"(\S+)(\s*)$")
_TICKS = re.compile(r"`+")
_FENCE = 3
_PAST = 80
"""Characters before a mark that are looked at, to tell whether it was copied from a passage."""


class Sources:
    """The texts of passages, and whether a mark stands in them."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = [" ".join(text.split()) for text in texts]

    def index(self, before: str) -> bool:
        """Whether a bracket after `before` is an index: it follows a name without a space, as in a passage."""
        name = _NAME.search(before)
        if name is None:
            return False
        indexed = re.compile(rf"(?<!\w){name[0]}\[")
        return any(indexed.search(text) for text in self._texts)

    def hold(self, mark: str, before: str | None = None) -> bool:
        """Whether a mark stands in a passage; if `before` is given, after the same word."""
        if before is not None:
            word = _LAST_WORD.search(before)
            if word is None:
                return False
            mark = f"{word[1]}{' ' if word[2] else ''}{mark}"
        return any(mark in text for text in self._texts)


class MarkReader:
    """Turns a streamed text's marks into the answer's numbers.

    Marks of passages that were not given are left out, unless a passage has them: then they are the document's own, and
    stay. Brackets in code stay as they are.
    """

    def __init__(self, passages: Sequence[str], number: Callable[[int], int], highest: Callable[[], int]) -> None:
        """
        Args:
            passages: their texts.
            number: gives the answer's number of the passage at a place, from 1.
            highest: gives the highest number that the answer has so far.
        """
        self._count = len(passages)
        self._sources = Sources(passages)
        self._number = number
        self._highest = highest
        self._held = ""
        self._past = ""
        self._quoting = False
        self._fenced = False
        self._ticks = 0
        """Length of the run of backticks that may have begun code on this line."""

    def feed(self, text: str, *, quoted: bool = False) -> str:
        """What can be shown after this piece; a mark that has only begun is held back.

        Args:
            quoted: it is a document's, word for word: all marks in it are the document's own.
        """
        before = "" if quoted == self._quoting else self.finish()
        self._quoting = quoted
        return before + self._read(self._held + text, last=False)

    def finish(self) -> str:
        """What was held back when the text has ended."""
        return self._read(self._held, last=True)

    def _read(self, text: str, *, last: bool) -> str:
        out, at = [], 0
        self._held = ""
        while at < len(text):
            read = self._next(text, at, last)
            if read is None:
                self._held = text[at:]
                break
            shown, end = read
            out.append(shown)
            self._past = (self._past + text[at:end])[-_PAST:]
            at = end
        return "".join(out)

    def _next(self, text: str, at: int, last: bool) -> tuple[str, int] | None:
        """What is shown for what stands at `at`, and where that ends; None if what follows has to be seen first."""
        char = text[at]
        if char == "\n":
            self._ticks = 0
        if char == "`":
            return self._code(text, at, last)
        # A blank waits for what follows: it goes with a mark that is left out.
        blank = " " if char == " " else ""
        start = at + len(blank)
        if start == len(text):
            return (char, start) if last else None
        match = MARK.match(text, start)
        if match is None:
            begun = _MARK_BEGUN.match(text, start)
            waits = begun is not None and begun.end() == len(text) and len(text) - start < _LONGEST_MARK
            return (char, at + 1) if last or not waits else None
        code = self._within_code(text[match.end() :], last)
        if code is None:
            return None
        shown = match[0] if code else self._mark(match, self._past + blank)
        return (blank + shown if shown else ""), match.end()

    def _code(self, text: str, at: int, last: bool) -> tuple[str, int] | None:
        """Goes over a run of backticks, which begins or ends code."""
        run = _TICKS.match(text, at)
        assert run is not None
        if run.end() == len(text) and not last:
            return None
        if len(run[0]) >= _FENCE and not self._past.rpartition("\n")[2].strip():
            self._fenced, self._ticks = not self._fenced, 0
        elif not self._ticks:
            self._ticks = len(run[0])
        elif self._ticks == len(run[0]):
            self._ticks = 0
        return run[0], run.end()

    def _within_code(self, rest: str, last: bool) -> bool | None:
        """Whether what stands before `rest` is code; a lone backtick does not make it so. None if that is to be
        seen."""
        if self._fenced or not self._ticks:
            return self._fenced
        line, ended, _ = rest.partition("\n")
        for run in _TICKS.finditer(line):
            if run.end() == len(rest) and not last:
                return None
            if len(run[0]) == self._ticks:
                return True
        return False if ended or last else None

    def _mark(self, match: re.Match[str], before: str) -> str:
        """A mark as it is shown; empty if it is left out."""
        mark, numbers = match[0], numbers_of(match[1])
        places = [number for number in numbers if 1 <= number <= self._count]
        if self._sources.index(before) or (_NAME.search(before) and (self._quoting or 0 in numbers)):
            return mark
        if self._quoting or self._sources.hold(mark, before if places else None):
            highest = max(self._count, self._highest())
            return f"[ {mark[1:-1].strip()} ]" if all(1 <= number <= highest for number in numbers) else mark
        return marks_of(self._number(place) for place in places)


def numbers_of(inside: str) -> list[int]:
    """The numbers of a mark: `1, 3` and `1-3`."""
    if (span := _RANGE.fullmatch(inside.strip())) and 0 <= int(span[2]) - int(span[1]) < 10:
        return list(range(int(span[1]), int(span[2]) + 1))
    return [int(number) for number in re.findall(r"\d+", inside)]


def marks_of(numbers: Iterable[int | None]) -> str:
    """Marks of these numbers, each once; None is left out."""
    return "".join(f"[{number}]" for number in dict.fromkeys(numbers) if number is not None)
