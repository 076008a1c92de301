"""E-mail: single messages (.eml, a Maildir's files) and mailboxes (mbox), with their threads, quotes and attachments.

Each message of a mailbox is a page. Its blocks stand under the thread's subject, the sender and the date. Lines are
counted in the message as shown: its headers, its text, its attachments. A quotation of an earlier message of the same
mailbox is left out; other quotations are kept under a heading of their own.
"""

from __future__ import annotations

import email
import email.policy
import re
from collections.abc import Iterable, Iterator
from email.utils import parsedate_to_datetime
from typing import IO, Any

from edge.apps.documents.base import MAX_FILE_BYTES, MAX_TEXT_CHARS, Block, Document, Reason, Skipped
from edge.apps.documents.decoding import decode, normalised
from edge.apps.documents.headings import Outline
from edge.apps.documents.html import html_blocks
from edge.apps.documents.opened import HEAD_BYTES, Attached, OpenedFile, too_much_text
from edge.apps.documents.plain import text_blocks
from edge.errors import InputError

MOST_MESSAGES = 100_000
_MOST_PARTS = 200
_DEEPEST = 3
"""Largest depth of messages inside messages."""

_MOST_MESSAGE_BYTES = 32 * 10**6
_SHOWN = ("From", "To", "Cc", "Date", "Subject")
_REPLY = re.compile(r"^(?:\s*(?:re|aw|wg|fw|fwd|sv|vs|antw|odp|tr)(?:\[\d+\])?\s*:)+\s*", re.IGNORECASE)
_QUOTED = re.compile(r"^\s{0,3}>")
_MARKS = re.compile(r"^[\s>]+")
_INTRODUCTION = re.compile(
    r"(?:.{4,200} (?:wrote|writes|schrieb.{0,80}|a écrit|escribió))\s*:",
    re.IGNORECASE | re.DOTALL,
)
_LEAST_QUOTED = 20
"""The fewest characters by which a quoted line is recognized in another message."""


def extract(file: OpenedFile) -> Document:
    """Reads a message, or a mailbox of them.

    Raises:
        InputError: the file is not a message.
        Skipped: the file has no text, or too much.
    """
    reader = _Reader()
    if file.head.startswith(b"From "):
        title = ""
        for page, data in enumerate(_messages(file.stream), 1):
            if page > MOST_MESSAGES:
                raise InputError(f"a mailbox of more than {MOST_MESSAGES:,} messages, the most that is read")
            reader.read(data, page)
    else:
        title = reader.read(file.read(), None)
    if not reader.blocks:
        raise Skipped(Reason.NO_TEXT, "the messages show no text")
    return Document(title, reader.blocks, warning=reader.warning)


def _messages(stream: IO[bytes]) -> Iterator[bytes]:
    """The messages of a mailbox, one after the other. Each begins with a `From ` line after a blank line (RFC 4155).
    Only the beginning of a message that is too long is read."""
    stream.seek(0)
    lines: list[bytes] = []
    size, blank = 0, True
    for line in iter(lambda: stream.readline(1 << 20), b""):
        if blank and line.startswith(b"From "):
            if lines:
                yield b"".join(lines)
            lines, size = [], 0
        elif size < _MOST_MESSAGE_BYTES:
            lines.append(line[1:] if line.startswith(b">From ") else line)
            size += len(line)
        blank = not line.strip()
    if lines:
        yield b"".join(lines)


class _Reader:
    """Converts messages to blocks, in order."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.warning = ""
        self._seen: set[int] = set()
        self._chars = 0
        self._line = 0
        self._page: int | None = None

    def read(self, data: bytes, page: int | None) -> str:
        """Reads a message; returns its subject.

        Raises:
            InputError: it is nested too deep, and is not one of a mailbox.
        """
        self._line, self._page = 0, page
        try:
            message = email.message_from_bytes(data, policy=email.policy.default)
        except RecursionError:  # the library recurses as deep as the message is nested
            if page is None:
                raise InputError("a message whose parts are nested too deep") from None
            self._warn(f"the parts of message {page} are nested too deep")
            return ""
        return self._message(message, (), 0)

    def _message(self, message: Any, above: tuple[str, ...], depth: int) -> str:
        headers = {name: _header(message, name) for name in _SHOWN}
        subject = _REPLY.sub("", headers["Subject"]) or "(no subject)"
        sent = ", ".join(filter(None, (_name(headers["From"]), _day(headers["Date"]))))
        path = (*above, subject, sent) if sent else (*above, subject)
        shown = [f"{name}: {value}" for name, value in headers.items() if value]
        if shown:
            self._add("\n".join(shown), "lines", path)
        for number, part in enumerate(_parts(message)):
            if number >= _MOST_PARTS:
                self._warn(f"a message of more than {_MOST_PARTS} parts, of which the first are read")
                break
            self._part(part, path, depth)
        return subject

    def _part(self, part: Any, path: tuple[str, ...], depth: int) -> None:
        kind, name = part.get_content_type(), part.get_filename()
        if kind == "message/rfc822":
            inner = part.get_payload()
            if isinstance(inner, list) and inner and depth < _DEEPEST:
                self._message(inner[0], path, depth + 1)
            return
        data = part.get_payload(decode=True) or b""
        if name or part.get_content_disposition() == "attachment":
            self._attachment(" ".join((name or "attachment").split())[:200], data, path)
        elif kind == "text/html":
            text = decode(data, declared=part.get_content_charset()).text
            self._blocks(html_blocks(text, page=self._page, outline=Outline())[1], path)
        elif kind.startswith("text/"):
            self._text(decode(data, declared=part.get_content_charset()).text, path)

    def _text(self, text: str, path: tuple[str, ...]) -> None:
        """Reads the text of a message; quotations are separated from the sender's own text."""
        own: list[str] = []
        quoted: list[str] = []

        def flush() -> None:
            said = "\n".join(own).rstrip()
            before, _, last = said.rpartition("\n\n")
            if quoted and _INTRODUCTION.fullmatch(last.strip()):
                said = before
            for blocks, below in ((text_blocks(normalised(said)), path), (self._unseen(quoted), (*path, "quoted"))):
                self._blocks(blocks, below)
            own.clear()
            quoted.clear()

        for line in text.split("\n"):
            if line.rstrip() == "--":  # a signature follows
                break
            if _QUOTED.match(line):
                quoted.append(_MARKS.sub("", line))
            else:
                if quoted and line.strip():
                    flush()
                own.append(line)
        flush()
        self._seen.update(hash(line) for line in map(_plain, text.split("\n")) if len(line) >= _LEAST_QUOTED)

    def _unseen(self, quoted: list[str]) -> list[Block]:
        """The blocks of a quotation, without the lines of earlier messages."""
        known = [hash(_plain(line)) in self._seen for line in quoted]
        if any(known):  # short lines between known lines are quoted from the same message
            pairs = zip(quoted, known, strict=True)
            quoted = [line for line, is_known in pairs if not is_known and len(line) >= _LEAST_QUOTED]
        return text_blocks(normalised("\n".join(quoted)))

    def _attachment(self, name: str, data: bytes, path: tuple[str, ...]) -> None:
        """Adds the blocks of an attached document, if its format is supported."""
        from edge.apps.documents.file_types import MAIL, choose, load

        below = (*path, f"attachment {name}")
        self._add(f"Attachment: {name}", "lines", below)
        if not data or len(data) > MAX_FILE_BYTES:
            return
        try:
            kind = choose(name, data[:HEAD_BYTES])
            if kind is MAIL:
                return
            document = load(kind.extractor)(Attached(name, data))
        except InputError as error:
            if not isinstance(error, Skipped):
                self._warn(f"the attachment {name} cannot be read: {error}")
            return
        except MemoryError:
            raise
        except Exception as error:  # libraries report damage by many kinds of errors
            self._warn(f"the attachment {name} is damaged ({type(error).__name__})")
            return
        self._blocks(document.blocks, below)

    def _blocks(self, blocks: Iterable[Block], path: tuple[str, ...]) -> None:
        for block in blocks:
            self._add(block.text, block.kind, (*path, *block.path))

    def _add(self, text: str, kind: str, path: tuple[str, ...]) -> None:
        if not text.strip():
            return
        self._chars += len(text)
        if self._chars > MAX_TEXT_CHARS:
            raise too_much_text()
        first = self._line + 1
        self._line += text.count("\n") + 1
        self.blocks.append(Block(text, first, self._line, self._page, kind, path))

    def _warn(self, what: str) -> None:
        self.warning = self.warning or what


def _parts(message: Any) -> Iterator[Any]:
    """The parts that are shown or attached. Of alternative parts, plain text is preferred."""
    waiting = [message]
    while waiting:
        part = waiting.pop()
        if part.get_content_type() == "message/rfc822" or not part.is_multipart():
            yield part
            continue
        inner = [child for child in part.get_payload() if hasattr(child, "get_content_type")]
        if part.get_content_subtype() == "alternative":
            plain = [child for child in inner if child.get_content_type() == "text/plain"]
            inner = plain[:1] or inner[-1:]
        waiting += reversed(inner)


def _header(message: Any, name: str) -> str:
    """A header as text. If the library cannot parse it, the raw value is used."""
    try:
        value = message.get(name)
    except Exception:  # the library reports damaged headers by many kinds of errors
        value = next((raw for key, raw in message.raw_items() if key.lower() == name.lower()), "")
    return " ".join(normalised(str(value or "")).split())[:1000]


def _name(sender: str) -> str:
    """The sender's name, or the address if there is no name."""
    name, _, _ = sender.partition("<")
    return name.strip().strip('"') or sender


def _day(date: str) -> str:
    try:
        return parsedate_to_datetime(date).date().isoformat()
    except (ValueError, TypeError, IndexError, OverflowError):
        return ""


def _plain(line: str) -> str:
    return " ".join(_MARKS.sub("", line).split()).lower()
