"""Types that pass between the steps from a folder to chunks. Lines are numbered as in an editor (they end with LF, CRLF
or a lone CR), from 1, and ranges include their end. Formats without lines number other units: lines of a page's text
(PDF), paragraphs (DOCX, PPTX), lines of a chapter's file (EPUB)."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from edge.errors import InputError

WORKER_NBYTES = 48 * 10**6
"""Memory of the worker for an ordinary file, leased while the worker runs."""

MAX_FILE_BYTES = 64 * 10**6
"""A larger file is skipped."""

LARGEST_INTEGER = 2**63 - 1
"""The largest of SQLite."""

MAX_TEXT_CHARS = 10 * 10**6
"""A file with more text than this is refused: three times the Bible."""


class Reason(StrEnum):
    """The values are stable and appear in reports."""

    HIDDEN = "hidden"
    IGNORED = "ignored"
    SECRET = "secret"
    EXCLUDED = "excluded"
    SYMLINK = "symlink"
    SPECIAL = "special"
    TOO_LARGE = "too large"
    EMPTY = "empty"
    BINARY = "binary"
    UNSUPPORTED = "unsupported"
    ENCRYPTED = "encrypted"
    NO_TEXT = "no text"
    UNREADABLE = "unreadable"


class Skipped(InputError):
    """A file with nothing to index, although it is not damaged. The message is one sentence."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def no_text() -> Skipped:
    return Skipped(Reason.NO_TEXT, "the file shows no text")


class Stamp(NamedTuple):
    """Size in bytes, times of the content and of the directory entry (which copying programs cannot set) in nanoseconds
    since 1970, and the number in the file system. A change of one means other content."""

    size: int
    mtime_ns: int
    inode: int | None
    ctime_ns: int | None

    @staticmethod
    def of(status: os.stat_result) -> Stamp:
        """Times that SQLite cannot store, before 1677 and after 2262, become the nearest ones."""
        modified, changed = (
            max(-LARGEST_INTEGER, min(time, LARGEST_INTEGER)) for time in (status.st_mtime_ns, status.st_ctime_ns)
        )
        return Stamp(status.st_size, modified, status.st_ino & LARGEST_INTEGER, changed)


NO_STAMP = Stamp(0, 0, None, None)
"""That of a file whose content is unknown."""


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file to index, as its directory entry describes it. The file is not kept open."""

    path: Path
    root: Path
    stamp: Stamp


@dataclass(frozen=True, slots=True)
class SkippedFile:
    path: Path
    reason: Reason
    detail: str


@dataclass(frozen=True, slots=True)
class Block:
    """Lines of a document that belong together: a heading, a paragraph, a function, a row.

    Attributes:
        text: the lines, joined with LF, without control characters other than LF and TAB, and without white space at
            the end.
        line_start, line_end: first and last line in the file.
        page: page, slide or chapter, if the format has them.
        kind: as far as the reader knows it. `heading`, and `columns` with the names of a table's columns. May be cut
            between sentences: `paragraph`, `item`, and `prose`, whose parts only its wording tells. May be cut only
            between lines: `row`, `table`, `code`, `settings`, `fields` (names with their values), and `lines`.
        path: headings above the block, outermost first; the path of a heading ends with the heading itself.
        lines: the line number of each line of `text`, if they are not consecutive from `line_start`.
        parts: the kinds of its parts (see `kinds`), if `kind` does not tell them.
        width: length of the longest wrapped line of the file, if it is plain text.
    """

    text: str
    line_start: int
    line_end: int
    page: int | None = None
    kind: str = "prose"
    path: tuple[str, ...] = ()
    lines: tuple[int, ...] | None = None
    parts: tuple[tuple[int, int], ...] | None = None
    width: int = 0

    @staticmethod
    def of(
        lines: Iterable[tuple[str, int]],
        kind: str,
        path: tuple[str, ...] = (),
        page: int | None = None,
        parts: tuple[tuple[int, int], ...] | None = None,
    ) -> Block:
        """A block of texts with their numbers. All lines of a text have its number."""
        texts = list(lines)
        numbers = tuple(number for text, number in texts for _ in range(text.count("\n") + 1))
        text = "\n".join(text for text, _ in texts)
        return Block(text, min(numbers), max(numbers), page, kind, path, numbers, parts)

    def line_at(self, index: int) -> int:
        """The line number of the line of the text with this index, counted from 0."""
        return self.line_start + index if self.lines is None else self.lines[index]

    def lines_at(self, index: int, count: int) -> Sequence[int]:
        """The line numbers of `count` lines of the text from this index on."""
        first = self.line_start + index
        return range(first, first + count) if self.lines is None else self.lines[index : index + count]


@dataclass(frozen=True, slots=True)
class Mail:
    sender: str
    recipients: str
    subject: str
    sent: str = ""
    id: str = ""
    thread: str = ""

    @property
    def line(self) -> str:
        people = " to ".join(filter(None, (self.sender, self.recipients)))
        about = ", ".join(filter(None, (people, self.sent[:16].replace("T", " "))))
        thread = f"  thread:{self.thread}" if self.thread else ""
        return ": ".join(filter(None, (about, self.subject))) + thread


def sent_at(when: datetime) -> str:
    """Empty for one that the system does not know."""
    with suppress(ValueError, OverflowError, OSError):
        return (when.astimezone() if when.tzinfo is None else when).isoformat(timespec="seconds")
    return ""


TRANSCRIPT, ARCHIVE, CALENDAR, CHAT = "transcript", "archive", "calendar", "chat"


def clock(seconds: int) -> str:
    """Seconds as a player shows them.

    >>> clock(192)
    '00:03:12'
    """
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def place_in(kind: str, line: int, page: int | None, mail: Mail | None = None) -> str:
    """The place of a line, to stand behind the path of its file: `:12`, ` p. 3`, ` 00:03:12`, ` › letter.docx:12`."""
    if kind == TRANSCRIPT:
        return f" {clock(line)}"
    if kind == ARCHIVE and mail is not None:
        return f" › {mail.subject}:{line}"
    return f":{line}" if page is None or kind in (CALENDAR, CHAT) else f" p. {page}"


@dataclass(frozen=True, slots=True)
class DocumentBlocks:
    """The output of an extractor, before it is split into chunks.

    Attributes:
        title: the document's own title; empty if it has none.
        blocks: in reading order; can be iterated only once. A file without any shows no text.
        warning: one sentence about parts that could not be read; empty if there are none.
        mails: the mails of a mailbox by page; a file of one mail has it as page 0.
        kind: the kind of the file, if its name and its first bytes do not tell it.
    """

    title: str
    blocks: Iterable[Block]
    warning: str = ""
    mails: Mapping[int, Mail] = field(default_factory=dict)
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A passage to embed, with its position.

    Attributes:
        text: the passage as in the document, except that three or more blank lines become one.
        context: title and headings above the passage; embedded and ranked with the text, but not shown in snippets.
        line_start, line_end: first and last line of `text` in the document.
        page: the page of the passage; a chunk never spans two pages.
        lines: the line number of each line of `text`, if they are not consecutive from `line_start`.
        kinds: the kinds of the parts of `text`, as `kinds.packed_parts` writes them.
    """

    text: str
    context: str
    line_start: int
    line_end: int
    page: int | None
    lines: tuple[int, ...] | None = None
    kinds: bytes = b""


@dataclass(frozen=True, slots=True)
class Extracted:
    """A file as chunks in reading order, which together hold all of its text."""

    kind: str
    title: str
    chunks: tuple[Chunk, ...]
    warning: str = ""
    mails: Mapping[int, Mail] = field(default_factory=dict)


class Outline:
    def __init__(self) -> None:
        self._open: list[tuple[int, str]] = []

    @property
    def path(self) -> tuple[str, ...]:
        return tuple(title for _, title in self._open)

    def enter(self, level: int, title: str) -> tuple[str, ...]:
        """Adds a heading. Headings of its level and below end. A level may be skipped (h1, then h3)."""
        self.leave(level)
        self._open.append((level, title))
        return self.path

    def leave(self, level: int) -> None:
        """Ends the headings of a level and below."""
        while self._open and self._open[-1][0] >= level:
            self._open.pop()


def first_heading(blocks: Iterable[Block]) -> str:
    """The first heading, which is the title of a document that names none; empty if there is no heading."""
    return next((block.path[-1] for block in blocks if block.kind == "heading"), "")


_PLACEHOLDER = re.compile(
    r"""
    [\W_]*(?:
        anonymous | unknown | none | null | n/?a | title | no[ ]title | unspecified | default | draft | temp | tmp
      | (?:untitled|unbenannt|sans[ ]titre|sin[ ]t[ií]tulo|senza[ ]titolo|namenlos)(?:[ _-]?\w{0,12}[ _-]?\d{0,4})
      | (?:new|neues)?[ ]?(?:document|dokument|documento|presentation|präsentation|slide|folie|workbook|mappe|book
          |sheet|page|seite|scan|scanned[ ]document|image|img|bild|file|template|vorlage)[ _-]?\d{0,6}
      | (?:power ?point|open ?document|word|excel)[ ](?:presentation|präsentation|document|dokument|workbook)
      | \d{1,8}
    )[\W_]*
    """,
    re.IGNORECASE | re.VERBOSE,
)
_PROGRAM = re.compile(
    r"(?:microsoft|openoffice|libreoffice|adobe|corel|quarkxpress|pagemaker)\b[\w .®™-]{0,40}[ ]-[ ].*"
    r"|tex output .*|(?:microsoft|adobe|apple)[ ]\w{1,12}"
    r"|.*\.(?:docx?|dotx?|pptx?|xlsx?|odt|odp|ods|rtf|txt|tex|dvi|ps|eps|indd|qxd|pmd|pub|wpd|html?|pdf|p65|fm)",
    re.IGNORECASE | re.DOTALL,
)
"""Titles that programs leave when printing: the program's name, or the name of the open file."""


def meaningful(title: str) -> str:
    """The title unchanged, or an empty text if it is a placeholder, a program's name or a file's name.

    >>> meaningful("(anonymous)"), meaningful("Microsoft Word - x.doc"), meaningful("Old ice")
    ('', '', 'Old ice')
    """
    if not any(map(str.isalnum, title)) or _PLACEHOLDER.fullmatch(title) or _PROGRAM.fullmatch(title):
        return ""
    return title


def printable(path: str | os.PathLike[str]) -> str:
    """A path as text that can be printed and stored. Bytes of a name that are not UTF-8 become `\\xNN`."""
    return os.fsencode(os.fspath(path)).decode("utf-8", "backslashreplace")


def counts_up(numbers: Sequence[int]) -> bool:
    """Whether the line numbers of a passage are consecutive."""
    return len(numbers) == numbers[-1] - numbers[0] + 1 and list(numbers) == list(range(numbers[0], numbers[-1] + 1))


def packed(numbers: Sequence[int] | None) -> str | None:
    """Line numbers as text: a list of runs (first, length) of consecutive numbers; None for None."""
    if numbers is None:
        return None
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == sum(runs[-1]):
            runs[-1][1] += 1
        else:
            runs.append([number, 1])
    return json.dumps(runs, separators=(",", ":"))


def unpacked(text: str | None, first: int, last: int, lines: int) -> tuple[int, ...]:
    """The line numbers of a passage of `lines` lines; `text` is the output of `packed`, None if they are
    consecutive."""
    if text is None:
        return tuple(min(first + i, last) for i in range(lines))
    runs = json.loads(text)
    if sum(max(0, count) for _, count in runs) != lines:  # it may come from anybody, and be of any length
        raise ValueError("the numbers are those of other lines")
    return tuple(number for start, count in runs for number in range(start, start + count))
