"""Numbered citations: a generator's marks become passages, and passages lines of files. A prompt numbers its passages
1, 2, 3; an answer of several prompts numbers them anew, by their first mention. A document's own [2] is shown as [ 2 ],
since a text may imitate the list of sources below an answer; `frame[3]` is code."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from edge.apps.assistant.units import Unit, units
from edge.apps.collection.hits import Hit
from edge.apps.collection.query import stems
from edge.apps.documents.base import Mail, place_in
from edge.apps.documents.kinds import Part, line_spans
from edge.text.sentences import sentences

MARK = re.compile(r"\[\s*(?:(?:passages?|sources?)\s*)?(\d{1,3}(?:\s*(?:[,;&–-]|and)\s*\d{1,3})*)\s*\]", re.IGNORECASE)
_MARK_BEGUN = re.compile(r"\[[\sa-z0-9,;&–-]*", re.IGNORECASE)
_LONGEST_MARK = 40
_RANGE = re.compile(r"(\d+)\s*[–-]\s*(\d+)")
_NAME = re.compile(r"(?<![^\W_])[A-Za-z_][A-Za-z0-9_]*$")
"""A name that code may index, at the end of a text. Only ASCII names count, because Chinese text has no space before a
citation mark."""

_LAST_WORD = re.compile(r"(\S+)(\s*)$")
_TICKS = re.compile(r"`+")
_FENCE = 3
_MOST_CITED = 99
_PAST = 80
"""The characters before a mark that are compared with the passages, to tell whether the mark was copied."""


class Sources:
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
    """Replaces the citation marks of a streamed text by the answer's numbers. Marks of passages that were not given are
    left out, unless a passage holds the mark: then it was copied, and stays. So do brackets in code. A mark right
    behind a quotation is never copied."""

    def __init__(self, passages: Sequence[str], number: Callable[[int], int]) -> None:
        """`number` maps a passage's place in the prompt, from 1, to its number in the answer."""
        self._count = len(passages)
        self._sources = Sources(passages)
        self._number = number
        self._held = ""
        self._past = ""
        self._quoting = False
        self._after_quotation = False
        self._fenced = False
        self._ticks = 0
        """The length of the run of backticks that may have begun code on this line."""

    def feed(self, text: str, *, quoted: bool = False) -> str:
        """Takes a piece of text and returns what can be shown now; an unfinished mark is held back. All marks of a
        `quoted` piece are the document's own."""
        before = "" if quoted == self._quoting else self.finish()
        self._quoting = quoted
        self._after_quotation = quoted or (self._after_quotation and not MARK.sub("", text).strip())
        return before + self._read(self._held + text, last=False)

    def finish(self) -> str:
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
        """Reads a mark, a run of backticks or a character: the text to show for it and its end; None if more text is
        needed."""
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
        mark, numbers = match[0], numbers_of(match[1])
        places = [number for number in numbers if 1 <= number <= self._count]
        if self._sources.index(before) or (_NAME.search(before) and (self._quoting or 0 in numbers)):
            return mark
        copied = not self._after_quotation and self._sources.hold(mark, before if places else None)
        if self._quoting or copied:
            return own_marks(mark)
        return marks_of(self._number(place) for place in places)


def own_marks(text: str) -> str:
    """A document's text with its own marks in the form `[ 2 ]`, in which they are no citations. Numbers that no answer
    has citations for stay: `[0-9]` and `[80, 443]`."""

    def spaced(mark: re.Match[str]) -> str:
        are_citations = all(1 <= number <= _MOST_CITED for number in numbers_of(mark[1]))
        return f"[ {mark[0][1:-1].strip()} ]" if are_citations else mark[0]

    return MARK.sub(spaced, text)


def numbers_of(inside: str) -> list[int]:
    """The numbers of a mark, which may be a list, `1, 3`, or a range, `1-3`."""
    if (span := _RANGE.fullmatch(inside.strip())) and 0 <= int(span[2]) - int(span[1]) < 10:
        return list(range(int(span[1]), int(span[2]) + 1))
    return [int(number) for number in re.findall(r"\d+", inside)]


def marks_of(numbers: Iterable[int | None]) -> str:
    return "".join(f"[{number}]" for number in dict.fromkeys(numbers) if number is not None)


_MARK_OR_CODE = re.compile(rf"`[^`\n]*`|{MARK.pattern}", re.IGNORECASE)
_OWN = re.compile(r"\[(\d+)\]")
_END = r"""[\s.!?…。！？"'”’)\]」』]"""
_ENDING = re.compile(f"(?<!{_END}){_END}+$")
"""Tried once in a run of such characters, so that a long run within a text takes no more than linear time."""

_CLOSED = re.compile(r"""([.!?…。！？]["'”’)\]」』]*)\s*((?:\[\d+\])+)""")

_MARKS = re.compile(r"(?:\[\d+\])+")


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
        collection: name of the passage's collection, if several were asked together.
        mail: the mail that the passage is from, if it is from one.
        kind: the kind of the file.
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
    collection: str = ""
    mail: Mail | None = None
    kind: str = ""

    @property
    def place(self) -> str:
        """`path:line`, which editors open, or `path p. N` where the format has pages."""
        return self.path + place_in(self.kind, self.line, self.page, self.mail)

    def to_json(self) -> dict[str, Any]:
        """The citation in the form that `--json` prints."""
        found = asdict(self)
        found["snippet"] = found.pop("quote")
        return {name: value for name, value in found.items() if name not in ("collection", "mail") or value}


class Citations:
    """The passages that one answer cites, numbered in the order in which it first refers to them."""

    def __init__(self) -> None:
        self._cited: list[Hit] = []

    def reader(self, passages: Sequence[Hit]) -> MarkReader:
        return MarkReader([hit.text for hit in passages], lambda place: self.number(passages[place - 1]))

    def number(self, passage: Hit) -> int:
        """The answer's number of a passage, a new one on its first mention. A longer version of the passage replaces
        it."""
        for number, known in enumerate(self._cited, 1):
            if known.key == passage.key:
                if _covers(passage, known):
                    self._cited[number - 1] = passage
                return number
        self._cited.append(passage)
        return len(self._cited)

    def cites(self, passage: Hit) -> bool:
        return any(known.key == passage.key for known in self._cited)

    def prompted(self, text: str, passages: Sequence[Hit]) -> str:
        """An answer's text with the numbers that a prompt gives to these passages, as a generator would write it."""
        cited = {hit.key for hit in self._cited}
        places = {self.number(hit): place for place, hit in enumerate(passages, 1) if hit.key in cited}
        sources = Sources(hit.text for hit in (*self._cited, *passages))

        def written(match: re.Match[str]) -> str:
            own = _OWN.fullmatch(match[0])
            if own is None:  # code, or a document's own mark in the form [ 2 ] that `MarkReader` gave it
                return re.sub(r"^\[ (.*) \]$", r"[\1]", match[0])
            if not 1 <= int(own[1]) <= len(self._cited) or sources.index(text[: match.start()]):
                return match[0]
            return marks_of([places.get(int(own[1]))])

        return re.sub(r"(?<! ) +(?=[.,;:!?])", "", _MARK_OR_CODE.sub(written, text))

    def of(self, text: str, given: Sequence[Hit] = ()) -> tuple[Citation, ...]:
        """The citations of a finished text; the passages `given` to the generator if it refers to none."""
        if not self._cited and text:
            for hit in given:
                self.number(hit)
        return tuple(_citation(number, hit, _statement(text, number)) for number, hit in enumerate(self._cited, 1))


def _covers(passage: Hit, known: Hit) -> bool:
    (first, last), (start, end) = passage.ordinals, known.ordinals
    return first <= start and end <= last


def _statement(text: str, number: int) -> str:
    """The first statement with the mark of a number: a sentence, or a part of it that ends in marks; the whole text if
    none has it."""
    # A mark after the full stop belongs to the sentence before it.
    lines = _CLOSED.sub(r" \2\1", text).splitlines()
    found = next((s for line in lines for s in sentences(line) if f"[{number}]" in s), text)
    begin = 0
    for marks in _MARKS.finditer(found):
        if f"[{number}]" in marks[0]:  # the rest of a sentence behind its last marks belongs to them
            return found[begin:] if "[" not in found[marks.end() :] else found[begin : marks.end()]
        begin = marks.end()
    return found


def _citation(number: int, hit: Hit, statement: str) -> Citation:
    at, quote = support(hit.text, statement, hit.kinds)
    line = hit.line_at(at)
    return Citation(
        number, hit.id, hit.path, line, hit.line_start, hit.line_end, hit.page, hit.title, quote, hit.relevance,
        hit.collection, hit.mail, hit.kind,
    )  # fmt: skip


QUOTE_CHARS = 240
"""Longest quote in characters, without the ellipsis that marks a cut."""

# Scripts without spaces between words: Thai, Chinese, Japanese. A character stands for a word there.
_UNSPACED = "[\u0e00-\u0e7f\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]"
_WORD = re.compile(rf"{_UNSPACED}|(?:(?!{_UNSPACED})[^\W_])+")


def support(passage: str, statement: str, kinds: tuple[Part, ...] = ()) -> tuple[int, str]:
    """The part of a passage that supports a statement best: the position of its nearest line, in characters, and its
    text, cut to `QUOTE_CHARS`. A part that the statement quotes comes first, then the one that shares most words, the
    shorter one of two."""
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
    lines = list(line_spans(passage, best.start, best.end)) or [(best.start, best.end)]
    line, _ = (
        lines[0]
        if best.text in quoted
        else max(lines, key=lambda span: len(wanted.intersection(_stems(passage[slice(*span)]))))
    )
    # A part that is too long to be quoted whole is quoted from its nearest line on.
    quote = best.text if best.end - best.start <= QUOTE_CHARS else " ".join(passage[line : best.end].split())
    return line, _cut(quote)


def _cut(quote: str) -> str:
    if len(quote) <= QUOTE_CHARS:
        return quote
    end = quote.rfind(" ", QUOTE_CHARS // 2, QUOTE_CHARS + 1)
    return quote[: end if end >= 0 else QUOTE_CHARS] + " …"


def _stems(text: str) -> Sequence[str]:
    return stems(_WORD.findall(text))
