"""Readers of marked-up text. Each reader turns one file into a title and sections of plain text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from xml.etree import ElementTree

from .pairs import sections

Sections = list[tuple[str, str]]

_ROFF_ESCAPE = re.compile(r"\\f(?:\[[^\]]*\]|\(..|.)|\\s[+-]?\d|\\[&|^/,:%]|\\\*(?:\[[^\]]*\]|\(..|.)")
_ROFF_SIGN = re.compile(r"\\(?:\((..)|\[([a-z]{2})\])")
_ROFF_SIGNS = {"aq": "'", "dq": '"', "lq": '"', "rq": '"', "em": "-", "en": "-", "bu": "", "ti": "~", "ha": "^"}
_ROFF_SILENT = re.compile(
    r"[.'](?:\\\"|TH|Dd|Dt|Os|PP|P|LP|TP|IP|HP|RS|RE|nf|fi|br|sp|in|ad|na|nh|hy|ne|de|if|ie|el|ig|so|UE|UR|Pp|Bl|El|Bd|"
    r"Ed|it|ta|tr|ds|nr|ft|ps|ti|EX|EE|SY|YS|TS|TE|\.)"
)
_SPACE = re.compile(r"\s+")


def folded(text: str) -> str:
    """The text with each run of white space replaced by one blank."""
    return _SPACE.sub(" ", text).strip()


def markdown(source: str, longest: int = 100_000) -> tuple[str, Sections]:
    """Markdown or reStructuredText: the first heading is the title."""
    if source.startswith("---\n"):
        head, _, body = source[4:].partition("\n---")
        named = re.search(r"^title:\s*[\"']?(.+?)[\"']?\s*$", head, re.M)
        found = list(sections(body, 12, longest))
        return (named.group(1) if named else found[0][0] if found else ""), found
    found = list(sections(source, 12, longest))
    first = re.search(r"^#\s+(.+)$|^(.+)\n[=*#]{4,}\s*$", source, re.M)
    title = folded(next((g for g in first.groups() if g), "")) if first else ""
    return title or (found[0][0] if found else ""), found


def manual(source: str) -> tuple[str, Sections]:
    """A manual page in roff (man or mdoc macros): the line below NAME is the title."""
    found: Sections = []
    heading, body = "", list[str]()
    for line in [*source.splitlines(), ".SH end"]:
        if line.startswith((".SH", ".SS", ".Sh", ".Ss")):
            text = folded(" ".join(body))
            if text:
                found.append((heading, text))
            heading, body = _roff(line[3:]).strip(' "').capitalize(), []
        elif line.startswith((".", "'")):
            if line.startswith(".Nm") and len(line) < 4:
                continue
            if not _ROFF_SILENT.match(line):
                body.append(_roff(line.partition(" ")[2].replace('"', "")))
        else:
            body.append(_roff(line))
    names = [text for heading, text in found if heading == "Name"]
    return (names[0] if names else ""), [(h, t) for h, t in found if h not in {"Name", "Synopsis", "See also", ""}]


def _roff(line: str) -> str:
    line = _ROFF_ESCAPE.sub("", line)
    line = _ROFF_SIGN.sub(lambda m: _ROFF_SIGNS.get(m.group(1) or m.group(2), " "), line)
    return line.replace("\\-", "-").replace("\\e", "\\").replace("\\ ", " ").replace("\\", "")


class _Html(HTMLParser):
    """Headings and the text below them; scripts, tables of contents, code and navigation are left out."""

    _SKIPPED = frozenset({"script", "style", "nav", "pre", "header", "footer", "table", "head", "svg", "math"})

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.title = ""
        self.found: Sections = []
        self._heading = ""
        self._body: list[str] = []
        self._skip: list[str] = []
        self._in: str = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "title":
            self._in = "title"
        elif tag in self._SKIPPED:
            self._skip.append(tag)
        elif tag in {"h1", "h2", "h3", "h4"}:
            self.flush()
            self._in, self._heading = "heading", ""
        elif tag in {"p", "li", "dt", "dd", "div", "br"}:
            self._body.append("\n")

    def handle_endtag(self, tag: str) -> None:
        if self._skip and tag == self._skip[-1]:
            self._skip.pop()
        elif tag == "title" or tag in {"h1", "h2", "h3", "h4"}:
            self._in = ""

    def handle_data(self, data: str) -> None:
        if self._in == "title":
            self.title += data
        elif self._skip:
            return
        elif self._in == "heading":
            self._heading += data
        else:
            self._body.append(data)

    def flush(self) -> None:
        lines = [folded(line) for line in "".join(self._body).split("\n")]
        text = " ".join(line for line in lines if len(line.split()) > 3)
        if text:
            self.found.append((folded(self._heading).strip("¶# "), text))
        self._body = []


def html(source: str) -> tuple[str, Sections]:
    """A page of HTML: paragraphs and list items of at least four words under their headings."""
    reader = _Html()
    reader.feed(source)
    reader.flush()
    return folded(reader.title), reader.found


def _local(node: ElementTree.Element) -> str:
    return node.tag.rpartition("}")[2] if isinstance(node.tag, str) else ""


def _words(node: ElementTree.Element, left_out: frozenset[str]) -> str:
    parts = [node.text or ""]
    for child in node:
        if _local(child) not in left_out:
            parts.append(_words(child, left_out))
        parts.append(child.tail or "")
    return "".join(parts)


_NO_PROSE = frozenset(
    {
        "math",
        "figure",
        "table",
        "media",
        "note-ref",
        "link",
        "equation",
        "label",
        "metadata",
        "fig",
        "table-wrap",
        "disp-formula",
        "xref",
        "graphic",
        "ref-list",
        "inline-formula",
        "caption",
        "sup",
    }
)
"""Elements of CNXML and JATS that are skipped with their text."""


def xml(source: str) -> tuple[str, Sections, list[tuple[str, str]]]:
    """A chapter in CNXML or an article in JATS: title, sections, and glossary entries (term, meaning).

    Raises:
        ElementTree.ParseError: ``source`` is not valid XML.
    """
    root = ElementTree.fromstring(source)
    title = next((folded(_words(n, _NO_PROSE)) for n in root.iter() if _local(n) in {"article-title", "title"}), "")
    found: Sections = []
    for abstract in (n for n in root.iter() if _local(n) == "abstract"):
        text = folded(" ".join(_words(p, _NO_PROSE) for p in abstract.iter() if _local(p) in {"p", "para"}))
        if text:
            found.append(("Abstract", text))
    body = next((n for n in root.iter() if _local(n) in {"body", "content"}), None)
    if body is not None:
        found += _parts(body, title)
    entries = []
    for definition in (n for n in root.iter() if _local(n) == "definition"):
        term = next((folded(_words(n, _NO_PROSE)) for n in definition if _local(n) == "term"), "")
        meaning = " ".join(folded(_words(n, _NO_PROSE)) for n in definition if _local(n) == "meaning")
        if term and meaning:
            entries.append((term, meaning))
    return title, found, entries


def _parts(node: ElementTree.Element, heading: str) -> Iterator[tuple[str, str]]:
    own = [
        folded(_words(n, _NO_PROSE)) for n in node if _local(n) in {"p", "para", "list", "example", "note", "exercise"}
    ]
    if text := " ".join(t for t in own if t):
        yield heading, text
    for child in node:
        if _local(child) in {"sec", "section"}:
            named = next((folded(_words(n, _NO_PROSE)) for n in child if _local(n) == "title"), heading)
            yield from _parts(child, named)
