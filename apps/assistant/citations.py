"""Numbered citations: they map a generator's marks to passages, and passages to lines of files.

A prompt numbers its passages 1, 2, 3 in order, and the generator refers to them as [2]. An answer may come from several
prompts with different passages. Its passages are therefore numbered anew, in the order in which the text first refers
to them, while it streams.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from edge.apps.assistant.marks import MARK, MarkReader, Sources, marks_of
from edge.apps.assistant.units import Unit, units
from edge.apps.collection.hits import Hit
from edge.apps.collection.snippets import stem
from edge.apps.documents.kinds import Part
from edge.text.sentences import sentences

_MARK_OR_CODE = re.compile(rf"`[^`\n]*`|{MARK.pattern}", re.IGNORECASE)
_OWN = re.compile(r"\[(\d+)\]")
_ENDING = re.compile(r"""[\s.!?…。！？"'”’)\]」』]+$""")
_CLOSED = re.compile(r"""([.!?…。！？]["'”’)\]」』]*)\s*((?:\[\d+\])+)""")

_MARKED = re.compile(r".*?(?:\[\d+\])+(?:[^\[]*$)?")
"""Words and the marks behind them; what follows the last marks of a sentence belongs to them."""


@dataclass(frozen=True, slots=True)
class Citation:
    """A passage that an answer refers to.

    Attributes:
        number: the citation's number in the answer.
        id: the id of the passage's chunk.
        path: the file's absolute path; or the id under which a text was added.
        line: the line of the file that supports the answer's statement, as exactly as it can be found.
        line_start, line_end: the first and last line of the passage, from 1, both included.
        page: page, slide or chapter, for formats that have them.
        title: the title of the file.
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
        """The citation in the form that `--json` prints."""
        return {
            "number": self.number, "id": self.id, "path": self.path, "line": self.line,
            "line_start": self.line_start, "line_end": self.line_end, "page": self.page, "title": self.title,
            "snippet": self.quote, "score": self.score,
        }  # fmt: skip


class Citations:
    """The passages that one answer cites, numbered in the order in which it first refers to them."""

    def __init__(self) -> None:
        self._cited: list[Hit] = []

    def reader(self, passages: Sequence[Hit]) -> MarkReader:
        """A reader for a text that refers to these passages by their place, from 1."""
        return MarkReader(
            [hit.text for hit in passages], lambda place: self.number(passages[place - 1]), lambda: len(self._cited)
        )

    def number(self, passage: Hit) -> int:
        """The answer's number of a passage; a new number if the answer has not referred to it yet. A later round may
        find a longer version of a passage, joined with its neighbour. It replaces the shorter version."""
        for number, known in enumerate(self._cited, 1):
            if known.id == passage.id:
                if _covers(passage, known):
                    self._cited[number - 1] = passage
                return number
        self._cited.append(passage)
        return len(self._cited)

    def prompted(self, text: str, passages: Sequence[Hit]) -> str:
        """An answer's text with the numbers that a prompt gives to these passages, as a generator would write it. Marks
        of other passages are left out; the documents' own marks stay."""
        cited = {hit.id for hit in self._cited}
        places = {self.number(hit): place for place, hit in enumerate(passages, 1) if hit.id in cited}
        sources = Sources(hit.text for hit in (*self._cited, *passages))

        def written(match: re.Match[str]) -> str:
            own = _OWN.fullmatch(match[0])
            if own is None:  # code, or a document's own mark in the form [ 2 ] that `MarkReader` gave it
                return re.sub(r"^\[ (.*) \]$", r"[\1]", match[0])
            if not 1 <= int(own[1]) <= len(self._cited) or sources.index(text[: match.start()]):
                return match[0]
            return marks_of([places.get(int(own[1]))])

        return re.sub(r" +(?=[.,;:!?])", "", _MARK_OR_CODE.sub(written, text))

    def of(self, text: str, given: Sequence[Hit] = ()) -> tuple[Citation, ...]:
        """The citations of a finished text.

        Args:
            given: the passages that the generator was given; they are cited if the text refers to none.
        """
        if not self._cited and text:
            for hit in given:
                self.number(hit)
        return tuple(_citation(number, hit, _statement(text, number)) for number, hit in enumerate(self._cited, 1))


def _covers(passage: Hit, known: Hit) -> bool:
    (first, last), (start, end) = passage.ordinals, known.ordinals
    return first <= start and end <= last


def _statement(text: str, number: int) -> str:
    """The first statement with the mark of a number, since answers begin with the main statement; the whole text if
    none has the mark. A statement is a sentence, or a part of it that ends in marks: rows and items have no full
    stop."""
    # A mark after the full stop belongs to the sentence before it.
    lines = _CLOSED.sub(r" \2\1", text).splitlines()
    found = next((s for line in lines for s in sentences(line) if f"[{number}]" in s), text)
    return next((part for part in _MARKED.findall(found) if f"[{number}]" in part), found)


def _citation(number: int, hit: Hit, statement: str) -> Citation:
    at, quote = support(hit.text, statement, hit.kinds)
    line = hit.line_at(at)
    return Citation(
        number, hit.id, hit.path, line, hit.line_start, hit.line_end, hit.page, hit.title, quote, hit.stages.relevance
    )


QUOTE_CHARS = 240
"""Longest quote in characters, without the ellipsis that marks a cut."""

# Scripts without spaces between words: Thai, Chinese, Japanese. A character stands for a word there.
_UNSPACED = "[\u0e00-\u0e7f\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]"
_WORD = re.compile(rf"{_UNSPACED}|(?:(?!{_UNSPACED})[^\W_])+")

Span = tuple[int, int]


def support(passage: str, statement: str, kinds: tuple[Part, ...] = ()) -> tuple[int, str]:
    """The part of a passage that supports a statement best.

    The longest part that the statement quotes word for word comes before all others. Otherwise it is the part that
    shares the most words with the statement; of two equal parts the shorter one; and the passage's beginning if no
    part shares a word.

    Args:
        kinds: those of the passage's parts, as for `units`.

    Returns:
        The position of that part's nearest line, in characters from the passage's beginning; and the part on one
        line, cut to `QUOTE_CHARS`.
    """
    wanted = set(_stems(statement))
    quoted = " ".join(statement.split())
    words = _ENDING.sub("", MARK.sub("", quoted))
    parts = [unit for unit in units(passage, kinds) if unit.kind != "navigation"]
    parts = parts or [Unit(" ".join(passage.split()), "sentence", 0, len(passage))]

    def worth(unit: Unit) -> tuple[int, int, int]:
        text, own = _stems(unit.text), _stems(f"{unit.text} {passage[unit.start : unit.end]}")
        both = len(wanted.intersection(own))
        same = len(text) > 1 and _ENDING.sub("", unit.text) in words
        return len(text) if same else 0, both, -len(own) if both else 0

    best = max(parts, key=worth)
    if best.kind == "row":
        return passage.rfind("\n", 0, best.start) + 1, _cut(best.text)
    lines = _lines(passage, (best.start, best.end))
    line, _ = (
        lines[0]
        if best.text in quoted
        else max(lines, key=lambda span: len(wanted.intersection(_stems(passage[slice(*span)]))))
    )
    # A part that is too long to be quoted whole is quoted from its nearest line on.
    quote = best.text if best.end - best.start <= QUOTE_CHARS else " ".join(passage[line : best.end].split())
    return line, _cut(quote)


def _lines(text: str, span: Span) -> list[Span]:
    """The spans of the lines of a part of a text, without blank lines; the whole span if all lines are blank."""
    at, found = span[0], []
    for line in text[slice(*span)].split("\n"):
        if line.strip():
            found.append((at, at + len(line)))
        at += len(line) + 1
    return found or [span]


def _cut(quote: str) -> str:
    if len(quote) <= QUOTE_CHARS:
        return quote
    end = quote.rfind(" ", QUOTE_CHARS // 2, QUOTE_CHARS + 1)
    return quote[: end if end >= 0 else QUOTE_CHARS] + " …"


def _stems(text: str) -> Sequence[str]:
    return [stem(word) for word in _WORD.findall(text)]
