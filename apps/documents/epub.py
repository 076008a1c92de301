"""EPUB: the chapters of the spine, in reading order. Each chapter is a page, and lines are lines of its file."""

from __future__ import annotations

from posixpath import dirname, join, normpath
from urllib.parse import unquote

from edge.apps.documents.archive import Archive
from edge.apps.documents.base import MAX_TEXT_CHARS, Block, Document, Reason, Skipped
from edge.apps.documents.decoding import clean, decode
from edge.apps.documents.html import html_blocks
from edge.apps.documents.opened import OpenedFile, too_much_text
from edge.apps.documents.outline import Outline
from edge.errors import InputError

_CHAPTER_TYPES = frozenset({"application/xhtml+xml", "text/html", "application/html", "text/x-oeb1-document"})


def extract(file: OpenedFile) -> Document:
    """Reads an EPUB file.

    Raises:
        InputError: the file is damaged.
        Skipped: its chapters are encrypted, or contain no text.
    """
    with Archive(file.stream) as archive:
        package = _package(archive)
        root = archive.xml(package)
        encrypted = _encrypted(archive)
        items = {item.get("id"): item for item in root.iter("{*}item")}
        blocks: list[Block] = []
        chars = 0
        for page, reference in enumerate(root.iter("{*}itemref"), 1):
            item = items.get(reference.get("idref"))
            if item is None or item.get("media-type") not in _CHAPTER_TYPES:
                continue
            if "nav" in item.get("properties", "").split():  # the table of contents
                continue
            name = normpath(join(dirname(package), unquote(item.get("href", ""))))
            if name in encrypted:
                raise Skipped(Reason.ENCRYPTED, "the book's chapters are encrypted")
            text = decode(archive.read(name)).text
            chars += len(text)
            if chars > MAX_TEXT_CHARS:
                raise too_much_text()
            blocks += html_blocks(text, page=page, outline=Outline())[1]
        titles = root.iter("{http://purl.org/dc/elements/1.1/}title")
        title = next((" ".join(clean(element.text or "").split()) for element in titles), "")
    if not blocks:
        raise Skipped(Reason.NO_TEXT, "the book has no text")
    return Document(title, blocks)


def _package(archive: Archive) -> str:
    """The name of the part that lists the book's contents.

    Raises:
        InputError: the container names no package.
    """
    for element in archive.xml("META-INF/container.xml").iter("{*}rootfile"):
        if element.get("full-path"):
            return str(element.get("full-path"))
    raise InputError("a damaged EPUB: its container names no package")


def _encrypted(archive: Archive) -> frozenset[str]:
    """Names of encrypted parts. Obfuscated fonts are listed among them, too."""
    if "META-INF/encryption.xml" not in archive.names:
        return frozenset()
    references = archive.xml("META-INF/encryption.xml").iter("{*}CipherReference")
    return frozenset(unquote(reference.get("URI", "")) for reference in references)
