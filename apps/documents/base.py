"""What passes between the steps from a folder to chunks: files found or skipped, blocks of text with their positions,
chunks, and the reasons for which a file is left out.

Lines are what editors count: they end with LF, CRLF or a lone CR, and with nothing else. All numbers start at 1 and
ranges include their end. What has no lines of its own counts what it has: a PDF the lines of a page's text, DOCX and
PPTX their paragraphs, EPUB the lines of a chapter's file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from edge.errors import InputError

if TYPE_CHECKING:
    from edge.apps.documents.opened import OpenedFile

MAX_FILE_BYTES = 64 * 10**6
"""A larger file is skipped."""

MAX_TEXT_CHARS = 10 * 10**6
"""A file with more text than this is refused: three times the Bible."""


class Reason(str, Enum):
    """Why a file or folder is left out; the values are stable and appear in reports."""

    HIDDEN = "hidden"
    IGNORED = "ignored"
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
    """A file holds nothing to index, by its nature and not by a defect. The message is one sentence.

    Attributes:
        reason: which of the known reasons.
    """

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Found:
    """A file to index, as its directory entry tells; nothing of it has been kept open.

    Attributes:
        path: absolute; the part below `root` contains no symlink.
        root: the root it was found under (the file itself if it was named as one).
        nbytes: its size.
        mtime_ns: when it was last modified.
    """

    path: Path
    root: Path
    nbytes: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class SkippedFile:
    """A file or folder that is left out; of a folder, everything below it.

    Attributes:
        detail: one sentence for people.
    """

    path: Path
    reason: Reason
    detail: str


@dataclass(frozen=True, slots=True)
class Block:
    """A stretch of a document that belongs together: a heading, a paragraph, a function, a row.

    Attributes:
        text: its lines, joined with LF, without control characters other than LF and TAB, and without white space at
            its end.
        line_start, line_end: where it stands.
        page: page, slide or chapter, if the format has them.
        kind: `heading`, `prose` (may be cut between sentences) or `lines` (cut between lines only, if at all).
        path: headings it stands under, outermost first; of a heading, those above it and its own.
        lines: the line number of each line of `text`, if they do not simply count up from `line_start`.
    """

    text: str
    line_start: int
    line_end: int
    page: int | None = None
    kind: str = "prose"
    path: tuple[str, ...] = ()
    lines: tuple[int, ...] | None = None

    def line_at(self, index: int) -> int:
        """Line number of the `index`th line of the text, counted from 0."""
        return self.line_start + index if self.lines is None else self.lines[index]


@dataclass(frozen=True, slots=True)
class Document:
    """What an extractor makes of a file, before it is cut into chunks.

    Attributes:
        title: the document's own title; empty if it has none.
        blocks: in reading order; to be read once.
        encoding: of the text, where it was a text file.
        warning: one sentence about what of it could not be read; empty if everything could.
    """

    title: str
    blocks: Iterable[Block]
    encoding: str | None = None
    warning: str = ""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A passage to embed, with its position.

    Attributes:
        text: the passage, as it stands in the document, except that of many blank lines one is left.
        context: title and headings it stands under; embedded and ranked with the text, not shown as the snippet.
        line_start, line_end: lines that `text` is taken from.
        page: the page it stands on; a chunk never spans two.
        lines: the line number of each line of `text`, if they do not simply count up from `line_start`.
    """

    text: str
    context: str
    line_start: int
    line_end: int
    page: int | None
    lines: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Extracted:
    """A file as chunks, in reading order, together holding all of its text.

    Attributes:
        kind: what filters call it: `pdf`, `markdown`, `code`, ...
        title: the document's own title, or its file name.
        encoding: of the text, where it was a text file.
        warning: one sentence about what of it could not be read; empty if everything could.
    """

    kind: str
    title: str
    chunks: tuple[Chunk, ...]
    encoding: str | None
    warning: str = ""


Extract = Callable[["OpenedFile"], Document]
"""An extractor: reads an opened file. Raises `InputError` with one sentence; whatever else it raises counts as damage
of the file. It runs in a worker process under limits of time and memory."""


def printable(path: str | os.PathLike[str]) -> str:
    """A path as text that can be printed and stored: bytes of a name that are no UTF-8 appear as `\\xNN`."""
    return os.fsencode(os.fspath(path)).decode("utf-8", "backslashreplace")
