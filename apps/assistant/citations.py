"""Numbered citations: from the marks a generator writes to passages, and from passages to lines of files.

A prompt numbers its passages 1, 2, 3 in the order it gives them, and the generator refers to them as [2]. An answer may
come from several prompts with different passages, so its own numbers are given in the order in which passages are first
referred to, while the text streams.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from edge.apps.assistant.replies import sentences
from edge.apps.collection.hits import Hit
from edge.apps.collection.snippets import stem

_MARK = re.compile(r"\[\s*(?:passages?|sources?)?\s*(\d{1,3}(?:\s*(?:[,;&–-]|and)\s*\d{1,3})*)\s*\]", re.IGNORECASE)
_MARK_BEGUN = re.compile(r"\[[\sa-z0-9,;&–-]*", re.IGNORECASE)
_LONGEST_MARK = 40
_RANGE = re.compile(r"(\d+)\s*[–-]\s*(\d+)")
_WORD = re.compile(r"[^\W_]+")
_QUOTE_CHARS = 240


@dataclass(frozen=True, slots=True)
class Citation:
    """A passage that an answer refers to.

    Attributes:
        number: what the answer calls it.
        id: of the passage's chunk.
        path: the file, absolute; or the id under which a text was added.
        line: where in the file the answer's statement is found, as near as the passage's lines tell.
        line_start, line_end: lines of the passage, from 1, the last one included.
        page: page, slide or chapter, where the format has them.
        title: of the file.
        quote: the passage's sentence nearest to the statement.
        score: the reranker's probability that the passage answers the question; None without reranking.
    """

    number: int
    id: int
    path: str
    line: int
    line_start: int
    line_end: int
    page: int | None
    title: str
    quote: str
    score: float | None

    @property
    def place(self) -> str:
        """`path:line`, which editors open, or `path p. N` where the format has pages."""
        return f"{self.path}:{self.line}" if self.page is None else f"{self.path} p. {self.page}"

    def to_json(self) -> dict[str, Any]:
        """As `--json` prints it."""
        return {
            "number": self.number, "id": self.id, "path": self.path, "line": self.line,
            "line_start": self.line_start, "line_end": self.line_end, "page": self.page, "title": self.title,
            "snippet": self.quote, "score": self.score,
        }  # fmt: skip


class Citations:
    """The passages of one answer, numbered as they are first referred to."""

    def __init__(self) -> None:
        self._cited: list[Hit] = []

    def reader(self, passages: Sequence[Hit]) -> MarkReader:
        """Reads a text that refers to these passages by their place, from 1."""
        return MarkReader(self, passages)

    def number(self, passage: Hit) -> int:
        """The answer's number of a passage; a new one if the answer has not referred to it yet."""
        for number, known in enumerate(self._cited, 1):
            if known.id == passage.id:
                return number
        self._cited.append(passage)
        return len(self._cited)

    def prompted(self, text: str, passages: Sequence[Hit]) -> str:
        """An answer's text with the numbers that a prompt gives to these passages; marks of others are left out."""
        places = {self.number(hit): place for place, hit in enumerate(passages, 1) if self._knows(hit)}
        return _without_holes(_MARK.sub(lambda match: _marks(places.get(n) for n in _numbers(match[1])), text))

    def of(self, text: str, given: Sequence[Hit] = ()) -> tuple[Citation, ...]:
        """The citations of a finished text.

        Args:
            given: passages to name if the text refers to none: what the generator was given to read.
        """
        if not self._cited:
            for hit in given:
                self.number(hit)
        return tuple(_citation(number, hit, _statements(text, number)) for number, hit in enumerate(self._cited, 1))

    def _knows(self, passage: Hit) -> bool:
        return any(known.id == passage.id for known in self._cited)


class MarkReader:
    """Turns a streamed text's marks into the answer's numbers; marks of passages that were not given are left out."""

    def __init__(self, citations: Citations, passages: Sequence[Hit]) -> None:
        self._citations = citations
        self._passages = passages
        self._held = ""
        self._in_code = False

    def feed(self, text: str) -> str:
        """What can be shown after this piece; a mark that has only begun is held back."""
        return self._read(self._held + text, last=False)

    def finish(self) -> str:
        """What was held back when the text has ended."""
        return self._read(self._held, last=True)

    def _read(self, text: str, *, last: bool) -> str:
        out, at = [], 0
        self._held = ""
        while at < len(text):
            char = text[at]
            if char == "`":
                self._in_code = not self._in_code
            # A blank waits for what follows: it goes with a mark that is left out.
            start = at + (char == " ")
            if not self._in_code and text[start : start + 1] == "[":
                if match := _MARK.match(text, start):
                    marks = _marks(self._number(n) for n in _numbers(match[1]))
                    out.append(char * (start - at) + marks if marks else "")
                    at = match.end()
                    continue
                begun = _MARK_BEGUN.match(text, start)
                assert begun is not None
                if not last and begun.end() == len(text) and len(text) - start < _LONGEST_MARK:
                    self._held = text[at:]
                    break
            elif char == " " and start == len(text) and not last:
                self._held = " "
                break
            out.append(char)
            at += 1
        return "".join(out)

    def _number(self, place: int) -> int | None:
        return self._citations.number(self._passages[place - 1]) if 1 <= place <= len(self._passages) else None


def _numbers(inside: str) -> list[int]:
    """The numbers of a mark: `1, 3` and `1-3`."""
    if (span := _RANGE.fullmatch(inside.strip())) and 0 <= int(span[2]) - int(span[1]) < 10:
        return list(range(int(span[1]), int(span[2]) + 1))
    return [int(number) for number in re.findall(r"\d+", inside)]


def _marks(numbers: Any) -> str:
    return "".join(f"[{number}]" for number in dict.fromkeys(numbers) if number is not None)


def _without_holes(text: str) -> str:
    return re.sub(r" +(?=[.,;:!?])", "", text)


def _statements(text: str, number: int) -> str:
    """The sentences that carry a mark; the whole text if none does."""
    # A mark after the full stop belongs to the sentence before it.
    joined = re.sub(r"([.!?])\s*((?:\[\d+\])+)", r" \2\1", text)
    return " ".join(s for s in sentences(joined) if f"[{number}]" in s) or text


def _citation(number: int, hit: Hit, statement: str) -> Citation:
    line, quote = _support(hit, statement)
    return Citation(
        number, hit.id, hit.path, line, hit.line_start, hit.line_end, hit.page, hit.title, quote, hit.stages.relevance
    )


def _support(hit: Hit, statement: str) -> tuple[int, str]:
    """The line and the sentence of a passage that share the most words with a statement."""
    wanted = set(_stems(statement))
    best = max(sentences(hit.text) or [hit.text], key=lambda sentence: _overlap(sentence, wanted))
    quote = " ".join(best.split())
    quote = quote if len(quote) <= _QUOTE_CHARS else quote[: quote.rfind(" ", 0, _QUOTE_CHARS)] + " …"
    lines = hit.text.split("\n")
    if len(lines) != hit.line_end - hit.line_start + 1:
        return hit.line_start, quote  # the text was laid out anew: its lines are not the file's
    start = hit.text.find(best)
    return hit.line_start + hit.text.count("\n", 0, max(0, start)), quote


def _overlap(sentence: str, wanted: set[str]) -> float:
    """Shared words; of two sentences with as many the shorter one."""
    stems = _stems(sentence)
    return len(wanted & set(stems)) - 1e-3 * len(stems)


def _stems(text: str) -> list[str]:
    return [stem(word) for word in _WORD.findall(text)]
