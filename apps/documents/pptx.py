"""PPTX: each slide is a page under its title, followed by its notes. Lines are paragraphs and table rows of a slide."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from edge.apps.documents.archive import Archive, attribute, local, outermost
from edge.apps.documents.base import Block, Document, Reason, Skipped
from edge.apps.documents.decoding import clean
from edge.apps.documents.opened import OpenedFile
from edge.errors import InputError

_TITLES = frozenset({"title", "ctrTitle"})
_FURNITURE = frozenset({"sldNum", "dt", "ftr", "hdr", "sldImg"})


def extract(file: OpenedFile) -> Document:
    """Reads a PPTX file.

    Raises:
        InputError: the file is damaged.
        Skipped: the file is encrypted, or its slides have no text.
    """
    blocks: list[Block] = []
    with Archive(file.stream) as archive:
        main = archive.related("", "officeDocument") or "ppt/presentation.xml"
        relations = archive.relations(main)
        for page, entry in enumerate(archive.xml(main).iter("{*}sldId"), 1):
            # A slide's entry has two attributes called id; the one with a namespace names the relation.
            identity = next((value for key, value in entry.attrib.items() if key.endswith("}id")), "")
            kind, name = relations.get(identity, ("", ""))
            if kind != "slide":
                raise InputError(f"a damaged document: slide {page} is missing")
            blocks += _slide(archive, name, page)
    if not blocks:
        raise Skipped(Reason.NO_TEXT, "no slide shows any text")
    title = next((block.path[0] for block in blocks if block.path), "")
    return Document(title, blocks)


def _slide(archive: Archive, name: str, page: int) -> Iterator[Block]:
    """The blocks of a slide: its title, its other text, its notes."""
    slide = archive.xml(name)
    shapes = list(_shapes(slide))
    titles = [shape for shape in shapes if _placeholder(shape) in _TITLES]
    line = 1
    path: tuple[str, ...] = ()
    for shape in titles[:1]:
        text = " ".join(" ".join(_paragraphs(shape)).split())
        if text:
            path = (text,)
            yield Block(text, line, line, page, "heading", path)
            line += 1
    notes = archive.related(name, "notesSlide")
    parts = [(shape, path) for shape in shapes if shape not in titles[:1]]
    if notes in archive.names:
        parts += [(shape, (*path, "Notes")) for shape in _shapes(archive.xml(notes))]
    for shape, under in parts:
        if _placeholder(shape) in _FURNITURE:
            continue
        for text in _paragraphs(shape):
            lines = (line,) * (text.count("\n") + 1)
            yield Block(text, line, line, page, "prose", under, lines)
            line += 1


def _shapes(slide: Any) -> Iterator[Any]:
    """Shapes and graphic frames with text, in the order of the file, which is the drawing order."""
    return outermost(slide, {"sp", "graphicFrame"}, {"Fallback"})


def _placeholder(shape: Any) -> str:
    """The role of a shape on its slide: `title`, `body`, `sldNum`, ...; empty for a shape without a role."""
    element = next(shape.iter("{*}ph"), None)
    return "" if element is None else (attribute(element, "type") or "body")


def _paragraphs(shape: Any) -> Iterator[str]:
    """Texts of a shape's paragraphs and table rows."""
    for found in outermost(shape, {"tr", "p"}):
        if local(found) == "tr":
            cells = (" ".join(" ".join(_text(p) for p in cell.iter("{*}p")).split()) for cell in found.iter("{*}tc"))
            row = " | ".join(cells)
            if row.strip(" |"):
                yield row.rstrip()
        elif text := _text(found):
            yield text


def _text(paragraph: Any) -> str:
    found = paragraph.iter("{*}t", "{*}br", "{*}tab")
    text = "".join({"br": "\n", "tab": "\t"}.get(local(element)) or element.text or "" for element in found)
    lines = (line.strip() for line in clean(text).split("\n"))
    return "\n".join(line for line in lines if line)
