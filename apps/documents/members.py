"""Files inside other files: attachments, and the members of archives (ZIP, TAR, GZIP). Each member is a page, with its
name as the subject and its time as the date of a mail, so that it is a result of its own."""

from __future__ import annotations

import gzip
import tarfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from posixpath import basename
from typing import IO, cast

from edge.apps.documents.archive import MAX_MEMBERS, MAX_PART_BYTES, MAX_PARTS_BYTES
from edge.apps.documents.base import MAX_TEXT_CHARS, Block, DocumentBlocks, Mail, Reason, Skipped, no_text, sent_at
from edge.apps.documents.decoding import decode
from edge.apps.documents.opened import HEAD_BYTES, Attached, Attempt, OpenedFile
from edge.apps.documents.secrets import refuse_secrets
from edge.config import counted, format_size
from edge.errors import InputError

_DEEPEST = 3  # Largest depth of archives and mails inside each other.
_FRUGAL_BYTES = 10**6  # Bytes of a file inside another, at the last attempt.
_SECONDS = 14.0  # Computing time for the members of one archive.
_NAMED, _DETAIL = 3, 150  # Members that a warning names, and characters of a reason.
_DAMAGE = (
    zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, NotImplementedError, ValueError, OSError, RuntimeError
)  # fmt: skip
_PROGRAMS = frozenset({"__MACOSX", "__pycache__", "node_modules"})

_PIECE = 1 << 16

_UTF_8 = 0x800


class LeftOut(Exception):
    """A file inside another that cannot be read, and costs only itself; the message says why."""

    def __init__(self, message: str, reason: Reason | None = None) -> None:
        super().__init__(message[:_DETAIL])
        self.reason = reason


@contextmanager
def alone(outer: OpenedFile) -> Iterator[None]:
    """Raises what a file inside another raises as `LeftOut`. `MemoryError` remains one at a first attempt."""
    try:
        yield
    except Skipped as error:
        raise LeftOut(str(error), error.reason) from error
    except InputError as error:
        raise LeftOut(str(error)) from error
    except MemoryError as error:
        if outer.attempt is Attempt.FIRST:
            raise
        raise LeftOut("needs more memory than there is") from error
    except NotImplementedError as error:
        raise LeftOut("compressed in a way that is not read") from error
    except Exception as error:  # libraries report damage by many kinds of errors
        raise LeftOut(f"damaged: {type(error).__name__}") from error


def read_inside(outer: OpenedFile, name: str, content: Callable[[int], bytes]) -> DocumentBlocks:
    """The document of a file inside another; `content` returns its first bytes, as many as are asked for."""
    from edge.apps.documents.file_types import IMAGE, choose, load

    if outer.depth == _DEEPEST:
        raise InputError(f"files inside each other are read to a depth of {_DEEPEST}")
    head = content(HEAD_BYTES)
    refuse_secrets(name, head)
    if not head:
        raise Skipped(Reason.EMPTY, "the file is empty")
    kind = choose(name, head)
    frugal = outer.attempt is Attempt.FRUGAL
    most = _FRUGAL_BYTES if frugal else MAX_PART_BYTES
    data = content(most + 1)
    if len(data) > most or (frugal and kind is IMAGE):
        raise InputError("it needs more memory than there is" if frugal else f"more than {format_size(most)}")
    document = load(kind.extractor)(Attached(name, data, outer=outer))
    blocks = list(document.blocks)
    if not blocks:
        raise no_text()
    return replace(document, blocks=blocks)


@dataclass(frozen=True, slots=True)
class _Member:
    name: str
    when: str
    opened: Callable[[], IO[bytes]]


def extract(file: OpenedFile) -> DocumentBlocks:
    reader = _ArchiveReader(file)
    try:
        for member in _members(file):
            if reader.is_late(member):
                break
            reader.read(member)
    except _DAMAGE as error:
        if not reader.blocks:
            raise InputError(f"a damaged archive ({error})") from error
        reader.left.append(f"the rest, which is damaged ({error})")
    if not reader.blocks:
        raise Skipped(Reason.NO_TEXT, reader.warning or "the archive has no members that are read")
    return DocumentBlocks("", reader.blocks, warning=reader.warning, mails=reader.mails)


class _ArchiveReader:
    def __init__(self, file: OpenedFile) -> None:
        self._file = file
        self._chars = 0
        self.blocks: list[Block] = []
        self.mails: dict[int, Mail] = {}
        self.left: list[str] = []

    @property
    def warning(self) -> str:
        more = f" and {counted(len(self.left) - _NAMED, 'other')}" if len(self.left) > _NAMED else ""
        return f"left out: {'; '.join(self.left[:_NAMED])}{more}" if self.left else ""

    def is_late(self, member: _Member) -> bool:
        """Whether there is no time for a member, nor for those behind it."""
        spent = self._file.spent
        if spent.until is None:
            spent.until = time.process_time() + _SECONDS
        if time.process_time() > spent.until:
            self.left.append(f"{member.name} and what follows it, because the archive takes too long to read")
            return True
        return False

    def read(self, member: _Member) -> None:
        try:
            with alone(self._file), member.opened() as stream:
                self._add(member, read_inside(self._file, basename(member.name), self._content(stream)))
        except LeftOut as error:
            if error.reason is not Reason.EMPTY:
                self.left.append(f"{member.name} ({error})")

    def _content(self, stream: IO[bytes]) -> Callable[[int], bytes]:
        """Returns the first bytes of a member, counted while they are unpacked."""
        found = bytearray()

        def content(most: int) -> bytes:
            # In pieces, because some streams take as much memory as they are asked for.
            while len(found) < most and (piece := stream.read(min(_PIECE, most - len(found)))):
                self._file.spent.unpacked += len(piece)
                if self._file.spent.unpacked > MAX_PARTS_BYTES:
                    raise InputError(f"the archive unpacks to more than {format_size(MAX_PARTS_BYTES)}")
                found.extend(piece)
            return bytes(found)

        return content

    def _add(self, member: _Member, document: DocumentBlocks) -> None:
        """The mails of a member are pages of their own, the pages of others are headings."""
        blocks = list(document.blocks)
        self._chars += sum(len(block.text) for block in blocks)
        if self._chars > MAX_TEXT_CHARS:
            raise InputError(f"the texts have more than {MAX_TEXT_CHARS:,} characters together")
        if document.warning:
            self.left.append(f"of {member.name}: {document.warning[:_DETAIL]}")
        pages: dict[int | None, int] = {}
        for block in blocks:
            mail = document.mails.get(block.page or 0)
            part = None if mail is None else block.page
            if part not in pages:
                pages[part] = len(self.mails) + 1
                inner = mail or Mail("", "", "", member.when)
                name = f"{member.name} › {inner.subject}" if inner.subject else member.name
                self.mails[pages[part]] = replace(inner, subject=name)
            under = (f"p. {block.page}",) if mail is None and block.page is not None else ()
            self.blocks.append(replace(block, page=pages[part], path=(member.name, *under, *block.path)))


def _members(file: OpenedFile) -> Iterator[_Member]:
    file.stream.seek(0)
    if file.head.startswith(b"PK"):
        found = _of_zip(file.stream)
    elif _holds_tar(file):
        found = _of_tar(file.stream)
    else:
        name = file.name[:-3] if file.name.lower().endswith(".gz") else file.name
        found = iter([_Member(name, "", lambda: cast("IO[bytes]", gzip.GzipFile(fileobj=file.stream)))])
    for number, member in enumerate(found, 1):
        if number > MAX_MEMBERS:
            raise InputError(f"an archive of more than {MAX_MEMBERS:,} members, the most that is read")
        parts = member.name.removeprefix("./").split("/")
        if parts[-1] and not any(part.startswith(".") or part in _PROGRAMS for part in parts):
            yield replace(member, name="/".join(parts))


def _of_zip(stream: IO[bytes]) -> Iterator[_Member]:
    with zipfile.ZipFile(stream) as archive:
        for info in archive.infolist():
            if info.flag_bits & 1:
                raise Skipped(Reason.ENCRYPTED, "the archive needs a password")
            name = info.filename
            if not info.flag_bits & _UTF_8:  # the library takes other names for those of DOS
                name = decode(name.encode("cp437", "replace"))
            when = ""
            with suppress(ValueError):
                when = sent_at(datetime(*info.date_time))
            yield _Member(_line(name), when, lambda info=info: archive.open(info))  # type: ignore[misc]


def _of_tar(stream: IO[bytes]) -> Iterator[_Member]:
    with tarfile.open(fileobj=stream, mode="r|*", errors="replace") as archive:
        for info in archive:
            when = ""
            with suppress(ValueError, OverflowError, OSError):
                when = sent_at(datetime.fromtimestamp(int(info.mtime)))
            if info.isfile() and (content := archive.extractfile(info)) is not None:
                yield _Member(_line(info.name), when, lambda content=content: content)  # type: ignore[misc]


def _holds_tar(file: OpenedFile) -> bool:
    head = file.head
    if head.startswith(b"\x1f\x8b"):
        with suppress(zlib.error):
            head = zlib.decompressobj(wbits=31).decompress(head, HEAD_BYTES)
    return head[257:262] == b"ustar"


def _line(name: str) -> str:
    return " ".join(decode(name.encode("utf-8", "replace")).split())
