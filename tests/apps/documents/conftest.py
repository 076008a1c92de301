"""Real files of every kind, built on the spot, and the steps from a file to its blocks and chunks."""

from __future__ import annotations

import gzip
import io
import json
import shutil
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from making.office_files import container
from making.pdf import pdf_bytes

from edge.apps.documents import extraction, process
from edge.apps.documents.base import WORKER_NBYTES, Chunk, DocumentBlocks, Extracted, no_text
from edge.apps.documents.chunking import chunks_of
from edge.apps.documents.extraction import Extractor
from edge.apps.documents.file_types import choose, load
from edge.apps.documents.opened import OpenedFile
from edge.budget import MemoryBudget
from edge.trace import Trace

Read = Callable[..., DocumentBlocks]
Cut = Callable[..., list[Chunk]]
Ask = Callable[..., Extracted]
Bounds = Callable[..., None]


@pytest.fixture
def read_here() -> None:
    """The process that reads documents is tested here."""


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Writes data to a file of a name and extracts it, in this process."""

    def read(name: str, data: str | bytes) -> DocumentBlocks:
        path = tmp_path / name
        path.write_bytes(data.encode() if isinstance(data, str) else data)
        with OpenedFile(path) as file:
            document = load(choose(file.name, file.head).extractor)(file)
            blocks = list(document.blocks)
        if not blocks:
            raise no_text()
        assert all(block.lines is None or len(block.lines) == block.text.count("\n") + 1 for block in blocks)
        return replace(document, blocks=blocks)

    return read


@pytest.fixture
def cut(read: Read) -> Cut:
    """Like `read`, and on to chunks."""

    def cut(name: str, data: str | bytes, max_tokens: int = 220) -> list[Chunk]:
        document = read(name, data)
        return list(chunks_of(document.blocks, document.title or name, max_tokens=max_tokens))

    return cut


@pytest.fixture(scope="session")
def session_extractor() -> Iterator[Extractor]:
    """An extractor whose worker all tests share that do not harm it."""
    with Extractor(budget=MemoryBudget(10**10)) as extractor:
        yield extractor


@pytest.fixture
def no_ocr(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Hides the extra `ocr` from this process and from workers that it starts, which adopt its import path."""
    monkeypatch.delitem(sys.modules, "rapidocr_onnxruntime", raising=False)
    folder = tmp_path_factory.mktemp("no-ocr")
    (folder / "rapidocr_onnxruntime.py").touch()  # a package without models
    monkeypatch.syspath_prepend(str(folder))


@pytest.fixture(params=["ocr", "no ocr"])
def with_and_without_ocr(request: pytest.FixtureRequest) -> bool:
    """Whether the extra `ocr` is there."""
    if request.param == "ocr":
        pytest.importorskip("rapidocr_onnxruntime", reason="the extra `ocr` is not installed")
        return True
    request.getfixturevalue("no_ocr")
    return False


def epub_bytes(
    chapters: Sequence[str], *, title: str = "A book", encrypted: Sequence[str] = (), package: str | None = None
) -> bytes:
    """An EPUB of XHTML chapters; `package` in place of its own list of contents."""
    items = "".join(
        f'<item id="c{n}" href="text/chapter%20{n}.xhtml" media-type="application/xhtml+xml"/>'
        for n in range(1, len(chapters) + 1)
    )
    spine = "".join(f'<itemref idref="c{n}"/>' for n in range(1, len(chapters) + 1))
    content = package or (
        '<?xml version="1.0"?><package xmlns="http://www.idpf.org/2007/opf" version="3.0">'
        f'<metadata xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>{title}</dc:title></metadata>'
        f"<manifest>{items}</manifest><spine>{spine}</spine></package>"
    )
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as book:
        book.writestr(zipfile.ZipInfo("mimetype"), "application/epub+zip")
        book.writestr(
            "META-INF/container.xml",
            '<?xml version="1.0"?><container xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>'
            '<rootfile full-path="OEBPS/content.opf" media-type="application/oebps-package+xml"/>'
            "</rootfiles></container>",
        )
        if encrypted:
            references = "".join(f'<CipherReference URI="{name}"/>' for name in encrypted)
            book.writestr("META-INF/encryption.xml", f"<encryption>{references}</encryption>")
        book.writestr("OEBPS/content.opf", content)
        for n, chapter in enumerate(chapters, 1):
            book.writestr(f"OEBPS/text/chapter {n}.xhtml", chapter)
    return buffer.getvalue()


NAMESPACES = (
    'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main" '
    'xmlns:r="http://schemas.openxmlformats.org/officeDocument/2006/relationships" '
    'xmlns:m="http://schemas.openxmlformats.org/officeDocument/2006/math" '
    'xmlns:wp="http://schemas.openxmlformats.org/drawingml/2006/wordprocessingDrawing" '
    'xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main" '
    'xmlns:c="http://schemas.openxmlformats.org/drawingml/2006/chart" '
    'xmlns:dgm="http://schemas.openxmlformats.org/drawingml/2006/diagram" '
    'xmlns:xdr="http://schemas.openxmlformats.org/drawingml/2006/spreadsheetDrawing" '
    'xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006"'
)
RELATIONS = "http://schemas.openxmlformats.org/package/2006/relationships"
TYPES = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"


def relations(targets: Mapping[str, str]) -> str:
    """A list of relations, by target and kind."""
    inner = "".join(
        f'<Relationship Id="r{n}" Type="{TYPES}/{kind}" Target="{target}"/>'
        for n, (target, kind) in enumerate(targets.items())
    )
    return f'<Relationships xmlns="{RELATIONS}">{inner}</Relationships>'


def docx_of(body: str, parts: Mapping[str, tuple[str, str]] = {}) -> bytes:
    """A DOCX of a body, and of parts: name to kind and content."""
    return container({
        "_rels/.rels": relations({"word/document.xml": "officeDocument"}),
        "word/document.xml": f"<w:document {NAMESPACES}><w:body>{body}</w:body></w:document>",
        "word/_rels/document.xml.rels": relations({name: kind for name, (kind, _) in parts.items()}),
        **{f"word/{name}": content for name, (_, content) in parts.items()},
    })  # fmt: skip


def texts(document: DocumentBlocks) -> list[str]:
    return [block.text for block in document.blocks]


def docx_bytes() -> bytes:
    """A DOCX with headings, paragraphs and a table."""
    import docx

    document = docx.Document()
    document.core_properties.title = "Rivers of the north"
    document.add_heading("Floods", 1)
    document.add_paragraph("The river rises in April. Snow melts in the hills.")
    document.add_heading("Measurements", 2)
    table = document.add_table(rows=2, cols=2)
    for row, cells in zip(table.rows, (("Year", "Level"), ("1997", "8.2 m")), strict=True):
        for cell, text in zip(row.cells, cells, strict=True):
            cell.text = text
    document.add_heading("Droughts", 1)
    document.add_paragraph("In August little is left of it.")
    buffer = io.BytesIO()
    document.save(buffer)
    return buffer.getvalue()


def pptx_bytes() -> bytes:
    """A PPTX of two slides, one with bullets and notes, one with a table."""
    import pptx
    from pptx.util import Inches

    deck = pptx.Presentation()
    first = deck.slides.add_slide(deck.slide_layouts[1])
    first.shapes.title.text = "Why rivers flood"
    first.placeholders[1].text = "Melting snow\nHeavy rain"
    first.notes_slide.notes_text_frame.text = "Show the picture of 1997 here."
    second = deck.slides.add_slide(deck.slide_layouts[5])
    second.shapes.title.text = "Levels"
    table = second.shapes.add_table(2, 2, Inches(1), Inches(2), Inches(4), Inches(1)).table
    for (row, column), text in {(0, 0): "Year", (0, 1): "Level", (1, 0): "1997", (1, 1): "8.2 m"}.items():
        table.cell(row, column).text = text
    buffer = io.BytesIO()
    deck.save(buffer)
    return buffer.getvalue()


def notebook_text() -> str:
    """A notebook as Jupyter writes it: one string for each line of a cell."""
    cells = [
        {"cell_type": "markdown", "metadata": {}, "source": ["# Rivers\n", "\n", "They flood in spring.\n"]},
        {
            "cell_type": "code",
            "execution_count": 1,
            "metadata": {},
            "outputs": [{"name": "stdout", "output_type": "stream", "text": ["outputs are left out\n"]}],
            "source": ["def level(year):\n", '    return "8.2\\n"\n', "\n", "level(1997)"],
        },
    ]
    return json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}, indent=1) + "\n"


HTML = """<!DOCTYPE html>
<html lang="en"><head><title>Rivers &amp; floods</title>
<style>p { color: red }</style>
<script>var hidden = "never shown";</script></head>
<body><nav><a href="/">Home</a></nav>
<h1>Rivers<a class="headerlink" href="#r">¶</a></h1>
<p>They rise
in spring, when the
<b>snow</b> melts.</p><!-- a comment
of two lines -->
<h2>Levels</h2>
<table><tr><th>Year</th><th>Level</th></tr>
<tr><td>1997</td><td>8.2 m</td></tr></table>
<pre>
first
  second
</pre>
<ul><li>one<li>two</ul>
</body></html>
"""

CHAPTER = """<?xml version="1.0" encoding="utf-8"?>
<html xmlns="http://www.w3.org/1999/xhtml"><head><title/></head>
<body><h1>{title}</h1>
<p>{text}</p></body></html>
"""


@pytest.fixture(scope="session")
def samples() -> dict[str, bytes]:
    """A small real file of every kind, by name."""
    page = [(72, 720, 20, "Rivers"), (72, 690, 11, "They rise in spring, when the snow melts."), (72, 676, 11, "So.")]
    texts = {
        "plain.txt": "Rivers\n======\n\nThey rise in spring. Then they fall.\n\nAnother paragraph\nof two lines.\n",
        "notes.md": "---\ntitle: Notes\n---\n# Rivers\n\nThey *rise*.\n\n```py\nx = 1\n```\n\n"
        "| a | b |\n|---|---|\n| 1 | 2 |\n",
        "manual.rst": "Manual\n======\n\n.. note:: careful\n\nUse::\n\n   code here\n\nPart\n----\n\nText.\n",
        "program.py": '"""A module."""\n\nimport os\n\n\n'
        'class River:\n    """Flows."""\n\n    def rise(self) -> None:\n        pass\n',
        "program.c": "#include <stdio.h>\n\nint main(void)\n{\n    return 0;\n}\n\n"
        "static int level(int year)\n{\n    return 8;\n}\n",
        "table.csv": 'year;level\n1997;8.2\n2013;"8.8; the\nhighest"\n',
        "data.json": '{\n "rivers": [\n  {"name": "Elbe", "level": 8.8},\n  {"name": "Oder"}\n ],\n'
        ' "note": "in \\u00e9t\\u00e9"\n}\n',
        "records.jsonl": '{"name": "Elbe"}\n{"name": "Oder"}\n',
        "book.ipynb": notebook_text(),
        "page.html": HTML,
        "events.ics": "BEGIN:VCALENDAR\nBEGIN:VEVENT\nSUMMARY:Boat\nDTSTART:20260101T100000Z\nDTEND:20260102T110000Z\n"
        "RRULE:FREQ=WEEKLY;BYDAY=MO,-1FR;UNTIL=20270101\nATTENDEE;CN='A:B':mailto:a@b.org\nDESCRIPTION:Bring\n  oars"
        "\nEND:VEVENT\nBEGIN:VTODO\nSUMMARY:Pay\nDUE;VALUE=DATE:20260103\nDURATION:P1DT2H\nEND:VTODO\nEND:VCALENDAR\n",
        "people.vcf": "BEGIN:VCARD\nN:Lee;Ann\nTEL;CELL:+47\nNOTE;ENCODING=QUOTED-PRINTABLE:a=\nb=C3=A9\nEND:VCARD\n",
        "talk.srt": "1\n00:00:01,000 --> 00:00:02,000\n<i>Ice</i> is blue.\n\n2\n00:01:01,000 --> 00:01:02,000\nSo.\n",
        "chat.txt": "[1/2/24, 9:01 PM] Ann: Ice\nand snow\n[13/2/24, 9:02 PM] Bo: Rain\n",
        "export.json": '{"name": "Club", "type": "x", "messages": [{"date": "2024-05-14T10:00:00", "from": "Ann", '
        '"from_id": "u1", "text": ["Ice ", {"type": "bold", "text": "here"}]}]}',
        "slack.json": '[{"type": "message", "user": "U1", "text": "<@U1> &amp; <https://a.org|it>", '
        '"ts": "1715680860.000100"}]',
        "paper.tex": '\\section{Ice \\& snow}\nH\\"a{\\o}vik $x_1$ \\href{a}{b} \\cite{c}\n\\begin{verbatim}\nx\n'
        "\\end{verbatim}\n",
        "books.bib": "@book{a, title = {{I}ce},\n year = 2020}\n",
        "letter.rtf": "{\\rtf1\\ansi{\\fonttbl{\\f0\\fcharset0 A;}}Ice \\'e9\\u229?\\par a\\cell b\\cell\\row}",
    }
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("plain.txt", "events.ics", "table.csv"):
            archive.writestr(name, texts[name])
    chapters = [CHAPTER.format(title=f"Chapter {n}", text=f"Text of chapter {n}.") for n in (1, 2)]
    return {
        **{name: text.encode() for name, text in texts.items()},
        "files.zip": buffer.getvalue(),
        "log.gz": gzip.compress(b"\x1b[31mIce\x1b[0m is blue.\n"),
        "paper.pdf": pdf_bytes([page, [(72, 720, 11, "The second page.")]], title="A paper"),
        "letter.docx": docx_bytes(),
        "talk.pptx": pptx_bytes(),
        "novel.epub": epub_bytes(chapters),
    }


@pytest.fixture(autouse=True)
def bounds(monkeypatch: pytest.MonkeyPatch) -> Bounds:
    """Sets what a file may take: seconds, and bytes at first and at most. A busy machine needs more than users wait."""

    def bounds(*, seconds: float = 60.0, memory: int = WORKER_NBYTES, most: int = 4 * WORKER_NBYTES) -> None:
        for name, value in (("_SECONDS", seconds), ("WORKER_NBYTES", memory), ("_LARGE_NBYTES", most)):
            monkeypatch.setattr(extraction, name, value)

    bounds()
    return bounds


@pytest.fixture
def misbehaving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has workers read `.xyz` by an extractor that obeys its file."""
    (tmp_path / "plugins").mkdir()
    shutil.copy(Path(__file__).parents[2] / "naive" / "misbehaving.py", tmp_path / "plugins")
    load = f"sys.path.append({str(tmp_path / 'plugins')!r}); import misbehaving; "
    monkeypatch.setattr(process, "_BOOTSTRAP", load + process._BOOTSTRAP)


@pytest.fixture
def trace() -> Trace:
    return Trace()


@pytest.fixture
def extractor(misbehaving: None, budget: MemoryBudget, trace: Trace) -> Iterator[Extractor]:
    with Extractor(budget=budget, trace=trace) as extractor:
        yield extractor


@pytest.fixture
def ask(tmp_path: Path) -> Ask:
    """Has an extractor read a plug-in file with these words."""

    def ask(extractor: Extractor, words: str) -> Extracted:
        path = tmp_path / "file.xyz"
        path.write_text(words)
        return extractor.extract(path)

    return ask
