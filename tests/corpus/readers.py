"""Independent readers of documents, and the comparison of words with theirs."""

from __future__ import annotations

import contextlib
import email
import email.policy
import html
import re
import subprocess
import unicodedata
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from lxml import etree

PATIENCE_S = 60
_LARGEST_SHEET = 500_000
_WORD = re.compile(r"[^\W_]+")
_SPACED = re.compile(r"(?<!\S)(?:[^\W\d_] ){2,}[^\W\d_](?!\S)")
"""A word whose letters stand apart, as in a headline or in the squares of a form."""

TAG = re.compile(r"<(?:style|script|head)\b.*?</(?:style|script|head)>|<[^>]*>", re.DOTALL | re.IGNORECASE)


def words(text: str) -> Counter[str]:
    """The words of a text with their counts, without case; each ideograph is a word, and so are letters that stand
    apart."""
    text = unicodedata.normalize("NFKC", text).casefold()
    text = _SPACED.sub(lambda match: match[0].replace(" ", ""), text)
    return Counter(
        re.sub("([\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff])", r" \1 ", " ".join(_WORD.findall(text))).split()
    )


def recall(ours: Counter[str], theirs: Counter[str]) -> float:
    """The share of another reader's words that we have, each as often as it has it."""
    return (ours & theirs).total() / max(1, theirs.total())


def invented(ours: Counter[str], theirs: Iterable[Counter[str]]) -> float:
    """The share of our words without digits that no other reader has."""
    known = {word for one in theirs for word in one}
    own = {word: count for word, count in ours.items() if word.isalpha()}  # numbers have the form of their cell
    return sum(count for word, count in own.items() if word not in known) / max(1, sum(own.values()))


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, timeout=PATIENCE_S, check=True)
    return done.stdout.decode("utf-8", "replace")


def _pdf(path: Path) -> Iterator[str]:
    for mode in ((), ("-raw",), ("-layout",)):
        yield run("pdftotext", *mode, str(path), "-").replace("\u00ad", "")


def _pandoc(kind: str) -> Callable[[Path], Iterator[str]]:
    def read(path: Path) -> Iterator[str]:
        for track in (("--track-changes=accept",), ("--track-changes=all",)) if kind == "docx" else ((),):
            yield run("pandoc", "-f", kind, "-t", "plain", "--wrap=none", *track, str(path))

    return read


def _docx(path: Path) -> Iterator[str]:
    import docx

    yield from _pandoc("docx")(path)
    element = docx.Document(str(path)).element.body
    yield "\n".join("".join(piece.itertext()) for piece in element.iter("{*}p"))


def _pptx(path: Path) -> Iterator[str]:
    import pptx

    texts: list[str] = []
    for slide in pptx.Presentation(str(path)).slides:
        waiting: list[Any] = list(slide.shapes)
        while waiting:
            shape = waiting.pop(0)
            waiting += getattr(shape, "shapes", ())
            if shape.has_text_frame:
                texts.append(shape.text_frame.text)
            if getattr(shape, "has_table", False):
                texts += [cell.text for row in shape.table.rows for cell in row.cells if not cell.is_spanned]
    yield "\n".join(texts)


def _xlsx(path: Path) -> Iterator[str]:
    """The texts of cells. Numbers are left out: their form is a matter of the sheet."""
    import openpyxl

    if path.stat().st_size > _LARGEST_SHEET:
        raise ValueError("openpyxl takes minutes for such a sheet")
    book = openpyxl.load_workbook(path, data_only=True)
    cells = (cell.value for sheet in book.worksheets for cell in sheet._cells.values())  # its rows may be a million
    yield "\n".join(value for value in cells if isinstance(value, str))


def _mail(path: Path) -> Iterator[str]:
    message = email.message_from_bytes(path.read_bytes(), policy=email.policy.default)
    body: Any = message.get_body(("plain", "html"))
    text = "" if body is None else body.get_content()
    yield TAG.sub(" ", text) if body is not None and body.get_content_subtype() == "html" else text


def _parts(path: Path) -> Iterator[str]:
    """All texts and attributes in a container, or all parts of a mail: what no program can have invented."""
    if path.suffix == ".eml":
        message = email.message_from_bytes(path.read_bytes(), policy=email.policy.default)
        yield "\n".join(str(value) for value in message.values())
        for part in message.walk():
            data: Any = part.get_payload(decode=True) or b""
            yield f"{part.get_filename()} {TAG.sub(' ', data.decode('utf-8', 'replace'))}"
            if part.get_content_maintype() == "text":
                yield TAG.sub(" ", html.unescape(part.get_content()))
    elif zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                if name.endswith((".xml", ".xhtml", ".html", ".opf", ".rels")):
                    root = etree.fromstring(archive.read(name), etree.XMLParser(recover=True, huge_tree=True))
                    for element in () if root is None else root.iter():
                        yield " ".join([element.text or "", element.tail or "", *element.attrib.values()])
                    yield "" if root is None else "".join(root.itertext())
    else:
        yield TAG.sub(" ", html.unescape(path.read_text("utf-8", "replace"))) if path.suffix != ".pdf" else ""


READERS: dict[str, Callable[[Path], Iterator[str]]] = {
    "pdf": _pdf, "docx": _docx, "docm": _docx, "pptx": _pptx, "xlsx": _xlsx, "xlsm": _xlsx, "odt": _pandoc("odt"),
    "epub": _pandoc("epub"), "fb2": _pandoc("fb2"), "eml": _mail, "html": _pandoc("html"), "htm": _pandoc("html"),
}  # fmt: skip
"""By suffix. The nearest text of each is the measure of recall: some readers break words that others have whole."""


def at(path: Path, first: int, last: int, page: int | None) -> Counter[str] | None:
    """The words of a page of a PDF, or of lines of an HTML file; None for other formats, whose lines are no lines."""
    if path.suffix == ".pdf":
        return words(run("pdftotext", "-f", str(page), "-l", str(page), str(path), "-"))
    if path.suffix not in (".html", ".htm"):
        return None
    lines = path.read_text("utf-8", "replace").split("\n")
    return words(TAG.sub(" ", html.unescape("\n".join(lines[first - 1 : last]))))


SUFFIXES = frozenset({*READERS, "mbox", "ods", "odp", "rss", "atom"})


def others(path: Path) -> list[Counter[str]]:
    """The words of each independent reader, and of all parts of the file; none if no reader can read it."""
    found: list[Counter[str]] = []
    with contextlib.suppress(Exception):  # a library or a program that cannot read the file tells nothing about ours
        found += map(words, READERS[path.suffix[1:]](path))
    with contextlib.suppress(Exception):
        found += [words("\n".join(_parts(path)))] if found else []
    return found
