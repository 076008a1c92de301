"""Documents that are XML inside a ZIP container, read part by part with limits on the unpacked size; and what their
formats share: texts of drawings, and numbers of lists. Entities are not expanded, nothing external is loaded, and a
part that declares its own entities is refused."""

from __future__ import annotations

import re
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Container, Iterable, Iterator, Set
from contextlib import contextmanager
from itertools import zip_longest
from posixpath import join, normpath
from typing import IO, Any, BinaryIO

from edge.apps.documents.base import Reason, Skipped
from edge.apps.documents.decoding import clean
from edge.config import format_size
from edge.errors import InputError
from edge.resident import Closing

MAX_PART_BYTES = 40 * 10**6
MAX_PARTS_BYTES = 120 * 10**6
MAX_MEMBERS = 20_000
_PIECE = 1 << 20
_LONGEST_TAG = 1 << 10
_NO_MEMORY = 2
_XML: dict[str, Any] = {
    "resolve_entities": False, "no_network": True, "huge_tree": False, "load_dtd": False, "remove_comments": True,
    "remove_pis": True,
}  # fmt: skip
"""How XML is parsed. Anybody may have written it."""

_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, ValueError, OSError, RuntimeError)


class Archive(Closing):
    """An open ZIP container of XML parts. Bytes are counted while they are unpacked: stated sizes may be wrong."""

    def __init__(self, stream: BinaryIO) -> None:
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

    @contextmanager
    def _part(self, name: str) -> Iterator[_Counted]:
        if name not in self.names:
            raise InputError(f"a damaged document: its part {name[:100]} is missing")
        try:
            with self._zip.open(name) as part:
                yield _Counted(self, part)
        except _DAMAGE as error:
            raise InputError(f"a damaged document: its part {name[:100]} cannot be unpacked ({error})") from error

    def read(self, name: str) -> bytes:
        pieces, size = [], 0
        with self._part(name) as part:
            while piece := part.read():
                size += len(piece)
                if size > MAX_PART_BYTES:
                    raise InputError(f"a part unpacks to more than {format_size(MAX_PART_BYTES)}; that is no document")
                pieces.append(piece)
        return b"".join(pieces)

    def xml(self, name: str) -> Any:
        return parse_xml(self.read(name), f"its part {name[:100]}")

    def elements(self, name: str, wanted: str) -> Iterator[Any]:
        """Each element is deleted when the next one is requested, so that memory holds only one."""
        from lxml import etree

        with self._part(name) as part:
            found = etree.iterparse(part, tag=f"{{*}}{wanted}", **_XML)
            try:
                for _, element in found:
                    yield element
                    element.clear()
                    while element.getprevious() is not None:
                        del element.getparent()[0]
            except etree.LxmlError as error:
                raise refusal(error, f"a damaged document: its part {name[:100]} is not XML") from error

    def matches(self, name: str, pattern: re.Pattern[bytes]) -> Iterator[re.Match[bytes]]:
        """Where an expression of one element's tag matches. The part is unpacked once more, and does not count
        again."""
        left, rest = self._left, b""
        with self._part(name) as part:
            while piece := part.read():
                rest, end = rest + piece, 0
                for match in pattern.finditer(rest):
                    yield match
                    end = match.end()
                rest = rest[max(end, rest.rfind(b"<")) :][-_LONGEST_TAG:]
        self._left = left

    def spend(self, nbytes: int) -> None:
        self._left -= nbytes
        if self._left < 0:
            raise InputError(f"its parts unpack to more than {format_size(MAX_PARTS_BYTES)}; that is no document")

    def relations(self, name: str) -> dict[str, tuple[str, str]]:
        """Id to (last word of the relation's type, name of the other part)."""
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
        return next((path for found, path in self.relations(name).values() if found == kind), None)

    def title(self) -> str:
        """The title in the core properties (ECMA-376, part 2)."""
        name = self.related("", "core-properties")
        element = self.xml(name).find("{*}title") if name in self.names else None
        return _line(element)

    def close(self) -> None:
        self._zip.close()


class _Counted:
    def __init__(self, archive: Archive, part: IO[bytes]) -> None:
        self._archive = archive
        self._part = part

    def read(self, nbytes: int = _PIECE) -> bytes:
        piece = self._part.read(min(nbytes, _PIECE) if nbytes >= 0 else _PIECE)
        self._archive.spend(len(piece))
        return piece


def parse_xml(data: bytes, what: str) -> Any:
    from lxml import etree

    try:
        root = etree.fromstring(data, etree.XMLParser(**_XML))
    except (etree.LxmlError, ValueError) as error:
        raise refusal(error, f"a damaged document: {what} is not XML") from error
    doctype = root.getroottree().docinfo.internalDTD
    if doctype is not None and next(doctype.iterentities(), None) is not None:
        raise InputError(f"{what} declares entities, which no document needs")
    return root


def refusal(error: Exception, what: str) -> Exception:
    """libxml2 reports a lack of memory as a syntax error."""
    return MemoryError() if getattr(error, "code", None) == _NO_MEMORY else InputError(f"{what} ({error})")


def local(element: Any) -> str:
    """An element's name without its namespace; empty for comments and other nodes."""
    tag = element.tag
    return tag.rpartition("}")[2] if isinstance(tag, str) else ""


def outermost(element: Any, names: Set[str], left_out: Set[str] = frozenset()) -> Iterator[Any]:
    """Elements below `element` that have one of these names, in document order, without those inside another of them or
    inside one of `left_out`."""
    waiting = list(reversed(element))
    while waiting:
        found = waiting.pop()
        name = local(found)
        if name in names:
            yield found
        elif name not in left_out:
            waiting += reversed(found)


def dublin_core_title(root: Any) -> str:
    return _line(next(root.iter("{http://purl.org/dc/elements/1.1/}title"), None))


def _line(element: Any) -> str:
    return "" if element is None else " ".join(clean(element.text or "").split())


def attribute(element: Any, name: str) -> str | None:
    """By its name in any namespace: the strict and the transitional format use different ones."""
    for key, value in element.attrib.items():
        if key.rpartition("}")[2] == name:
            return str(value)
    return None


_DRAWINGS = frozenset({"chart", "chartEx", "diagramData"})


def drawings(archive: Archive, relations: Iterable[tuple[str, str]]) -> Iterator[str]:
    for kind, part in relations:
        if kind in _DRAWINGS and part in archive.names:
            root = archive.xml(part)
            yield from paragraphs(root)
            yield from _series(root)


def paragraphs(element: Any) -> Iterator[str]:
    return filter(None, map(paragraph_text, outermost(element, {"p"}, {"Fallback"})))


def paragraph_text(paragraph: Any) -> str:
    found = paragraph.iter("{*}t", "{*}br", "{*}tab")
    return shown_lines("".join({"br": "\n", "tab": "\t"}.get(local(each)) or each.text or "" for each in found))


def shown_lines(text: str) -> str:
    """The lines of a text that are not blank, without white space around them."""
    lines = (line.strip() for line in clean(text).split("\n"))
    return "\n".join(line for line in lines if line)


def description(shape: Any) -> str:
    found = next(shape.iter("{*}cNvPr", "{*}docPr"), None)
    return "" if found is None else " ".join(clean(found.get("descr", "")).split())


def _series(chart: Any) -> Iterator[str]:
    for series in chart.iter("{*}ser"):
        names, categories, values = (
            [" ".join(clean(value.text or "").split()) for part in parts for each in series.findall(part)
             for value in each.iter("{*}v")]
            for parts in (["{*}tx"], ["{*}cat", "{*}xVal"], ["{*}val", "{*}yVal"])
        )  # fmt: skip
        pairs = (" ".join(filter(None, pair)) for pair in zip_longest(categories, values, fillvalue=""))
        text = ": ".join(filter(None, (" ".join(names), ", ".join(filter(None, pairs)))))
        if text:
            yield text


_PLACE = re.compile("%([1-9])")
_LARGEST = 10_000
_MOST_BASES = 20
_ROMAN = ((1000, "m"), (900, "cm"), (500, "d"), (400, "cd"), (100, "c"), (90, "xc"), (50, "l"), (40, "xl"), (10, "x"),
          (9, "ix"), (5, "v"), (4, "iv"), (1, "i"))  # fmt: skip


class Numbering(ABC):
    @abstractmethod
    def label(self, paragraph: Any) -> str | None:
        """Counts a paragraph; returns its number as shown, such as `12.1`, empty for an item without one, None outside
        lists."""


class WordNumbering(Numbering):
    """ECMA-376, part 1, 17.9."""

    def __init__(self, numbering: Any, styles: Any) -> None:
        levels: dict[str, dict[int, tuple[int, str, str]]] = {}
        self._lists: dict[str, tuple[str, dict[int, tuple[int, str, str]], dict[int, int]]] = {}
        self._counts: dict[str, dict[int, int]] = {}
        self._styles: dict[str, tuple[str, int]] = {}
        self._based: dict[str, str] = {}
        by_style: dict[str, int] = {}
        for found in () if numbering is None else numbering.iter("{*}abstractNum"):
            own = levels[attribute(found, "abstractNumId") or ""] = {}
            for level in found.iter("{*}lvl"):
                depth = number_of(level, "ilvl")
                own[depth] = (
                    number_of(level.find("{*}start"), "val", 1),
                    _value(level, "numFmt"),
                    _value(level, "lvlText"),
                )
                if style := _value(level, "pStyle"):
                    by_style[style] = depth
        for found in () if numbering is None else numbering.iter("{*}num"):
            changed = (
                (number_of(each, "ilvl"), each.find("{*}startOverride")) for each in found.iter("{*}lvlOverride")
            )
            starts = {level: number_of(start, "val", 1) for level, start in changed if start is not None}
            abstract = _value(found, "abstractNumId")
            self._lists[attribute(found, "numId") or ""] = (abstract, levels.get(abstract, {}), starts)
        for style in () if styles is None else styles.iter("{*}style"):
            numbered = style.find("{*}pPr/{*}numPr")
            name = attribute(style, "styleId") or ""
            if numbered is not None:
                depth = number_of(numbered.find("{*}ilvl"), "val", by_style.get(name, 0))
                self._styles[name] = (_value(numbered, "numId"), depth)
            self._based[name] = _value(style, "basedOn")

    def label(self, paragraph: Any) -> str | None:
        place = self._place(paragraph)
        if place is None or place[0] not in self._lists:
            return None if place is None else ""
        name, depth = place
        abstract, levels, starts = self._lists[name]
        counts = self._counts.setdefault(abstract, {})
        for level, start in starts.items():  # a list of its own, although it has the levels of another
            counts[level] = start - 1
        starts.clear()
        start, form, shown = levels.get(depth, (1, "", ""))
        counts[depth] = counts.get(depth, start - 1) + 1
        for deeper in [level for level in counts if level > depth]:
            del counts[deeper]
        if form in ("bullet", "none"):
            return ""

        def count(match: re.Match[str]) -> str:
            level = int(match[1]) - 1
            first, form, _ = levels.get(level, (1, "", ""))
            return _shown(counts.get(level, first), form)

        return _PLACE.sub(count, shown).strip()

    def style(self, properties: Any, known: Container[str]) -> str:
        """The id of a paragraph's style, or of the first one in `known` that it is based on."""
        style = _value(properties, "pStyle")
        for _ in range(_MOST_BASES):
            if style in known:
                break
            style = self._based.get(style, "")
        return style

    def _place(self, paragraph: Any) -> tuple[str, int] | None:
        properties = paragraph.find("{*}pPr")
        if properties is None:
            return None
        style = self.style(properties, self._styles)
        numbered = properties.find("{*}numPr")
        if numbered is None and style not in self._styles:
            return None
        name, depth = self._styles.get(style, ("", 0))
        if numbered is not None:
            name, depth = _value(numbered, "numId") or name, number_of(numbered.find("{*}ilvl"), "val", depth)
        return None if name == "0" else (name, depth)


_FORMS = {"1": "decimal", "a": "lowerLetter", "A": "upperLetter", "i": "lowerRoman", "I": "upperRoman"}
_HEADINGS = ""


class OpenNumbering(Numbering):
    """OpenDocument 1.3, part 3, 5.3 and 16.30."""

    def __init__(self, *roots: Any) -> None:
        self._levels: dict[str, dict[int, Any]] = {}
        self._counts: dict[str, dict[int, int]] = {}
        self._begun: set[Any] = set()
        for style in (style for root in roots for style in root.iter("{*}list-style", "{*}outline-style")):
            name = attribute(style, "name") if local(style) == "list-style" else _HEADINGS
            self._levels[name or _HEADINGS] = {number_of(level, "level"): level for level in style.iter("{*}*")}

    def label(self, paragraph: Any) -> str | None:
        lists, item = list(paragraph.iterancestors("{*}list")), paragraph.getparent()
        if lists:
            style = next(filter(None, (attribute(each, "style-name") for each in lists)), _HEADINGS)
            depth = len(lists)
            if local(item) != "list-item" or next(item.iterchildren("{*}p", "{*}h")) is not paragraph:
                return ""
        else:
            style, depth, item = _HEADINGS, number_of(paragraph, "outline-level"), paragraph
            if not depth or attribute(paragraph, "is-list-header") == "true":
                return None
        levels, counts = self._levels.get(style, {}), self._counts.setdefault(style, {})
        if lists and lists[0] not in self._begun:
            self._begun.add(lists[0])
            if attribute(lists[0], "continue-numbering") != "true" and not attribute(lists[0], "continue-list"):
                counts.pop(depth, None)
        start = number_of(levels.get(depth), "start-value", 1)
        counts[depth] = number_of(item, "start-value", counts.get(depth, start - 1) + 1)
        for deeper in [level for level in counts if level > depth]:
            del counts[deeper]
        forms = {at: _FORMS.get(attribute(level, "num-format") or "") for at, level in levels.items()}
        if not forms.get(depth):
            return ""
        first = max(1, depth + 1 - number_of(levels[depth], "display-levels", 1))
        above = ((at, forms.get(at)) for at in range(first, depth + 1))
        number = ".".join(
            _shown(counts.get(at, number_of(levels[at], "start-value", 1)), form) for at, form in above if form
        )
        prefix, suffix = (attribute(levels[depth], name) or "" for name in ("num-prefix", "num-suffix"))
        return f"{prefix}{number}{suffix}".strip()


def _shown(number: int, form: str) -> str:
    if form.endswith("Letter") and 0 < number < _LARGEST:  # a, ..., z, aa, bb, ...
        text = chr(ord("a") + (number - 1) % 26) * ((number - 1) // 26 + 1)
    elif form.endswith("Roman") and 0 < number < _LARGEST:
        text = ""
        for value, letters in _ROMAN:
            text += letters * (number // value)
            number %= value
    else:
        return f"{number:02}" if form == "decimalZero" else str(number)
    return text.upper() if form.startswith("upper") else text


def _value(element: Any, name: str) -> str:
    child = None if element is None else element.find(f"{{*}}{name}")
    return "" if child is None else attribute(child, "val") or ""


def number_of(element: Any, name: str, default: int = 0) -> int:
    value = "" if element is None else attribute(element, name) or ""
    return int(value) if value.isdecimal() and len(value) < 10 else default
