"""The types of files: their names, and the choice of the extractor for a file. First bytes that are characteristic
decide, then the name; other files are plain text."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import cast

from edge.apps.documents import base
from edge.apps.documents.base import DocumentBlocks, Reason, Skipped
from edge.apps.documents.chats import is_chat
from edge.apps.documents.decoding import unmarked_utf_16
from edge.apps.documents.history import is_history
from edge.apps.documents.opened import OpenedFile

_HOME = "edge.apps.documents"

Extract = Callable[[OpenedFile], DocumentBlocks]
"""Reads an opened file in a worker process. Raises `InputError` with one sentence; any other error counts as damage."""


@dataclass(frozen=True, slots=True)
class Kind:
    name: str
    extractor: str
    suffixes: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()


def _kind(name: str, extractor: str, suffixes: str, names: str = "") -> Kind:
    return Kind(
        name, f"{_HOME}.{extractor}", frozenset(f".{suffix}" for suffix in suffixes.split()), frozenset(names.split())
    )


TEXT = _kind("text", "plain:extract", "txt text log org adoc asciidoc", "readme license copying")
TRANSCRIPT = _kind(base.TRANSCRIPT, "chats:extract_transcript", "srt vtt sbv")
CHAT = _kind(base.CHAT, "chats:extract", "")
PDF = _kind("pdf", "pdf:extract", "pdf")
DOCX = _kind("docx", "office:extract_docx", "docx docm dotx")
PPTX = _kind("pptx", "office:extract_pptx", "pptx pptm ppsx potx")
IMAGE = _kind("image", "pictures:extract", "png jpg jpeg tif tiff bmp webp gif")
MAIL = _kind("mail", "mail:extract", "eml emlx mbox mbx")
CALENDAR = _kind(base.CALENDAR, "agenda:extract_calendar", "ics ical ifb icalendar")
CONTACTS = _kind("contacts", "agenda:extract_contacts", "vcf vcard")
OLD = {f".{name}": _kind(name, "office:extract_old", "") for name in ("doc", "xls", "ppt")}
MANUAL = _kind("manual", "roff:extract", "")
HISTORY = _kind("history", "history:extract", "")
RTF = _kind("rtf", "office:extract_rtf", "rtf")
OUTLOOK = _kind("mail", "mail:extract_outlook", "msg")
ARCHIVE = _kind(base.ARCHIVE, "members:extract", "zip gz tgz tar")
XLSX = _kind("xlsx", "tables:extract_xlsx", "xlsx xlsm xltx xltm")
ODF = {
    "text": _kind("odt", "office:extract_odf", "odt ott"),
    "spreadsheet": _kind("ods", "office:extract_odf", "ods ots"),
    "presentation": _kind("odp", "office:extract_odf", "odp otp"),
}
"""The kinds by the type in the container's first member."""

EPUB = _kind("epub", "html:extract_epub", "epub")
HTML = _kind("html", "html:extract", "html htm xhtml xht")
XML = _kind("xml", "html:extract_xml", "fb2 rss atom opml fodt fods fodp")
PYTHON = _kind("code", "code:extract_python", "py pyi pyw")
CODE = _kind(
    "code",
    "code:extract",
    "c h cc cpp cxx hpp hh hxx inl ino m mm cs java kt kts scala groovy gradle go rs swift zig nim d v sv vhd vhdl "
    "js mjs cjs jsx ts tsx vue svelte css scss sass less php rb pl pm lua r jl hs lhs elm ml mli fs fsx clj cljs lisp "
    "el scm rkt erl hrl ex exs dart pas f f77 f90 f95 f03 for cob asm s sql sh bash zsh fish ps1 psm1 bat cmd awk sed "
    "tcl cmake mk mak ninja proto thrift graphql tf hcl nix bzl toml yaml yml ini cfg conf properties desktop service "
    "xml xsd xsl xslt rng dtd po pot diff patch",
    "makefile gnumakefile dockerfile containerfile jenkinsfile vagrantfile rakefile gemfile cmakelists.txt meson.build "
    "build workspace justfile procfile",
)
KINDS = (
    _kind("markdown", "markdown:extract", "md markdown mdown mkd mdx"),
    _kind("rst", "plain:extract_rst", "rst rest"),
    PYTHON,
    CODE,
    HTML,
    XML,
    PDF,
    DOCX,
    PPTX,
    XLSX,
    *ODF.values(),
    EPUB,
    MAIL,
    IMAGE,
    RTF,
    _kind("latex", "latex:extract", "tex latex ltx"),
    _kind("bibtex", "latex:extract_bibtex", "bib bibtex"),
    OUTLOOK,
    ARCHIVE,
    CALENDAR,
    CONTACTS,
    TRANSCRIPT,
    CHAT,
    HISTORY,
    MANUAL,
    *OLD.values(),
    _kind("csv", "tables:extract", "csv tsv tab"),
    _kind("json", "json_files:extract", "json geojson webmanifest"),
    _kind("json", "json_files:extract_lines", "jsonl ndjson jsonlines"),
    _kind("notebook", "json_files:extract_notebook", "ipynb"),
    TEXT,
)

_CONTAINERS = (DOCX, PPTX, XLSX, *ODF.values(), EPUB)

_OPEN_DOCUMENT = re.compile(rb"mimetypeapplication/vnd\.oasis\.opendocument\.(text|spreadsheet|presentation)")

_BY_SUFFIX = {suffix: kind for kind in KINDS for suffix in kind.suffixes}
_BY_NAME = {name: kind for kind in KINDS for name in kind.names}

_OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_REFUSED = {
    _OLE: (
        Reason.UNSUPPORTED,
        "an old binary Office file, or an encrypted one; save it as DOCX, XLSX, PPTX or PDF without a password",
    ),
    b"%!PS": (Reason.UNSUPPORTED, "PostScript is not read; convert it to PDF"),
}
_UNSUPPORTED = {".svg": "SVG drawings are not read", ".xlsb": "XLSB is not read; save it as XLSX"}
_PICTURES = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"II*\0", b"MM\0*")
_LETTERED_PICTURES = (b"GIF87a", b"GIF89a", b"BM")
"""Signatures that a text may begin with, such as one about BMI. Only a binary file with one of them is a picture."""

_BOMS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff", b"\x00\x00\xfe\xff")
_CONTROL = bytes(set(range(32)) - set(b"\t\n\r\f\b\x1b"))
_CONTROL_SHARE = 0.04  # Random bytes contain a tenth of these control characters; text contains hardly any.
_MARKUP = re.compile(
    rb"\s*(?:<\?xml[^>]{0,200}\?>\s*)?(?:<!--(?:(?!-->).)*-->\s*)*<(?:!doctype\s+html|html)\b", re.I | re.S
)
_READ_XML = re.compile(
    rb"(?:\xef\xbb\xbf)?\s*(?:<\?xml[^>]{0,200}\?>\s*)?(?:<[!?][^>]*>\s*)*"
    rb"<(?:(?:\w+:)?(?:rss|feed|RDF|FictionBook|article|book|TEI|OPS|document)\b|[^!?\n][^\n]{2000})"
)
"""XML that people read: feeds, papers, books, office files; and other XML that is one long line."""

_SHEBANG = re.compile(rb"#![^\n]{0,200}?\b(python|sh|bash|zsh|perl|ruby|node|lua|awk|tclsh)")


_MANUAL = re.compile(rb"\s*(?=[.'])(?:[^\n]*\n)*?[.'][ \t]*(?:TH|Dd|SH|Sh|so)\b")
"""A manual page in roff: it begins with a request or a comment, and names its title, a section or another page."""


def choose(name: str, head: bytes) -> Kind:
    suffix = "." + name.rpartition(".")[2].lower() if "." in name[1:] else ""
    by_name = _BY_SUFFIX.get(suffix) or _BY_NAME.get(name.lower())
    if head.lstrip().startswith(b"%PDF-") or (by_name in (PDF, None) and b"%PDF-" in head[:1024]):
        return PDF
    if head.startswith(b"{\\rtf"):
        return RTF
    if by_name is OUTLOOK and head.startswith(_OLE):
        return OUTLOOK
    if head.startswith(_OLE) and suffix in OLD:
        return OLD[suffix]
    if is_history(name, head):
        return HISTORY
    for magic, (reason, message) in _REFUSED.items():
        if head.startswith(magic):
            raise Skipped(reason, message)
    if suffix in _UNSUPPORTED:
        raise Skipped(Reason.UNSUPPORTED, _UNSUPPORTED[suffix])
    if head.startswith(b"PK\x03\x04"):
        return _zipped(suffix, head)
    if head.startswith(_PICTURES) or (head.startswith(_LETTERED_PICTURES) and is_binary(head)):
        return IMAGE
    if head.startswith(b"\x1f\x8b") or head[257:262] == b"ustar":
        return ARCHIVE
    if by_name is OUTLOOK and is_message(head):  # other programs write ordinary mails under this name
        return MAIL
    if by_name in _CONTAINERS or by_name in (PDF, RTF, OUTLOOK, ARCHIVE):
        raise Skipped(Reason.UNSUPPORTED, f"the name says {by_name.name.upper()}, the content does not")
    if is_binary(head):
        raise Skipped(Reason.BINARY, "the file is binary")
    if suffix == ".xml" and _READ_XML.match(head):
        return XML
    if by_name is not None and by_name is not TEXT:
        return by_name
    if is_mailbox(head) or is_message(head):
        return MAIL
    if is_chat(head):
        return CHAT
    if _MARKUP.match(head):
        return HTML
    if by_name is None and _MANUAL.match(head):
        return MANUAL
    if by_name is None and _READ_XML.match(head):
        return XML
    if by_name is None and (shebang := _SHEBANG.match(head)):
        return PYTHON if shebang[1] == b"python" else CODE
    return TEXT


def is_binary(head: bytes) -> bool:
    if head.startswith(_BOMS) or unmarked_utf_16(head) is not None:
        return False
    return b"\0" in head or len(head) - len(head.translate(None, _CONTROL)) > len(head) * _CONTROL_SHARE


@cache
def load(extractor: str) -> Extract:
    module, _, function = extractor.partition(":")
    return cast(Extract, getattr(importlib.import_module(module), function))


def _zipped(suffix: str, head: bytes) -> Kind:
    """By its suffix, else by the names of its first members."""
    for kind in _CONTAINERS:
        if suffix in kind.suffixes:
            return kind
    if b"mimetypeapplication/epub+zip" in head[:100]:
        return EPUB
    if opened := _OPEN_DOCUMENT.search(head[:200]):
        return ODF[opened[1].decode("ascii")]
    if b"[Content_Types].xml" in head[:200] or b"docProps/" in head[:200]:
        for kind, folder in ((DOCX, b"word/"), (PPTX, b"ppt/"), (XLSX, b"xl/")):
            if folder in head:
                return kind
    if suffix in ("", *ARCHIVE.suffixes):
        return ARCHIVE
    raise Skipped(Reason.UNSUPPORTED, "a ZIP container of a kind that is not read")


def is_message(head: bytes) -> bool:
    """Whether a file begins with headers, among them some that every message has (files of a Maildir have no
    suffix)."""
    names: list[bytes] = []
    for line in head.split(b"\n")[:60]:
        if not line.strip():
            break
        if line[:1] in b" \t" and names:
            continue
        name, colon, _ = line.partition(b":")
        if not colon or not name.replace(b"-", b"").isalnum():
            return False
        names.append(name.lower())
    known = {b"from", b"date", b"subject", b"to", b"message-id", b"received", b"return-path", b"mime-version"}
    return b"from" in names and len(known.intersection(names)) >= 3


def is_mailbox(head: bytes) -> bool:
    envelope, _, rest = head.partition(b"\n")
    return envelope.startswith(b"From ") and is_message(rest.lstrip(b"\r\n"))


LANGUAGES: dict[str, str] = {
    "python": "py pyi pyw", "javascript": "js mjs cjs jsx", "typescript": "ts tsx mts cts", "java": "java", "c": "c h",
    "cpp": "cpp cc cxx hpp hh hxx inl ino h", "csharp": "cs", "go": "go", "rust": "rs", "ruby": "rb", "php": "php",
    "kotlin": "kt kts", "scala": "scala", "swift": "swift", "lua": "lua", "perl": "pl pm", "r": "r", "julia": "jl",
    "haskell": "hs lhs", "erlang": "erl hrl", "elixir": "ex exs", "clojure": "clj cljs",
    "fortran": "f f77 f90 f95 f03 for", "shell": "sh bash zsh fish", "powershell": "ps1 psm1", "sql": "sql",
    "css": "css scss sass less", "yaml": "yaml yml", "toml": "toml", "xml": "xml xsd xsl xslt rng",
}  # fmt: skip
"""Suffixes of each language."""

ALIASES: dict[str, str] = {
    "c++": "cpp", "c#": "csharp", "golang": "go", "bash": "shell", "node": "javascript", "word": "docx",
    "powerpoint": "pptx", "excel": "xlsx", "slides": "pptx odp", "spreadsheet": "xlsx ods csv",
    "jupyter": "notebook", "restructuredtext": "rst", "plain": "text", "email": "mail", "mbox": "mail",
    "picture": "image", "photo": "image",
}  # fmt: skip
"""Other names for kinds, languages or suffixes."""

KIND_NAMES = tuple(dict.fromkeys(kind.name for kind in KINDS))
"""The kinds that `edge status` counts."""

_SUFFIXES = frozenset(suffix[1:] for kind in KINDS for suffix in kind.suffixes)

NAMES = tuple(dict.fromkeys([*KIND_NAMES, *LANGUAGES, *ALIASES, *sorted(_SUFFIXES)]))
"""Every name that is known without a collection."""


def meanings(name: str) -> list[str]:
    """The kinds and suffixes (without dots) that a lower-case word means; empty if the word is unknown."""
    found: list[str] = []
    for word in ALIASES.get(name, name).split():
        if word in KIND_NAMES or word in _SUFFIXES:
            found.append(word)
        found += LANGUAGES.get(word, "").split()
    return list(dict.fromkeys(found))
