"""Documents that were made to crash, to exhaust or to take over their readers. `limit` indexes them."""

from __future__ import annotations

import zlib
from collections.abc import Callable

from making.office_files import container
from making.pdf import pdf_of as _pdf
from making.pdf import stream_of as _stream

_WORD = "word/document.xml"
_TYPES = "[Content_Types].xml"
_W = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'


def _docx(document: bytes, **more: bytes) -> bytes:
    return container({_TYPES: b"<Types/>", _WORD: document, **more})


def _bomb(megabytes: int, piece: bytes = b" ") -> bytes:
    packer = zlib.compressobj(9)
    block = piece * (10**6 // len(piece))
    return b"".join(packer.compress(block) for _ in range(megabytes)) + packer.flush()


def _entities(levels: int) -> bytes:
    declared = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10}">' for n in range(1, levels))
    return f'<?xml version="1.0"?><!DOCTYPE d [<!ENTITY e0 "x">{declared}]><d>&e{levels - 1};</d>'.encode()


_FLATE = b"/Filter/FlateDecode"
_PAGE = (b"<</Type/Catalog/Pages 2 0 R>>", b"<</Type/Pages/Kids[3 0 R]/Count 1>>")
_CONTENT = b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 100 100]/Contents 4 0 R>>"
MADE: dict[str, Callable[[], bytes]] = {
    "entities.docx": lambda: _docx(_entities(10)),
    "external.docx": lambda: _docx(b'<!DOCTYPE d [<!ENTITY x SYSTEM "file:///etc/passwd">]><d>&x;</d>'),
    "parameter.docx": lambda: _docx(b'<!DOCTYPE d [<!ENTITY % x SYSTEM "http://127.0.0.1:1/x"> %x;]><d/>'),
    "bomb.docx": lambda: _docx(b"<d>" + b"a" * 300_000_000 + b"</d>"),
    "deep.docx": lambda: _docx(b"<a>" * 1_000_000),
    "wide.docx": lambda: _docx(f"<w:document {_W}><w:body>{'<w:p/>' * 2_000_000}</w:body></w:document>".encode()),
    "names.docx": lambda: container({f"../../../{n}": b"x" for n in range(25_000)}),
    "empty.docx": lambda: container({}),
    "nested.epub": lambda: container({"META-INF/container.xml": container({"a": b"x" * 10**6})}),
    "entities.epub": lambda: container({"META-INF/container.xml": _entities(9)}),
    "deep.html": lambda: b"<div>" * 1_000_000,
    "attributes.html": lambda: b"<p " + b" ".join(b'a%d="x"' % n for n in range(300_000)) + b">",
    "tables.html": lambda: b"<table><tr><td>" * 200_000,
    "script.html": lambda: b"<script>while(true);</script><p>text</p>",
    "long.html": lambda: b"<p>" + b"x" * 30_000_000,
    "deep.json": lambda: b"[" * 5_000_000,
    "deeper.json": lambda: b'{"a":' * 2_000_000,
    "numbers.json": lambda: b"[" + b"9" * 5_000_000 + b"]",
    "keys.json": lambda: b"{" + b",".join(b'"%d":1' % n for n in range(1_000_000)) + b"}",
    "wide.csv": lambda: b"a," * 2_000_000,
    "quote.csv": lambda: b'"' + b"a\n" * 3_000_000,
    "quotes.csv": lambda: b'"",' * 3_000_000,
    "stars.md": lambda: b"*" * 200_000,
    "brackets.md": lambda: b"[" * 200_000,
    "quotes.md": lambda: b">" * 200_000 + b"a",
    "links.md": lambda: b"[a](" * 100_000,
    "backticks.md": lambda: b"".join(b"`" * n + b" " for n in range(2_000)),
    "lists.md": lambda: b"".join(b" " * n + b"- a\n" for n in range(3_000)),
    "deep.py": lambda: b"(" * 100_000,
    "nested.py": lambda: b"".join(b" " * n + b"if x:\n" for n in range(1_000)),
    "cookie.py": lambda: b"# coding: punycode\n" + b"x" * 10_000,
    "line.txt": lambda: b"x" * 9_000_000,
    "controls.txt": lambda: bytes(range(1, 32)) * 1_000 + "\u202e\x9b text".encode(),
    "combining.txt": lambda: ("a" + "\u0301" * 2_000_000).encode(),
    "half.txt": lambda: b"\xed\xa0\x80" * 100_000 + b"text",
    "utf16.txt": lambda: b"\xff\xfe" + b"\x00\xd8" * 500_000,
    "cells.ipynb": lambda: b'{"cells":[' + b'{"cell_type":"code","source":["x"]},' * 200_000 + b"]}",
    "loop.pdf": lambda: _pdf(b"<</Type/Catalog/Pages 2 0 R>>", b"<</Type/Pages/Kids[2 0 R 2 0 R]/Count 2>>"),
    "self.pdf": lambda: _pdf(*_PAGE, b"3 0 R"),
    "count.pdf": lambda: _pdf(_PAGE[0], b"<</Type/Pages/Kids[]/Count 2147483647>>"),
    "bomb.pdf": lambda: _pdf(*_PAGE, _CONTENT, _stream(_bomb(400), names=_FLATE)),
    "text.pdf": lambda: _pdf(*_PAGE, _CONTENT, _stream(_bomb(60, b"BT (a) Tj ET "), names=_FLATE)),
    "filters.pdf": lambda: _pdf(*_PAGE, _CONTENT, _stream(b"x", names=b"/Filter[" + b"/FlateDecode" * 50_000 + b"]")),
    "deep.pdf": lambda: _pdf(b"[" * 500_000),
    "nested.pdf": lambda: _pdf(*_PAGE, _CONTENT, _stream(b"q " * 3_000_000)),
    "previous.pdf": lambda: _pdf(*_PAGE, trailer=b"/Prev 0"),
    "form.pdf": lambda: _pdf(
        *_PAGE, _CONTENT[:-2] + b"/Resources<</XObject<</F 5 0 R>>>>>>", _stream(b"/F Do"),
        _stream(b"/F Do /F Do", names=b"/Type/XObject/Subtype/Form/BBox[0 0 9 9]/Resources<</XObject<</F 5 0 R>>>>"),
    ),
    "launch.pdf": lambda: _pdf(b"<</Type/Catalog/Pages 2 0 R/OpenAction<</S/Launch/F(/bin/sh)>>>>", _PAGE[1], _CONTENT),
    "header.pdf": lambda: b"%PDF-1.7",
}  # fmt: skip
"""Names of hostile documents, and what makes them."""
