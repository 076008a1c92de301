"""XML that people read: feeds, papers, FictionBook. An element with text of its own is a paragraph, with all that is in
it; the titles of other elements are headings. The HTML that feeds quote is read as a page is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from edge.apps.documents.archive import attribute, local, parse_xml
from edge.apps.documents.base import Block, DocumentBlocks, Outline, Reason, Skipped, first_heading
from edge.apps.documents.code import extract as extract_code
from edge.apps.documents.decoding import declared_encoding
from edge.apps.documents.html import html_blocks
from edge.apps.documents.office import extract_flat_odf
from edge.apps.documents.opened import OpenedFile
from edge.errors import InputError

_TITLES = frozenset({"title", "book-title", "article-title", "head", "subtitle"})
_LEFT_OUT = frozenset({"binary", "guid", "generator", "image-data"})
_QUOTED = re.compile(r"<(?:p|br|div|ul|ol|li|a|img|h[1-6]|table|b|i|em|strong)\b[^<>]*>", re.IGNORECASE)
_DECLARATION = re.compile(r"\A\s*<\?xml[^>]*\?>")


def extract(file: OpenedFile) -> DocumentBlocks:
    """Reads an XML file; as source code if it is not well-formed."""
    decoded = file.text(declared=declared_encoding(file.head))
    try:
        root = parse_xml(_DECLARATION.sub("", decoded.text, count=1).encode(), "the file")
    except InputError:
        return extract_code(file)
    if local(root) == "document" and attribute(root, "mimetype"):
        return extract_flat_odf(root)
    blocks = list(_blocks(root))
    if not blocks:
        raise Skipped(Reason.NO_TEXT, "the elements have no text")
    return DocumentBlocks(first_heading(blocks), blocks, decoded.encoding)


def _blocks(root: Any) -> Iterator[Block]:
    outline = Outline()
    waiting = [(root, 0)]
    while waiting:
        element, depth = waiting.pop()
        name = local(element)
        if not name or name in _LEFT_OUT:
            continue
        has_text = any(text and not text.isspace() for text in (element.text, *(child.tail for child in element)))
        text = ("" if has_text else " ").join(element.itertext())
        words = " ".join(text.split())
        if name not in _TITLES and not has_text:
            waiting += [(child, depth + 1) for child in reversed(element)]
        elif _QUOTED.search(words):
            for block in html_blocks(text, outline=Outline())[1]:
                line = element.sourceline
                lines = (line,) * (block.text.count("\n") + 1)
                yield Block(block.text, line, line, None, block.kind, (*outline.path, *block.path), lines, block.parts)
        elif words:
            last = element.sourceline + text.rstrip().count("\n")
            path = outline.enter(depth, words) if name in _TITLES else outline.path
            kind = "heading" if name in _TITLES else "paragraph"
            yield Block(words, element.sourceline, last, None, kind, path, (element.sourceline,))
