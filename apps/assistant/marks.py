"""Citation marks: tells the brackets that cite a passage from the brackets copied out of the documents.

A paper refers to its literature as [2], and `frame[3]` is code. When a generator copies such brackets, they must not
be read or shown as citations of passages. A document's own [2] is therefore shown as [ 2 ] where the answer could have
a citation of that number.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

MARK = re.compile(r"\[\s*(?:passages?|sources?)?\s*(\d{1,3}(?:\s*(?:[,;&–-]|and)\s*\d{1,3})*)\s*\]", re.IGNORECASE)
_MARK_BEGUN = re.compile(r"\[[\sa-z0-9,;&–-]*", re.IGNORECASE)
_LONGEST_MARK = 40
_RANGE = re.compile(r"(\d+)\s*[–-]\s*(\d+)")
_NAME = re.compile(r"(?<![^\W_])[A-Za-z_][A-Za-z0-9_]*$")
"""A name that code may index, at the end of a text. Only ASCII names count, because Chinese text has no space before a
citation mark."""

_LAST_WORD = re.compile(r"(\S+)(\s*)$")
_TICKS = re.compile(r"`+")
_FENCE = 3
_PAST = 80
"""The characters before a mark that are compared with the passages, to tell whether the mark was copied."""


class Sources:
    """The texts of passages, searched for marks."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = [" ".join(text.split()) for text in texts]

    def index(self, before: str) -> bool:
        """Whether a bracket after `before` is an index in code: it directly follows a name that a passage indexes."""
        name = _NAME.search(before)
        if name is None:
            return False
        indexed = re.compile(rf"(?<!\w){name[0]}\[")
        return any(indexed.search(text) for text in self._texts)

    def hold(self, mark: str, before: str | None = None) -> bool:
        """Whether a passage holds a mark; if `before` is given, whether it holds the mark after the same word."""
        if before is not None:
            word = _LAST_WORD.search(before)
            if word is None:
                return False
            mark = f"{word[1]}{' ' if word[2] else ''}{mark}"
        return any(mark in text for text in self._texts)


class MarkReader:
    """Replaces the citation marks of a streamed text by the answer's numbers.

    Marks of passages that were not given are left out, except where a passage holds the mark: then it was copied from
    the document, and stays. A mark directly behind a quotation is never copied, because quotations are told apart from
    what is written around them. Brackets in code stay unchanged.
    """

    def __init__(self, passages: Sequence[str], number: Callable[[int], int], highest: Callable[[], int]) -> None:
        """
        Args:
            passages: the texts of the passages.
            number: maps a passage's place in the prompt, from 1, to its number in the answer.
            highest: gives the highest number in the answer so far.
        """
        self._count = len(passages)
        self._sources = Sources(passages)
        self._number = number
        self._highest = highest
        self._held = ""
        self._past = ""
        self._quoting = False
        self._after_quotation = False
        self._fenced = False
        self._ticks = 0
        """The length of the run of backticks that may have begun code on this line."""

    def feed(self, text: str, *, quoted: bool = False) -> str:
        """Takes a piece of text and returns the text that can be shown now. An unfinished mark is held back.

        Args:
            quoted: the piece is quoted word for word from a document, so all its marks are the document's own.
        """
        before = "" if quoted == self._quoting else self.finish()
        self._quoting = quoted
        self._after_quotation = quoted or (self._after_quotation and not MARK.sub("", text).strip())
        return before + self._read(self._held + text, last=False)

    def finish(self) -> str:
        """Ends the text and returns the part that was held back."""
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
        """Reads the next part of a text: a mark, a run of backticks or a character.

        Returns:
            The text to show for it, and the position where it ends; None if more text is needed to decide.
        """
        char = text[at]
        if char == "\n":
            self._ticks = 0
        if char == "`":
            return self._code(text, at, last)
        # A space is decided together with the next part: if a mark is left out, the space before it goes, too.
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
        """Reads a run of backticks, which begins or ends code."""
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
        """Whether the text before `rest` is inside code. A backtick that is never closed begins no code. None if more
        text is needed to tell."""
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
        """The text to show for a mark; empty if it is left out."""
        mark, numbers = match[0], numbers_of(match[1])
        places = [number for number in numbers if 1 <= number <= self._count]
        if self._sources.index(before) or (_NAME.search(before) and (self._quoting or 0 in numbers)):
            return mark
        copied = not self._after_quotation and self._sources.hold(mark, before if places else None)
        if self._quoting or copied:
            highest = max(self._count, self._highest())
            return f"[ {mark[1:-1].strip()} ]" if all(1 <= number <= highest for number in numbers) else mark
        return marks_of(self._number(place) for place in places)


def numbers_of(inside: str) -> list[int]:
    """The numbers of a mark, which may be a list, `1, 3`, or a range, `1-3`."""
    if (span := _RANGE.fullmatch(inside.strip())) and 0 <= int(span[2]) - int(span[1]) < 10:
        return list(range(int(span[1]), int(span[2]) + 1))
    return [int(number) for number in re.findall(r"\d+", inside)]


def marks_of(numbers: Iterable[int | None]) -> str:
    """The marks of these numbers, without duplicates. None is left out."""
    return "".join(f"[{number}]" for number in dict.fromkeys(numbers) if number is not None)
