"""E-mail: single messages (.eml, a Maildir's files) and mailboxes (mbox), with their threads, quotes and attachments.
Each message of a mailbox is a page under the thread's subject, the sender and the date, and lines are those of the
message as shown. A quotation of an earlier message and a signature that one had are left out; other quotations are kept
under a heading of their own."""

from __future__ import annotations

import binascii
import email
import io
import re
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from email.errors import HeaderParseError
from email.header import decode_header
from email.message import Message
from email.mime.application import MIMEApplication
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText
from email.utils import format_datetime, parsedate_to_datetime
from functools import partial
from math import inf
from typing import Any

from edge.apps.documents.agenda import events
from edge.apps.documents.base import MAX_TEXT_CHARS, Block, DocumentBlocks, Mail, Outline
from edge.apps.documents.decoding import declared_encoding, decode, normalised
from edge.apps.documents.html import html_blocks
from edge.apps.documents.kinds import HEADING, NAVIGATION, SETTING, Parts
from edge.apps.documents.members import LeftOut, alone, read_inside
from edge.apps.documents.opened import HEAD_BYTES, OpenedFile, too_much_text
from edge.apps.documents.pictures import MISSING
from edge.apps.documents.plain import text_blocks
from edge.config import format_size
from edge.errors import InputError

MOST_MESSAGES = 100_000
_MOST_PARTS = 200
_DEEPEST = 3  # Of messages inside messages.
_MOST_MESSAGE_BYTES = 12 * 10**6

_PIECE = 1 << 20
_LONGEST_RUN = 1 << 16  # Bytes of base64 that are kept in a message. More stay in the file.
_BASE64 = re.compile(rb"[A-Za-z0-9+/=]+\r?\n?")
_SHOWN = ("From", "To", "Cc", "Date", "Subject")
_REPLY = re.compile(r"^(?:\s*(?:re|aw|wg|fw|fwd|sv|vs|antw|odp|tr)(?:\[\d+\])?\s*:)+\s*", re.IGNORECASE)
_QUOTED = re.compile(r"^\s{0,3}>")
_MARKS = re.compile(r"^[\s>]+")
_INTRODUCTION = re.compile(
    r"(?:.{4,200} (?:wrote|writes|schrieb.{0,80}|a écrit|escribió))\s*:", re.IGNORECASE | re.DOTALL
)
_LIST = re.compile(r"\bmailing list|listinfo|subscri(?:be|ption)|\bsponsored by", re.IGNORECASE)
"""What a list of mails writes below each, which says nothing about the subject."""

_FOOT = re.compile(
    rf"\n(?:-- \n|[-_=*]{{20,}}[ \t]*\n(?=(?:.*\n){{1,12}}\Z)(?=(?:.*\n)*?.*(?:{_LIST.pattern})))", re.IGNORECASE
)
_ENVELOPE = re.compile(rb"From \S+ .*\d\d?:\d\d")
_WORD = re.compile(r"\w+")
_ID = re.compile(r"<([^<>\s]{1,250})>")
_STUB = 0.5  # A smaller share of the words of the HTML alternative is a stub ("needs an HTML viewer").
_SIGNATURES = frozenset({"application/pgp-signature", "application/pkcs7-signature", "application/x-pkcs7-signature"})
_LEAST_QUOTED = 20  # Characters by which a quoted line is recognized in another message.


def extract(file: OpenedFile) -> DocumentBlocks:
    messages = _Messages(file)
    reader = _MailReader(file, messages)
    title = ""
    for page, data in enumerate(messages, 1):
        if page > MOST_MESSAGES:
            raise InputError(f"a mailbox of more than {MOST_MESSAGES:,} messages, the most that is read")
        subject = reader.read(partial(email.message_from_bytes, data), page if messages.several else None)
        title = title if messages.several else subject
        if messages.cut:
            reader.warn(f"a message of more than {format_size(_MOST_MESSAGE_BYTES)}, of which the beginning is read")
    return DocumentBlocks(title, reader.blocks, warning=reader.warning, mails=reader.mails)


class _Messages:
    """The messages of a file. In a mailbox each begins with a `From ` line that has a time, after a blank line (RFC
    4155); `.emlx` begins with the length. Long runs of base64, which are attachments, stay in the file: the message has
    a mark, and `content` decodes them."""

    def __init__(self, file: OpenedFile) -> None:
        self.several = file.head.startswith(b"From ")
        self._is_counted = re.match(rb"\d{1,9} *\n", file.head) is not None
        self._stream = file.stream
        self.cut = False
        self._token = secrets.token_hex(8).encode()
        self._mark = re.compile(rb"~%s:(\d+)-(\d+)~\n?" % self._token)

    def __iter__(self) -> Iterator[bytes]:
        lines: list[bytes] = []
        begin = first = size = at = 0
        blank, in_run = True, False
        self._stream.seek(0)
        until = inf
        if self._is_counted:
            count = self._stream.readline(_PIECE)
            at, until = len(count), len(count) + int(count)
        while True:
            line = self._stream.readline(_PIECE) if at < until else b""
            is_base64 = _BASE64.fullmatch(line) is not None
            if in_run and not is_base64 and at - begin > _LONGEST_RUN:
                lines[first:] = [b"~%s:%d-%d~\n" % (self._token, begin, at)]
            if not line or (self.several and blank and _ENVELOPE.match(line)):
                if lines:
                    yield b"".join(lines)
                    self._stream.seek(at + len(line))
                if not line:
                    return
                lines, size, in_run = [line], 0, False
            elif not (in_run and is_base64 and at - begin > _LONGEST_RUN):
                if is_base64 and not in_run:
                    begin, first = at, len(lines)
                in_run = is_base64
                if size < _MOST_MESSAGE_BYTES:
                    lines.append(line[1:] if line.startswith(b">From ") else line)
                    size += len(line)
                else:
                    self.cut = True
            at += len(line)
            blank = not line.strip()

    def content(self, part: Any, most: int) -> bytes:
        is_base64 = str(part.get("content-transfer-encoding", "")).strip().lower() == "base64"
        payload = str(part.get_payload()).encode("ascii", "replace") if is_base64 else part.get_payload(decode=True)
        if payload is None or self._mark.search(payload) is None:
            data: bytes = part.get_payload(decode=True) or b""
            return data[:most]
        found, left = io.BytesIO(), b""
        for piece in self._pieces(payload):
            if is_base64:
                digits = left + piece.translate(None, b" \t\r\n")
                whole = len(digits) // 4 * 4
                piece, left = _decoded(digits[:whole]), digits[whole:]
            found.write(piece[: most - found.tell()])
            if found.tell() == most:
                break
        return found.getvalue()

    def _pieces(self, payload: bytes) -> Iterator[bytes]:
        at = 0
        for mark in self._mark.finditer(payload):
            yield payload[at : mark.start()]
            for begin in range(int(mark[1]), int(mark[2]), _PIECE):
                self._stream.seek(begin)
                yield self._stream.read(min(_PIECE, int(mark[2]) - begin))
            at = mark.end()
        yield payload[at:]


def _decoded(digits: bytes) -> bytes:
    try:
        return binascii.a2b_base64(digits)
    except binascii.Error:  # a damaged part; the rest of it may be read
        return b""


class _MailReader:
    def __init__(self, file: OpenedFile, messages: _Messages) -> None:
        self._file = file
        self._messages = messages
        self.blocks: list[Block] = []
        self.warning = ""
        self._seen: set[int] = set()
        self._chars = 0
        self._line = 0
        self._page: int | None = None
        self.mails: dict[int, Mail] = {}

    def read(self, parse: Callable[[], Any], page: int | None) -> str:
        self._line, self._page = 0, page
        try:
            message = parse()
            self.mails[page or 0] = _fields(message)
            return self._message(message, (), 0)
        except (InputError, MemoryError):
            raise
        except Exception as error:  # the library recurses as deep as the message is nested, and reports damage by many
            what = "nested too deep" if isinstance(error, RecursionError) else f"damaged ({type(error).__name__})"
            if page is None:
                raise InputError(f"a message whose parts are {what}") from error
            self.warn(f"the parts of message {page} are {what}")
            return ""

    def _message(self, message: Any, above: tuple[str, ...], depth: int) -> str:
        headers = {name: _header(message, name) for name in _SHOWN}
        subject = _REPLY.sub("", headers["Subject"]) or "(no subject)"
        sent = ", ".join(filter(None, (_name(headers["From"]), _sent(message)[:10])))
        path = (*above, subject, sent) if sent else (*above, subject)
        shown = [f"{name}: {value}" for name, value in headers.items() if value]
        if shown:
            fields = Parts("\n".join(shown))
            end = len(fields.text) - (len(shown[-1]) if headers["Subject"] else 0)
            fields.lines(SETTING, 0, end)
            fields.add(HEADING + len(path), end + len("Subject: "), len(fields.text))  # of what follows
            self._add(fields.text, "fields", path, tuple(fields.found))
        for number, part in enumerate(self._parts(message)):
            if number >= _MOST_PARTS:
                self.warn(f"a message of more than {_MOST_PARTS} parts, of which the first are read")
                break
            self._part(part, path, depth)
        return subject

    def _part(self, part: Any, path: tuple[str, ...], depth: int) -> None:
        kind, name = part.get_content_type(), _file_name(part)
        if kind == "message/rfc822":
            inner = part.get_payload()
            if isinstance(inner, list) and inner and depth < _DEEPEST:
                self._message(inner[0], path, depth + 1)
        elif kind == "text/calendar":
            data = self._messages.content(part, 4 * MAX_TEXT_CHARS)
            self._blocks(events(data, declared=part.get_content_charset())[1], path)
        elif _is_attached(part):
            self._attachment(name or f"without a name ({kind})", part, path)
        elif kind == "text/html":
            self._blocks(html_blocks(self._body(part), page=self._page, outline=Outline())[1], path)
        elif kind not in _SIGNATURES:
            text = self._body(part)
            is_flowed = str(part.get_param("format", "")).lower() == "flowed"
            self._text(_unflowed(text, str(part.get_param("delsp", "")).lower()) if is_flowed else text, path)

    def _body(self, part: Any) -> str:
        data = self._messages.content(part, 4 * MAX_TEXT_CHARS)
        declared = part.get_content_charset()
        if declared is None and part.get_content_type() == "text/html":
            declared = declared_encoding(data[:HEAD_BYTES])
        return decode(data, declared=declared)

    def _parts(self, message: Any) -> Iterator[Any]:
        """The parts that are shown or attached, also to parts that are not read. Plain text is preferred unless it is a
        stub."""
        waiting = [message]
        while waiting:
            part = waiting.pop()
            if part.get_content_type() == "message/rfc822" or not part.is_multipart():
                yield part
                continue
            inner = [child for child in part.get_payload() if hasattr(child, "get_content_type")]
            if part.get_content_subtype() == "alternative" and len(inner) > 1:
                shown = self._alternative(inner)
                inner = [leaf for child in inner for leaf in ([child] if child is shown else _beside(child))]
            waiting += reversed(inner)

    def _alternative(self, parts: list[Any]) -> Any:
        shown = parts[-1]
        rich = next((leaf for part in parts for leaf in part.walk() if leaf.get_content_type() == "text/html"), None)
        plain = next((part for part in parts if part.get_content_type() == "text/plain"), None)
        if rich is not None:
            shown = next(part for part in parts if any(leaf is rich for leaf in part.walk()))
        if plain is None:
            return shown
        said = set(_WORD.findall(self._body(plain).lower()))
        if rich is None or not said:
            return plain if said else shown
        blocks = html_blocks(self._body(rich))[1]
        words = {word for block in blocks for word in _WORD.findall(block.text.lower())}
        return shown if len(words & said) < _STUB * len(words) else plain

    def _text(self, text: str, path: tuple[str, ...]) -> None:
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

        text, signature = [*_FOOT.split(f"{text}\n", maxsplit=1), ""][:2]
        for line in text.split("\n"):
            if _QUOTED.match(line):
                quoted.append(_MARKS.sub("", line))
            else:
                if quoted and line.strip():
                    flush()
                own.append(line)
        flush()
        if (signed := hash(signature.strip())) not in self._seen:
            self._seen.add(signed)
            for block in text_blocks(normalised(_FOOT.sub("\n\n", signature))):
                parts = ((NAVIGATION, len(block.text)),) if _LIST.search(block.text) else block.parts
                self._blocks([replace(block, parts=parts)], (*path, "signature"))
        self._seen.update(hash(line) for line in map(_plain, text.split("\n")) if len(line) >= _LEAST_QUOTED)

    def _unseen(self, quoted: list[str]) -> list[Block]:
        known = [hash(_plain(line)) in self._seen for line in quoted]
        if any(known):  # short lines between known lines are quoted from the same message
            pairs = zip(quoted, known, strict=True)
            quoted = [line for line, is_known in pairs if not is_known and len(line) >= _LEAST_QUOTED]
        return text_blocks(normalised("\n".join(quoted)))

    def _attachment(self, name: str, part: Any, path: tuple[str, ...]) -> None:
        below = (*path, f"attachment {name}")
        self._add(f"Attachment: {name}", "fields", below)
        try:
            with alone(self._file):
                blocks = list(read_inside(self._file, name, lambda most: self._messages.content(part, most)).blocks)
                if self._chars + sum(len(block.text) for block in blocks) > MAX_TEXT_CHARS:
                    raise InputError(f"the texts have more than {MAX_TEXT_CHARS:,} characters together")
        except LeftOut as error:
            if error.reason is None or str(error) == MISSING:
                self.warn(f"the attachment {name} is left out ({error})")
            return
        self._blocks(blocks, below)

    def _blocks(self, blocks: Iterable[Block], path: tuple[str, ...]) -> None:
        for block in blocks:
            self._add(block.text, block.kind, (*path, *block.path), block.parts)

    def _add(
        self, text: str, kind: str, path: tuple[str, ...], parts: tuple[tuple[int, int], ...] | None = None
    ) -> None:
        if not text.strip():
            return
        self._chars += len(text)
        if self._chars > MAX_TEXT_CHARS:
            raise too_much_text()
        first = self._line + 1
        self._line += text.count("\n") + 1
        self.blocks.append(Block(text, first, self._line, self._page, kind, path, parts=parts))

    def warn(self, what: str) -> None:
        """The first one counts."""
        self.warning = self.warning or what


def _beside(part: Any) -> list[Any]:
    """What is attached to an alternative that is not read, without pictures that its HTML shows."""
    return [
        leaf
        for leaf in part.walk()
        if leaf.get_content_type() == "text/calendar"
        or (_is_attached(leaf) and ("content-id" not in leaf or leaf.get_content_maintype() != "image"))
    ]


def _is_attached(part: Any) -> bool:
    kind = part.get_content_type()
    if part.is_multipart() or kind in _SIGNATURES or kind.startswith("message/"):
        return False
    return not kind.startswith("text/") or bool(part.get_filename()) or part.get_content_disposition() == "attachment"


def _file_name(part: Any) -> str:
    for name, value in list(part.raw_items()):
        if not str(value).isascii():  # the library takes bytes above 127 in a name for damage
            part.replace_header(name, _unescaped(str(value)))
    return " ".join(_words(part.get_filename() or "").split())[:200]


def _header(message: Any, name: str) -> str:
    value = next((raw for key, raw in message.raw_items() if key.lower() == name.lower()), "")
    return " ".join(normalised(_words(str(value))).split())[:1000]


def _unescaped(value: str) -> str:
    """With bytes above 127 decoded, which no standard allows."""
    return value if value.isascii() else decode(value.encode("utf-8", "surrogateescape"))


def _words(value: str) -> str:
    """With encoded words decoded (RFC 2047)."""
    value = _unescaped(value)
    try:
        pieces = decode_header(value)
    except (HeaderParseError, ValueError):
        return value
    return "".join(piece if isinstance(piece, str) else decode(piece, declared=label) for piece, label in pieces)


def _name(sender: str) -> str:
    name, _, _ = sender.partition("<")
    return name.strip().strip('"') or sender


def _fields(message: Any) -> Mail:
    ids = {name: _ID.findall(str(message.get(name, ""))) for name in ("Message-ID", "References", "In-Reply-To")}
    own, earlier = ids["Message-ID"][:1], ids["References"] or ids["In-Reply-To"]
    to = ", ".join(filter(None, (_header(message, name) for name in ("To", "Cc"))))
    sender = _header(message, "From") or _header(message, "Sender")
    return Mail(sender, to, _header(message, "Subject"), _sent(message), *(own or [""]), *(earlier or own or [""])[:1])


def _sent(message: Any) -> str:
    """When a message was sent, or was first received; empty if no header tells."""
    received = [str(value).rpartition(";")[2] for value in message.get_all("Received", ())]
    envelope = " ".join((message.get_unixfrom() or "").split()[2:])
    dates = (str(message.get("Date", "")).strip(), *reversed(received), envelope)
    return next(filter(None, map(_moment, dates)), "")


def _moment(date: str) -> str:
    for read in (parsedate_to_datetime, datetime.fromisoformat):
        with suppress(ValueError, TypeError, IndexError, OverflowError):
            return read(date).isoformat()
    return ""


def _unflowed(text: str, delsp: str) -> str:
    """Without the cuts of RFC 3676, whose lines end with a space."""
    lines: list[str] = []
    open_marks: str | None = None
    for line in text.split("\n"):
        marks = line[: len(line) - len(line.lstrip(">"))]
        own = line[len(marks) :].removeprefix(" ")
        if marks == open_marks and own != "-- ":
            lines[-1] = lines[-1].removesuffix(" " if delsp == "yes" else "") + own
        else:
            lines.append(f"{marks} {own}" if marks else own)
        open_marks = marks if own.endswith(" ") and own != "-- " else None
    return "\n".join(lines)


def _plain(line: str) -> str:
    return " ".join(_MARKS.sub("", line).split()).lower()


_HEADERS = ("From", "To", "Cc", "Date", "Subject", "Message-ID", "References", "In-Reply-To")


def extract_outlook(file: OpenedFile) -> DocumentBlocks:
    """Reads a message that Outlook has saved (.msg), as a mail."""
    from oxmsg import Message as OutlookMessage
    from oxmsg.properties import String8Property

    # The library raises for a false encoding, and for one whose name Python does not know.
    String8Property.value = property(_eight_bit)  # type: ignore[assignment]
    reader, message = _MailReader(file, _Messages(file)), _mail(OutlookMessage.load(file.stream))
    subject = reader.read(lambda: message, None)
    return DocumentBlocks(subject, reader.blocks, warning=reader.warning, mails=reader.mails)


_BODY, _HTML = 0x1000, 0x1013  # of MS-OXPROPS


def _eight_bit(found: Any) -> str:
    encoding = found._body_encoding if found.pid == _BODY else found._str_prop_encoding
    return decode(found._storage.property_stream_bytes(found.pid, found.ptyp), declared=encoding)


def _html(found: Any) -> str:
    """The text of a message as HTML; empty if it has none."""
    data = found.properties.binary_prop_value(_HTML)
    if not data:
        return found.properties.str_prop_value(_HTML) or ""
    return decode(data, declared=declared_encoding(data[:HEAD_BYTES]) or found.properties.body_encoding)


def _mail(found: Any) -> Message:
    """Its own headers come first, because a message that was never sent has none of a mail."""
    made = MIMEMultipart()
    sent = found.sent_date
    known = {
        "From": found.sender,
        "To": ", ".join(filter(None, (each.name or each.email_address for each in found.recipients))),
        "Date": None if sent is None else format_datetime(sent),
        "Subject": found.subject,
    }
    known |= {name: value for name in _HEADERS if (value := found.message_headers.get(name))}
    for name, value in known.items():
        if value:
            made[name] = " ".join(str(value).split())
    text = (found.body or "")[:MAX_TEXT_CHARS]
    made.attach(MIMEText(text, "plain", "utf-8") if text.strip() else MIMEText(_html(found), "html", "utf-8"))
    for each in found.attachments:
        part = MIMEApplication(each.file_bytes or b"")
        part.add_header("Content-Disposition", "attachment", filename=each.file_name or "without a name")
        made.attach(part)
    return made
