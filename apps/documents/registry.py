"""Which extractor reads a file: by its first bytes where they say, else by its name, else as plain text.

A plug-in is one line: a suffix and `package.module:function`, the function being an `Extract`.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import cast

from edge.apps.documents.base import Extract, Reason, Skipped
from edge.apps.documents.mail_head import is_mailbox, is_message

_HOME = "edge.apps.documents"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of file.

    Attributes:
        name: what filters call it.
        extractor: `package.module:function`, imported when the first file of the kind comes.
        suffixes: lower case, with the dot.
        names: whole file names, lower case.
    """

    name: str
    extractor: str
    suffixes: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()


def _kind(name: str, extractor: str, suffixes: str, names: str = "") -> Kind:
    return Kind(
        name, f"{_HOME}.{extractor}", frozenset(f".{suffix}" for suffix in suffixes.split()), frozenset(names.split())
    )


TEXT = _kind("text", "plain:extract", "txt text log org tex srt vtt adoc asciidoc", "readme license copying")
PDF = _kind("pdf", "pdf:extract", "pdf")
DOCX = _kind("docx", "docx:extract", "docx docm dotx")
PPTX = _kind("pptx", "pptx:extract", "pptx pptm ppsx potx")
IMAGE = _kind("image", "pictures:extract", "png jpg jpeg tif tiff bmp webp gif")
MAIL = _kind("mail", "mail:extract", "eml mbox mbx")
XLSX = _kind("xlsx", "xlsx:extract", "xlsx xlsm xltx xltm")
ODF = {
    "text": _kind("odt", "odf:extract", "odt ott"),
    "spreadsheet": _kind("ods", "odf:extract", "ods ots"),
    "presentation": _kind("odp", "odf:extract", "odp otp"),
}
"""By what the container's first member says it is."""

EPUB = _kind("epub", "epub:extract", "epub")
HTML = _kind("html", "html:extract", "html htm xhtml xht")
PYTHON = _kind("code", "python:extract", "py pyi pyw")
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
    _kind("rst", "rst:extract", "rst rest"),
    PYTHON,
    CODE,
    HTML,
    PDF,
    DOCX,
    PPTX,
    XLSX,
    *ODF.values(),
    EPUB,
    MAIL,
    IMAGE,
    _kind("csv", "csv_rows:extract", "csv tsv tab"),
    _kind("json", "json_paths:extract", "json geojson webmanifest"),
    _kind("json", "json_paths:extract_lines", "jsonl ndjson jsonlines"),
    _kind("notebook", "notebook:extract", "ipynb"),
    TEXT,
)

_CONTAINERS = (DOCX, PPTX, XLSX, *ODF.values(), EPUB)
"""Kinds that are ZIP containers."""

_OPEN_DOCUMENT = re.compile(rb"mimetypeapplication/vnd\.oasis\.opendocument\.(text|spreadsheet|presentation)")

_BY_SUFFIX = {suffix: kind for kind in KINDS for suffix in kind.suffixes}
_BY_NAME = {name: kind for kind in KINDS for name in kind.names}

_REFUSED = {
    b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1": (
        Reason.UNSUPPORTED,
        "an old binary Office file, or an encrypted one; save it as DOCX, XLSX, PPTX or PDF without a password",
    ),
    b"%!PS": (Reason.UNSUPPORTED, "PostScript is not read; convert it to PDF"),
    b"{\\rtf": (Reason.UNSUPPORTED, "RTF is not read; save it as DOCX or plain text"),
}
_UNSUPPORTED = {
    ".svg": "SVG drawings are not read",
    ".xlsb": "XLSB is not read; save it as XLSX",
}
_PICTURES = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"II*\0", b"MM\0*", b"GIF87a", b"GIF89a", b"BM")
_BOMS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff", b"\x00\x00\xfe\xff")
_CONTROL = bytes(set(range(32)) - set(b"\t\n\r\f\b\x1b"))
_CONTROL_SHARE = 0.04
"""Uniformly random bytes have a tenth of these control characters, text has hardly any."""

_MARKUP = re.compile(
    rb"\s*(?:<\?xml[^>]{0,200}\?>\s*)?(?:<!--(?:(?!-->).)*-->\s*)*<(?:!doctype\s+html|html)\b", re.I | re.S
)
_SHEBANG = re.compile(rb"#![^\n]{0,200}?\b(python|sh|bash|zsh|perl|ruby|node|lua|awk|tclsh)")


def choose(name: str, head: bytes, plugins: Mapping[str, str] | None = None) -> Kind:
    """The kind of a file.

    Args:
        name: its file name.
        head: its first bytes (`HEAD_BYTES` of them, or all).
        plugins: extractors by suffix, asked first.

    Raises:
        Skipped: it is binary, or of a kind that is not read.
    """
    suffix = "." + name.rpartition(".")[2].lower() if "." in name[1:] else ""
    if plugins and suffix in plugins:
        return Kind(suffix[1:], plugins[suffix])
    by_name = _BY_SUFFIX.get(suffix) or _BY_NAME.get(name.lower())
    if head.lstrip().startswith(b"%PDF-") or (by_name in (PDF, None) and b"%PDF-" in head[:1024]):
        return PDF
    for magic, (reason, message) in _REFUSED.items():
        if head.startswith(magic):
            raise Skipped(reason, message)
    if head.startswith(b"PK\x03\x04"):
        return _zipped(suffix, head)
    if any(head.startswith(magic) for magic in _PICTURES):
        return IMAGE
    if by_name in _CONTAINERS or by_name is PDF:
        raise Skipped(Reason.UNSUPPORTED, f"the name says {by_name.name.upper()}, the content does not")
    if is_binary(head):
        raise Skipped(Reason.BINARY, "the file is binary")
    if suffix in _UNSUPPORTED:
        raise Skipped(Reason.UNSUPPORTED, _UNSUPPORTED[suffix])
    if by_name is not None and by_name is not TEXT:
        return by_name
    if is_mailbox(head) or is_message(head):
        return MAIL
    if _MARKUP.match(head):
        return HTML
    if by_name is None and (shebang := _SHEBANG.match(head)):
        return PYTHON if shebang[1] == b"python" else CODE
    return TEXT


def is_binary(head: bytes) -> bool:
    """Whether first bytes are not those of text in any encoding that is read."""
    if head.startswith(_BOMS):
        return False
    return b"\0" in head or len(head) - len(head.translate(None, _CONTROL)) > len(head) * _CONTROL_SHARE


@cache
def load(extractor: str) -> Extract:
    """Imports an extractor.

    Raises:
        ImportError, AttributeError: there is no such module or function.
    """
    module, _, function = extractor.partition(":")
    return cast(Extract, getattr(importlib.import_module(module), function))


def _zipped(suffix: str, head: bytes) -> Kind:
    """What a ZIP container holds: by its suffix, else by the names of its first members."""
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
    raise Skipped(Reason.UNSUPPORTED, _UNSUPPORTED.get(suffix, "a ZIP archive, which is not read"))
