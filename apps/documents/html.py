"""HTML, EPUB and XML that people read: the text of a page under its headings, without scripts, styles and navigation.
Line numbers are those of the file. A chapter of an EPUB's spine is a page. In feeds, papers and FictionBook an element
with text of its own is a paragraph, and HTML that they quote is read as a page is."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from posixpath import dirname, join, normpath
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from edge.apps.documents.archive import attribute, local, parse_xml
from edge.apps.documents.base import MAX_TEXT_CHARS, Block, DocumentBlocks, Outline, Reason, Skipped, first_heading
from edge.apps.documents.code import extract as extract_code
from edge.apps.documents.decoding import clean, declared_encoding, decode
from edge.apps.documents.kinds import COLUMNS, NAVIGATION, ROW, WORD, Part, Parts
from edge.apps.documents.office import extract_flat_odf
from edge.apps.documents.opened import HEAD_BYTES, OpenedFile, too_much_text
from edge.apps.documents.tables import LONGEST_MERGED
from edge.errors import InputError

if TYPE_CHECKING:
    from edge.apps.documents.archive import Archive

_NEVER = frozenset({
    "script", "style", "noscript", "template", "svg", "annotation", "annotation-xml", "iframe", "object", "embed",
    "canvas", "audio", "video", "map", "head", "title", "select", "datalist", "textarea", "button", "input", "rt", "rp",
})  # fmt: skip
_NAVIGATION = frozenset({"nav", "menu", "dialog"})
_NAVIGATION_ROLES = frozenset({"navigation", "search", "menu", "menubar", "banner", "contentinfo"})
_BLOCKS = frozenset({
    "html", "body", "address", "article", "aside", "blockquote", "center", "dd", "details", "dialog", "dir",
    "div", "dl", "dt", "fieldset", "figcaption", "figure", "footer", "form", "frameset", "header", "hgroup",
    "hr", "legend", "li", "main", "menu", "nav", "noframes", "ol", "p", "section", "summary", "table", "tbody",
    "tfoot", "thead", "tr", "ul", "caption", "pre", "listing", "plaintext", "xmp", "h1", "h2", "h3", "h4", "h5",
    "h6",
})  # fmt: skip
_HEADINGS = {f"h{level}": level for level in range(1, 7)}
_WORD = re.compile(r"\S+")
_ANCHORS = frozenset({"#", "¶", "§", "🔗"})

_PREFORMATTED = frozenset({"pre", "listing", "plaintext", "xmp"})
_FORMULA = frozenset({"mi", "mn", "mo", "ms", "mtext"})

_LINKED = 0.9  # A block is a menu if links have so much of its letters.
_MENU_WORDS = 8
_VALUE = re.compile(r"[\d@$€£%]|://|\w\.\w")  # A link that shows its address, or a number, is no menu.
_UNSEEN = re.compile(r"display\s*:\s*none|visibility\s*:\s*hidden", re.IGNORECASE)
_CELLS = frozenset({"td", "th"})
_RAISED = frozenset({"sup", "sub"})
_MOST_REPEATED = 10**6

_ITEMS = frozenset({"li", "dd"})
_LAST_KNOWN_LINE = 65_535  # The parser does not count lines beyond this.
_FIRST_NEWLINE = re.compile(r"(<(?:pre|listing|textarea)\b[^<>]*>)(?=\n)", re.I)
"""The parser drops a line end behind these tags; a space before it preserves the line count."""

_BODY = re.compile(r"<(?:html|head|body|frameset)\b", re.I)
_XHTML = re.compile(r"\s*<\?xml|[^>]{0,400}?<html[^>]{0,400}?\bxmlns=", re.I)
_SELF_CLOSED = re.compile(r"<([a-zA-Z][\w:-]*)\b([^<>]*)/>")
_VOID = frozenset({
    "area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param", "source", "track",
    "wbr",
})  # fmt: skip


def extract(file: OpenedFile) -> DocumentBlocks:
    text = file.text(declared=declared_encoding(file.head))
    return DocumentBlocks(*html_blocks(text))


def html_blocks(text: str, *, page: int | None = None, outline: Outline | None = None) -> tuple[str, list[Block]]:
    from lxml import etree

    from edge.apps.documents.archive import refusal

    addresses = _BOOKMARKS.match(text) is not None
    if _XHTML.match(text):  # an HTML parser would treat `<title/>` as an opening tag
        text = _SELF_CLOSED.sub(_closed, text)
    if not _BODY.search(text):  # the parser would drop white space, and so lines, before a fragment's first element
        text = f"<body>{text}"
    text = _FIRST_NEWLINE.sub(r"\1 ", text)
    # Trees deeper than 256 are allowed: entities are not expanded, and the length of the text is limited.
    parser = etree.HTMLParser(encoding="utf-8", recover=True, no_network=True, huge_tree=True)
    try:
        root = etree.fromstring(text.encode("utf-8"), parser)
    except (etree.LxmlError, ValueError) as error:
        raise refusal(error, "not HTML that can be read") from error
    if any("RESOURCE_LIMIT" in error.type_name for error in parser.error_log):
        raise InputError("nested deeper than the 2,048 elements that are read")
    if root is None:
        return "", []
    found = root.find(".//title")
    title = " ".join(" ".join(found.itertext()).split()) if found is not None else ""
    blocks = _without_menus(_PageReader(page, outline or Outline(), _NAVIGATION, addresses).read(root))
    if not blocks:  # the whole page is inside a navigation element that was never closed
        blocks = _PageReader(page, outline or Outline(), frozenset(), addresses).read(root)
    described = list(_described(root, page))
    if _words(blocks) < _words(described):  # the page is made by a script
        blocks += described
    return title or first_heading(blocks), blocks


def _words(blocks: Iterable[Block]) -> int:
    return sum(len(block.text.split()) for block in blocks if block.kind != "heading")


def _without_menus(blocks: list[Block]) -> list[Block]:
    """The blocks without the menus at both ends of a page, if most of its text is left."""
    menus = [_is_menu(block) for block in blocks]
    first = next((at for at, is_menu in enumerate(menus) if not is_menu), 0)
    last = next((at for at in range(len(blocks), first, -1) if not menus[at - 1]), len(blocks))
    kept = blocks[first:last]
    return kept if _words(blocks) <= 2 * _words(kept) else blocks


def _is_menu(block: Block) -> bool:
    linked = block.kind != "heading" and block.parts == ((NAVIGATION, len(block.text)),)
    return linked and len(WORD.findall(block.text)) <= _MENU_WORDS and _VALUE.search(block.text) is None


def _described(root: Any, page: int | None) -> Iterator[Block]:
    """A page's description, and its data as JSON-LD (schema.org)."""
    from edge.apps.documents.json_files import NotJson, leaves

    for element in root.iter("meta"):
        name = (element.get("name") or element.get("property") or "").lower()
        if name in _DESCRIPTIONS and (text := " ".join(clean(element.get("content", "")).split())):
            yield Block.of([(text, element.sourceline)], "paragraph", (), page)
            break
    for element in root.iter("script"):
        if (element.get("type") or "").strip().lower() != "application/ld+json":
            continue
        with suppress(NotJson):
            lines = [
                (f"{names[-1]}: {' '.join(html.unescape(leaf.value).split())}", element.sourceline)
                for leaf in leaves(element.text or "")
                if (names := [key for key in leaf.path if isinstance(key, str)])
                and _DATA_LEFT_OUT.isdisjoint(names)
                and not names[-1].startswith("@")
                and not leaf.value.startswith(("http://", "https://"))
                and leaf.value.strip()
            ]
            if lines:
                yield Block.of(lines, "fields", (), page)


def _fills_cell(element: Any) -> bool:
    """Whether an element is all that a table's cell has, and so no block of its own."""
    cell = element.getparent()
    alone = element.tag in ("p", "div") and cell is not None and cell.tag in _CELLS and len(cell) == 1
    return alone and not (cell.text or "").strip() and not (element.tail or "").strip()


_BOOKMARKS = re.compile(r"\s*<!DOCTYPE\s+NETSCAPE-Bookmark-file", re.IGNORECASE)

_DESCRIPTIONS = frozenset({"description", "og:description", "twitter:description", "dc.description"})
_DATA_LEFT_OUT = frozenset({
    "url", "image", "logo", "sameAs", "thumbnailUrl", "contentUrl", "potentialAction", "publisher", "breadcrumb",
    "itemListElement", "mainEntityOfPage", "isPartOf", "inLanguage", "position",
})  # fmt: skip


def _closed(match: re.Match[str]) -> str:
    return match[0] if match[1].lower() in _VOID else f"<{match[1]}{match[2]}></{match[1]}>"


class _Grid:
    """The cells of a table that reach down to later rows, which have their value, too."""

    def __init__(self) -> None:
        self.column = 0
        self._below: dict[int, tuple[int, str]] = {}

    def inherited(self) -> Iterator[str]:
        while (above := self._below.pop(self.column, None)) is not None:
            left, value = above
            if left > 1:
                self._below[self.column] = (left - 1, value)
            self.column += 1
            yield value

    def enter(self, cell: Any) -> None:
        rows, columns = (_count(cell.get(name)) for name in ("rowspan", "colspan"))
        value = " ".join("".join(cell.itertext()).split()) if rows > 1 else ""
        if rows > 1 and len(value) <= LONGEST_MERGED:
            self._below[self.column] = (rows - 1, value)
        self.column += columns


def _count(span: str | None) -> int:
    return int(span) if span and span.strip().isdecimal() and len(span) < 5 else 1


class _PageReader:
    def __init__(self, page: int | None, outline: Outline, navigation: frozenset[str], addresses: bool) -> None:
        self._page = page
        self._addresses = addresses
        self._outline = outline
        self._navigation = navigation
        self._line = 1
        self._end_line = 1
        self._lines: list[tuple[str, int]] = [("", 1)]
        self._blocks: list[Block] = []
        self._heading = 0
        self._preformatted = 0
        self._items = 0
        self._hidden = 0
        self._cells: list[str] = []
        self._grids: list[_Grid] = []
        self._repeated = 0
        self._linked = 0
        self._links = 0

    def read(self, root: Any) -> list[Block]:
        from lxml import etree

        for event, element in etree.iterwalk(root, events=("start", "end", "comment", "pi")):
            if event == "start":
                self._start(element)
            elif event == "end":
                self._end(element)
            else:
                self._place(element)
                self._tail(element)
        self._flush()
        return self._blocks

    def _start(self, element: Any) -> None:
        self._place(element)
        tag = element.tag
        if self._hidden or self._hides(element):
            self._hidden += 1
        elif tag in _BLOCKS and not _fills_cell(element):
            self._flush()
            self._heading = _HEADINGS.get(tag, 0)
            self._preformatted += tag in _PREFORMATTED
            self._items += tag in _ITEMS
            if tag == "table":
                self._grids.append(_Grid())
            elif tag == "tr" and self._grids:
                self._grids[-1].column = 0
        elif tag == "a":
            self._links += 1
        elif tag in _CELLS:
            self._cells.append(tag)
            self._inherit()
            if self._grids:
                self._grids[-1].enter(element)
            self._add(" | " if self._gathers() else "")
        elif tag == "br":
            self._break()
        elif tag == "img":
            self._add(" ".join(element.get("alt", "").split()))
        elif tag in _FORMULA:
            self._add(" ")
        if element.text:
            text = element.text.lstrip() if tag in _RAISED else element.text
            self._line += element.text.count("\n") - text.count("\n")
            self._add(text)

    def _end(self, element: Any) -> None:
        tag = element.tag
        if self._hidden:
            self._hidden -= 1
        elif tag in _BLOCKS and not _fills_cell(element):
            if tag == "tr" and self._gathers():
                self._inherit()
            self._flush()
            self._heading = 0
            self._preformatted -= tag in _PREFORMATTED
            self._items -= tag in _ITEMS
            if tag == "table":
                self._grids.pop()
        elif tag == "a":
            self._links -= 1
            if self._addresses and (address := element.get("href")):
                self._add(f" ({address})")
        elif tag in _FORMULA:
            self._add(" ")
        self._tail(element)

    def _inherit(self) -> None:
        for value in self._grids[-1].inherited() if self._grids else ():
            self._repeated += len(value)
            if self._repeated <= _MOST_REPEATED:
                self._add(f" | {value}" if self._gathers() else value)

    def _gathers(self) -> bool:
        return any(line for line, _ in self._lines)

    def _hides(self, element: Any) -> bool:
        tag = element.tag
        if tag in _NEVER or element.get("hidden") is not None:
            return True
        if tag == "a" and self._heading and (element.text or "").strip() in _ANCHORS and not len(element):
            return True
        if (style := element.get("style")) is not None and _UNSEEN.search(style):
            return True
        if not self._navigation:
            return False
        if tag == "footer":  # that of an article or a quotation is part of it
            return next(element.iterancestors("article", "blockquote", "main", "section"), None) is None
        return tag in self._navigation or element.get("role") in _NAVIGATION_ROLES

    def _place(self, element: Any) -> None:
        line = element.sourceline or 0
        if self._line < line < _LAST_KNOWN_LINE:
            self._line = line

    def _tail(self, element: Any) -> None:
        if element.tail:
            self._add(element.tail)

    def _add(self, text: str) -> None:
        if self._hidden:
            self._line += text.count("\n")
            return
        for at, piece in enumerate(text.split("\n")):
            if at:
                self._line += 1
                self._break()
            if piece:
                gathered, number = self._lines[-1]
                # After a tag or comment that contains line ends, the text continues on a new line. But a word that
                # surrounds the tag is kept whole.
                if gathered and number < self._line:
                    begun = None if gathered[-1].isspace() else _WORD.match(piece)
                    word = "" if begun is None else begun[0]
                    self._lines[-1] = (gathered + word, number)
                    piece, gathered = piece[len(word) :], ""
                    self._break()
                self._lines[-1] = (gathered + piece, number if gathered else self._line)
                if not piece.isspace():
                    self._end_line = self._line
                    self._linked += sum(map(str.isalnum, piece)) if self._links else 0

    def _break(self) -> None:
        self._lines.append(("", self._line))

    def _flush(self) -> None:
        gathered, self._lines = self._lines, [("", self._line)]
        cells, self._cells = self._cells, []
        linked, self._linked = self._linked, 0
        if self._preformatted:
            kept = [(line.rstrip(), number) for line, number in gathered]
            while kept and not kept[0][0]:
                del kept[0]
            while kept and not kept[-1][0]:
                del kept[-1]
        else:
            kept = [(" ".join(line.split()), number) for line, number in gathered if line and not line.isspace()]
        if not kept:
            return
        text = "\n".join(line for line, _ in kept)
        numbers = tuple(number for _, number in kept)
        path, kind = self._outline.path, "code" if self._preformatted else "item" if self._items else "paragraph"
        parts: tuple[Part, ...] | None = None
        if self._heading:
            path, kind = self._outline.enter(self._heading, " ".join(text.split())), "heading"
        elif self._preformatted:
            shown = Parts(text)
            shown.fence(0, len(text))
            parts = tuple(shown.found)
        elif linked and linked >= _LINKED * sum(map(str.isalnum, text)):
            parts = ((NAVIGATION, len(text)),)
        elif len(cells) > 1:
            parts = ((ROW if "td" in cells else COLUMNS, len(text)),)
        last = max(self._end_line, numbers[-1])
        self._blocks.append(Block(text, numbers[0], last, self._page, kind, path, numbers, parts))


_CHAPTER_TYPES = frozenset({"application/xhtml+xml", "text/html", "application/html", "text/x-oeb1-document"})


def extract_epub(file: OpenedFile) -> DocumentBlocks:
    from edge.apps.documents.archive import Archive, dublin_core_title

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
            chapter = archive.read(name)
            text = decode(chapter, declared=declared_encoding(chapter[:HEAD_BYTES]))
            chars += len(text)
            if chars > MAX_TEXT_CHARS:
                raise too_much_text()
            blocks += html_blocks(text, page=page, outline=Outline())[1]
        title = dublin_core_title(root)
    return DocumentBlocks(title, blocks)


def _package(archive: Archive) -> str:
    for element in archive.xml("META-INF/container.xml").iter("{*}rootfile"):
        if element.get("full-path"):
            return str(element.get("full-path"))
    raise InputError("a damaged EPUB: its container names no package")


def _encrypted(archive: Archive) -> frozenset[str]:
    """Obfuscated fonts are listed among them, too."""
    if "META-INF/encryption.xml" not in archive.names:
        return frozenset()
    references = archive.xml("META-INF/encryption.xml").iter("{*}CipherReference")
    return frozenset(unquote(reference.get("URI", "")) for reference in references)


_XML_TITLES = frozenset({"title", "book-title", "article-title", "head", "subtitle"})
_XML_LEFT_OUT = frozenset({"binary", "guid", "generator", "image-data"})
_HTML = re.compile(r"<(?:p|br|div|ul|ol|li|a|img|h[1-6]|table|b|i|em|strong)\b[^<>]*>", re.IGNORECASE)
_DECLARATION = re.compile(r"\A\s*<\?xml[^>]*\?>")


def extract_xml(file: OpenedFile) -> DocumentBlocks:
    """Reads an XML file; as source code if it is not well-formed."""
    text = file.text(declared=declared_encoding(file.head))
    try:
        root = parse_xml(_DECLARATION.sub("", text, count=1).encode(), "the file")
    except InputError:
        return extract_code(file)
    if local(root) == "document" and attribute(root, "mimetype"):
        return extract_flat_odf(root)
    blocks = list(_xml_blocks(root))
    return DocumentBlocks(first_heading(blocks), blocks)


def _xml_blocks(root: Any) -> Iterator[Block]:
    outline = Outline()
    waiting = [(root, 0)]
    while waiting:
        element, depth = waiting.pop()
        name = local(element)
        if not name or name in _XML_LEFT_OUT:
            continue
        has_text = any(text and not text.isspace() for text in (element.text, *(child.tail for child in element)))
        text = ("" if has_text else " ").join(element.itertext())
        words = " ".join(text.split())
        if name not in _XML_TITLES and not has_text:
            waiting += [(child, depth + 1) for child in reversed(element)]
        elif _HTML.search(words):
            for block in html_blocks(text, outline=Outline())[1]:
                path = (*outline.path, *block.path)
                yield Block.of([(block.text, element.sourceline)], block.kind, path, None, block.parts)
        elif words:
            last = element.sourceline + text.rstrip().count("\n")
            path = outline.enter(depth, words) if name in _XML_TITLES else outline.path
            kind = "heading" if name in _XML_TITLES else "paragraph"
            yield Block(words, element.sourceline, last, None, kind, path, (element.sourceline,))
