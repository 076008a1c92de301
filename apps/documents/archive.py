"""Documents that are XML inside a ZIP container: read part by part, within limits on what they unpack to.

Entities are not expanded, nothing external is loaded, and a part that declares entities of its own is refused.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from posixpath import join, normpath
from types import TracebackType
from typing import IO, Any, BinaryIO

from edge.apps.documents.base import Reason, Skipped
from edge.config import format_size
from edge.errors import InputError

MAX_PART_BYTES = 40 * 10**6
MAX_PARTS_BYTES = 120 * 10**6
MAX_MEMBERS = 20_000
_PIECE = 1 << 20
_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, ValueError, OSError, RuntimeError)


class Archive:
    """An open ZIP container of XML parts. A context manager.

    What is unpacked is counted as it comes, whatever sizes the container claims.
    """

    def __init__(self, stream: BinaryIO) -> None:
        """Opens a container.

        Raises:
            InputError: it is damaged or has too many members.
            Skipped: it is encrypted.
        """
        try:
            self._zip = zipfile.ZipFile(stream)
        except _DAMAGE as error:
            raise InputError(f"a damaged ZIP container ({error})") from error
        members = self._zip.infolist()
        if len(members) > MAX_MEMBERS:
            raise InputError(f"a container of {len(members):,} members; {MAX_MEMBERS:,} is the most that is read")
        if any(member.flag_bits & 1 for member in members):
            raise Skipped(Reason.ENCRYPTED, "the document is encrypted")
        self.names = frozenset(member.filename for member in members)
        self._left = MAX_PARTS_BYTES

    def read(self, name: str) -> bytes:
        """A part, unpacked.

        Raises:
            InputError: it is missing, damaged, or unpacks to more than is allowed.
        """
        if name not in self.names:
            raise InputError(f"a damaged document: its part {name[:100]} is missing")
        allowed = min(MAX_PART_BYTES, self._left)
        pieces, size = [], 0
        try:
            with self._zip.open(name) as part:
                while piece := part.read(_PIECE):
                    size += len(piece)
                    if size > allowed:
                        raise InputError(
                            f"its parts unpack to more than {format_size(MAX_PARTS_BYTES)}, or one to more than "
                            f"{format_size(MAX_PART_BYTES)}; that is no document"
                        )
                    pieces.append(piece)
        except _DAMAGE as error:
            raise InputError(f"a damaged document: its part {name[:100]} cannot be unpacked ({error})") from error
        self._left -= size
        return b"".join(pieces)

    def xml(self, name: str) -> Any:
        """The root element of a part.

        Raises:
            InputError: as `read`; not well-formed; declares entities.
        """
        from lxml import etree

        parser = etree.XMLParser(
            resolve_entities=False, no_network=True, huge_tree=False, load_dtd=False, remove_comments=True,
            remove_pis=True,
        )  # fmt: skip
        try:
            root = etree.fromstring(self.read(name), parser)
        except (etree.LxmlError, ValueError) as error:
            raise InputError(f"a damaged document: its part {name[:100]} is not XML ({error})") from error
        doctype = root.getroottree().docinfo.internalDTD
        if doctype is not None and next(doctype.iterentities(), None) is not None:
            raise InputError(f"its part {name[:100]} declares entities, which no document needs")
        return root

    def elements(self, name: str, wanted: str) -> Iterator[Any]:
        """Elements of a part by their name without a namespace, one after the other; each is forgotten when the next
        is asked for, so that a part of any size takes the memory of one.

        Raises:
            InputError: as `xml`.
        """
        from lxml import etree

        if name not in self.names:
            raise InputError(f"a damaged document: its part {name[:100]} is missing")
        try:
            with self._zip.open(name) as part:
                found = etree.iterparse(
                    _Counted(self, part), tag=f"{{*}}{wanted}", resolve_entities=False, no_network=True,
                    huge_tree=False, load_dtd=False, remove_comments=True, remove_pis=True,
                )  # fmt: skip
                for _, element in found:
                    yield element
                    element.clear()
                    while element.getprevious() is not None:
                        del element.getparent()[0]
        except etree.LxmlError as error:
            raise InputError(f"a damaged document: its part {name[:100]} is not XML ({error})") from error
        except _DAMAGE as error:
            raise InputError(f"a damaged document: its part {name[:100]} cannot be unpacked ({error})") from error

    def spend(self, nbytes: int) -> None:
        """Counts what was unpacked.

        Raises:
            InputError: it is more than is allowed.
        """
        self._left -= nbytes
        if self._left < 0:
            raise InputError(f"its parts unpack to more than {format_size(MAX_PARTS_BYTES)}; that is no document")

    def relations(self, name: str) -> dict[str, tuple[str, str]]:
        """Of an Office part, what it refers to: id to (the last word of the relation's type, the other part's name)."""
        folder, _, file = name.rpartition("/")
        listed = join(folder, "_rels", f"{file}.rels")
        if listed not in self.names:
            return {}
        found = {}
        for relation in self.xml(listed).iter("{*}Relationship"):
            target = relation.get("Target", "")
            if relation.get("TargetMode") != "External":
                path = target[1:] if target.startswith("/") else normpath(join(folder, target))
                found[relation.get("Id", "")] = (relation.get("Type", "").rpartition("/")[2], path)
        return found

    def related(self, name: str, kind: str) -> str | None:
        """The first part that an Office part refers to by a relation of a kind, if there is one."""
        return next((path for found, path in self.relations(name).values() if found == kind), None)

    def close(self) -> None:
        """Closes the container, not the stream."""
        self._zip.close()

    def __enter__(self) -> Archive:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Counted:
    """A part that is read as a stream, and counted as it comes."""

    def __init__(self, archive: Archive, part: IO[bytes]) -> None:
        self._archive = archive
        self._part = part

    def read(self, nbytes: int = _PIECE) -> bytes:
        piece = self._part.read(min(nbytes, _PIECE) if nbytes >= 0 else _PIECE)
        self._archive.spend(len(piece))
        return piece


def local(element: Any) -> str:
    """An element's name without its namespace; empty for what is no element."""
    tag = element.tag
    return tag.rpartition("}")[2] if isinstance(tag, str) else ""


def attribute(element: Any, name: str) -> str | None:
    """An attribute by its name, in whatever namespace: those of the strict and the transitional format differ."""
    for key, value in element.attrib.items():
        if key.rpartition("}")[2] == name:
            return str(value)
    return None
