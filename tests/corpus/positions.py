"""Compares the places of passages with the places at which independent readers find their words.

    python tests/corpus/positions.py FOLDER --each 12 --json report.json

FOLDER is that of `run.py`. Of each kind of file, some are taken at random, and of each a passage and one of its lines.
The line of a PDF is where the picture of its page is marked; `pdftotext -bbox` tells the words there. Other lines are
those of the file, its paragraphs, its rows or its slides, as they are documented. Headings are those of pandoc and of
the other readers.
"""

from __future__ import annotations

import argparse
import email
import email.policy
import html
import json
import random
import re
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from readers import TAG, run, words
from run import files

from edge.apps.documents.base import Chunk, Extracted
from edge.apps.documents.extraction import Extractor
from edge.budget import MemoryBudget
from edge.errors import EdgeError

KINDS = ("pdf", "docx", "xlsx", "pptx", "html", "eml", "epub", "odt", "py", "js", "md", "rst", "txt", "csv", "json")
_ENOUGH = 0.9
"""The share of a line's words that must be where it says."""

_LEAST_WORDS = 3


@dataclass(frozen=True)
class Place:
    """A line of a passage."""

    path: Path
    extracted: Extracted
    chunk: Chunk
    line: int
    text: str

    @property
    def heading(self) -> str:
        """The innermost heading above the passage; empty if there is none."""
        names = self.chunk.context.split(" > ")
        return names[-1] if len(names) > 1 or self.extracted.title != names[0] else ""


def found(part: str, whole: str) -> float:
    """The share of the words of `part` that are in `whole`. Readers differ in spaces, so letters count if words do not
    agree."""
    ours, theirs = words(part), words(whole)
    if _letters(part) in _letters(whole):
        return 1.0
    return (ours & theirs).total() / max(1, ours.total())


class Unknown(Exception):
    """The other reader does not show the line anywhere: it is that of a note, a header, a chart or a comment."""


def _known(place: Place, whole: str) -> None:
    if found(place.text, whole) < _ENOUGH / 2:
        raise Unknown


def _png_rows(png: bytes, width: int) -> list[bytes]:
    import zlib

    data, at = b"", 8
    while at < len(png):
        size, kind = int.from_bytes(png[at : at + 4], "big"), png[at + 4 : at + 8]
        data += png[at + 8 : at + 8 + size] if kind == b"IDAT" else b""
        at += size + 12
    rows, step = zlib.decompress(data), 3 * width + 1
    return [rows[y * step + 1 : (y + 1) * step] for y in range(len(rows) // step)]


_BOX = re.compile(r'<word xMin="([\d.-]+)" yMin="([\d.-]+)" xMax="([\d.-]+)" yMax="([\d.-]+)">(.*?)</word>')


def pdf(place: Place, extractor: Extractor) -> dict[str, Any]:
    """The words of `pdftotext` under the colour that marks the line on its page."""
    page = place.chunk.page
    assert page is not None
    text = run("pdftotext", "-f", str(page), "-l", str(page), str(place.path), "-")
    boxes = run("pdftotext", "-bbox", "-f", str(page), "-l", str(page), str(place.path), "-")
    plain, marked = (extractor.picture(place.path, page, lines) for lines in ((), [place.line]))
    before, after = (_png_rows(picture.png, picture.width) for picture in (plain, marked))
    _known(place, run("pdftotext", str(place.path), "-"))
    size = re.search(r'<page width="([\d.]+)" height="([\d.]+)"', boxes)
    assert size is not None
    scale = plain.width / float(size[1])
    if abs(plain.height - scale * float(size[2])) > 2:  # boxes of a page that is rotated or cut off
        return {"page": found(place.text, text)}
    under = []
    for left, top, right, bottom, word in _BOX.findall(boxes):
        xs = [int(float(edge) * scale) for edge in (left, right)]
        ys = [int(float(edge) * scale) for edge in (top, bottom)]
        here = {
            (x, y)
            for y in range(max(0, (3 * ys[0] + ys[1]) // 4), min(len(before), (ys[0] + 3 * ys[1]) // 4 + 1))
            for x in range(max(0, xs[0]), min(plain.width, xs[1] + 1))
        }
        changed = sum(before[y][3 * x : 3 * x + 3] != after[y][3 * x : 3 * x + 3] for x, y in here)
        lit = sum(min(before[y][3 * x : 3 * x + 3]) > 60 for x, y in here)
        if lit and changed > lit / 2:
            under.append(html.unescape(word))
    there = " ".join(under)
    return {"page": found(place.text, text), "line": found(place.text, there), "there": there}


def _letters(text: str) -> str:
    return re.sub(r"[\W_]", "", text.casefold())


@cache
def _pandoc(path: Path, kind: str) -> list[tuple[str, tuple[str, ...]]]:
    """The paragraphs of a document, in order, each with the headings above it; letters and digits alone."""
    parts: list[tuple[str, tuple[str, ...]]] = []
    above: list[tuple[int, str]] = []

    def text(node: Any) -> Iterator[str]:
        if isinstance(node, list):
            for each in node:
                yield from text(each)
        elif isinstance(node, dict):
            content = node.get("c", [])
            if node.get("t") in ("Str", "Code", "Math", "CodeBlock"):
                yield content if isinstance(content, str) else content[1]
            elif node.get("t") not in ("Note", "RawInline"):
                yield from text(content)

    def walk(node: Any) -> None:
        if isinstance(node, list):
            for each in node:
                walk(each)
        elif isinstance(node, dict) and node.get("t") == "Header":
            level, _, content = node["c"]
            above[:] = [(outer, name) for outer, name in above if outer < level]
            above.append((level, _letters("".join(text(content)))))
            parts.append((above[-1][1], tuple(name for _, name in above)))
        elif isinstance(node, dict) and node.get("t") in ("Para", "Plain", "CodeBlock"):
            parts.append((_letters("".join(text(node))), tuple(name for _, name in above)))
        elif isinstance(node, dict):
            walk(node.get("c", []))

    walk(json.loads(run("pandoc", "-f", kind, "-t", "json", str(path)))["blocks"])
    return parts


def _under_heading(place: Place, kind: str) -> float | None:
    """Whether pandoc has the line below the same heading; None if it does not have the line, or no heading is said. The
    passage itself may show a deeper heading."""
    wanted, said = _letters(place.text), _letters(place.heading.rstrip("…"))
    parts = _pandoc(place.path, kind)
    matches = [above for text, above in parts if wanted and wanted in text]
    if not matches or not any(name.startswith(said) for _, above in parts for name in above) or not said:
        return None
    return float(any(name.startswith(said) for above in matches for name in above))


def _lines(text: str, place: Place) -> str:
    lines = re.split(r"\r\n?|\n", text)
    return "\n".join(lines[place.line - 1 : place.line])


def _decoded(data: bytes, encoding: str | None) -> str:
    return data.decode(encoding or "utf-8", "replace").removeprefix("\ufeff")


def text(place: Place, _: Extractor) -> dict[str, Any]:
    """The line of the file."""
    there = _lines(_decoded(place.path.read_bytes(), place.extracted.encoding), place)
    result: dict[str, Any] = {"line": found(place.text, there), "there": there}
    kind = {"md": "gfm", "rst": "rst"}.get(place.path.suffix[1:])
    if kind:
        result["heading"] = _under_heading(place, kind)
    return result


def record(place: Place, _: Extractor) -> dict[str, Any]:
    """The line of a file of values, whose names stand elsewhere."""
    there = _lines(_decoded(place.path.read_bytes(), place.extracted.encoding), place)
    value = place.text.split(": ", 1)[-1].split(" | ")[0]
    return {"line": found(value, there.encode().decode("unicode_escape", "replace") + there), "there": there}


def page(place: Place, _: Extractor) -> dict[str, Any]:
    """The line of an HTML file. A word may go on behind a tag in the next one."""
    data = _decoded(place.path.read_bytes(), place.extracted.encoding)
    return {**_html(data, place), "heading": _under_heading(place, "html")}


def _html(data: str, place: Place) -> dict[str, Any]:
    lines = re.split(r"\r\n?|\n", data)
    raw = "\n".join(lines[place.line - 1 : place.line])
    there = " ".join(html.unescape(re.sub(r"<[^<>]*>|^[^<>]*>|<[^<>]*$", mark, raw)) for mark in ("", " ")) + raw
    return {"line": found(place.text, there), "there": raw}


def chapter(place: Place, _: Extractor) -> dict[str, Any]:
    """The line of a chapter's file in a book."""
    with zipfile.ZipFile(place.path) as archive:
        package = next(
            element.get("full-path", "")
            for element in ElementTree.fromstring(archive.read("META-INF/container.xml")).iter()
            if element.tag.endswith("}rootfile")
        )
        root = ElementTree.fromstring(archive.read(package))
        items = {each.get("id"): each.get("href", "") for each in root.iter() if each.tag.endswith("}item")}
        spine = [items[each.get("idref")] for each in root.iter() if each.tag.endswith("}itemref")]
        folder = package.rpartition("/")[0]
        from posixpath import join, normpath
        from urllib.parse import unquote

        name = normpath(join(folder, unquote(spine[(place.chunk.page or 1) - 1])))
        data = archive.read(name).decode("utf-8", "replace")
    whole = html.unescape(TAG.sub(" ", data))
    return {"page": found(place.text, whole), **_html(data, place)}


def paragraph(place: Place, _: Extractor) -> dict[str, Any]:
    """The paragraph or row of a DOCX file with the line's number, of those that show text."""
    import docx

    space = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
    hidden = {f"{space}{name}" for name in ("del", "moveFrom", "instrText", "delText")}
    shown: list[str] = []

    def gather(element: Any) -> str:
        if element.tag in hidden or str(element.tag).endswith(("}Fallback", "}txbxContent", "}pPr")):
            return ""
        own = {f"{space}t": element.text or "", f"{space}tab": " ", f"{space}br": " "}.get(element.tag, "")
        if "/math}t" in str(element.tag):
            own = element.text or ""
        own += element.get("descr", "") if str(element.tag).endswith("}docPr") else ""
        return own + "".join(gather(child) for child in element)

    def walk(element: Any) -> None:
        for child in element:
            if child.tag in (f"{space}p", f"{space}tr"):
                if gather(child).strip():
                    shown.append(gather(child))
            elif child.tag not in hidden:
                walk(child)

    walk(docx.Document(str(place.path)).element.body)
    _known(place, "\n".join(shown))
    there = shown[place.line - 1] if place.line <= len(shown) else ""
    unnumbered = place.text.partition(" ")[2]  # the other reader does not show the numbers of lists
    return {
        "line": max(found(place.text, there), found(unnumbered, there) if unnumbered else 0.0),
        "heading": _under_heading(place, "docx"),
        "there": there,
    }


def odt(place: Place, _: Extractor) -> dict[str, Any]:
    """The heading above the line; paragraphs are not counted by other readers."""
    return {"heading": _under_heading(place, "odt"), "there": ""}


def slide(place: Place, _: Extractor) -> dict[str, Any]:
    """The slide, and its title."""
    import pptx

    shown = list(pptx.Presentation(str(place.path)).slides)[(place.chunk.page or 1) - 1]
    texts: list[str] = []
    waiting: list[Any] = list(shown.shapes)
    while waiting:
        shape = waiting.pop(0)
        waiting += getattr(shape, "shapes", ())
        texts.append("".join(each.get("descr", "") for each in shape._element.iter() if "cNvPr" in str(each.tag)))
        if getattr(shape, "has_chart", False):
            texts += shape.chart._chartSpace.itertext()
        texts.append("\n".join(
            "".join(t.text or "" for t in p.iter("{*}t", "{*}fld")) for p in shape._element.iter("{*}p")
        ))  # fmt: skip
    if shown.has_notes_slide:
        texts.append(shown.notes_slide.notes_text_frame.text if shown.notes_slide.notes_text_frame else "")
    title = shown.shapes.title.text_frame.text if shown.shapes.title is not None else ""
    heading = None
    if title.strip():
        heading = found(place.chunk.context.removesuffix(" > Notes").split(" > ")[-1].rstrip("…"), title + place.text)
        heading = max(heading, found(title, place.chunk.text + place.chunk.context))
    return {"page": found(place.text, "\n".join(texts)), "heading": heading, "there": "\n".join(texts)}


def row(place: Place, _: Extractor) -> dict[str, Any]:
    """The row of a sheet, and the name of the value's column."""
    import openpyxl

    book = openpyxl.load_workbook(place.path, data_only=True)
    names = [" ".join(name.split()) for name in book.sheetnames]
    sheet = book[book.sheetnames[(place.chunk.page or 1) - 1]]
    name = names[(place.chunk.page or 1) - 1]
    cells = sheet[place.line]
    cells = cells if isinstance(cells, tuple) else (cells,)
    there = " ".join(str(cell.value) for cell in cells if cell.value is not None)
    label, colon, value = place.text.partition(": ")
    numbers = [float(cell.value) for cell in cells if isinstance(cell.value, (int, float))]
    if not colon and found(place.text, there) < _ENOUGH:
        cells_of = (cell.value for each in book.worksheets for cell in each._cells.values())
        _known(place, " ".join(str(value) for value in cells_of if value is not None))
    share = found(value if colon else place.text, there)
    shown = re.sub(r"[^\d.-]", "", value)
    if share < _ENOUGH and re.fullmatch(r"-?\d+(?:\.\d+)?", shown):
        decimals = len(shown.partition(".")[2])
        share = float(any(round(abs(n) * f, decimals) == abs(float(shown)) for n in numbers for f in (1, 100)))
    if share < _ENOUGH and value:
        there += " ".join(str(one.value.isoformat(" ")) for one in cells if hasattr(one.value, "isoformat"))
        share = found(value, there)
    column = None
    if colon and not label.startswith("column "):
        at = [c.column for c in cells if c.value is not None and found(value, str(c.value)) >= _ENOUGH]
        heads = [" ".join(str(sheet.cell(r, c).value).split()) for c in at for r in range(1, place.line + 1)]
        column = float(label in heads) if at else None
    return {
        "line": share,
        "sheet": float(name[:40] in place.chunk.context or len(names) == 1),
        "column": column,
        "there": there,
    }


def mail(place: Place, _: Extractor) -> dict[str, Any]:
    """The line of a message as it is shown: its headers, and its body without blank lines, if it is plain text."""
    message = email.message_from_bytes(place.path.read_bytes(), policy=email.policy.default)
    subject = str(message.get("Subject", ""))
    texts = [
        str(part.get_content())
        for part in message.walk()
        if part.get_content_maintype() == "text" and isinstance(part.get_content(), str)
    ]
    parts = list(message.walk())
    names = [f"Attachment: {part.get_filename()}" for part in parts]
    whole = "\n".join([*(f"{key}: {value}" for part in parts for key, value in part.items()), *names, *texts])
    there = html.unescape(TAG.sub(" ", whole)) + whole
    return {
        "page": found(place.text, there),
        "heading": found(place.chunk.context[:60].rsplit(" ", 1)[0], whole + str(place.extracted.title) + subject),
        "there": "",
    }


ORACLES: dict[str, Callable[[Place, Extractor], dict[str, Any]]] = {
    "pdf": pdf, "docx": paragraph, "xlsx": row, "pptx": slide, "html": page, "eml": mail, "epub": chapter, "odt": odt,
    "csv": record, "json": record,
}  # fmt: skip


def places(extracted: Extracted, path: Path, draw: random.Random) -> Place | None:
    """A line of a passage at random, with enough words."""
    possible = []
    for chunk in extracted.chunks:
        lines = chunk.text.split("\n")
        numbers: Sequence[int] = chunk.lines or range(chunk.line_start, chunk.line_start + len(lines))
        for line, number in zip(lines, numbers, strict=True):
            if words(line).total() >= _LEAST_WORDS:
                possible.append((chunk, min(number, chunk.line_end), line))
    return Place(path, extracted, *draw.choice(possible)) if possible else None


def main() -> int:
    """Prints the shares of places that are right, by kind."""
    parser = argparse.ArgumentParser(description="Compares places with those of other readers.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--each", type=int, default=12, help="files of a kind")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", nargs="*", default=KINDS)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    listed: dict[str, list[Path]] = {kind: [] for kind in KINDS}
    for path in files(options.folder, frozenset(KINDS)):
        listed.setdefault(path.suffix[1:], []).append(path)
    results, unknown = [], Counter[str]()
    with Extractor(budget=MemoryBudget(300 * 10**6)) as extractor:
        for kind in options.kinds:
            draw, taken = random.Random(f"{options.seed}{kind}"), 0
            for path in draw.sample(listed[kind], len(listed[kind])):
                if taken == options.each:
                    break
                try:
                    place = places(extractor.extract(path), path, draw)
                    if place is None:
                        continue
                    checks = ORACLES.get(kind, text)(place, extractor)
                except Unknown:
                    unknown[kind] += 1
                    continue
                except (EdgeError, subprocess.SubprocessError):
                    continue
                except Exception as error:  # the other reader cannot read the file
                    print(f"{path.name}: {type(error).__name__}: {error}"[:150], file=sys.stderr)
                    continue
                there = checks.pop("there", "")
                checks = {name: share for name, share in checks.items() if share is not None}
                wrong = [name for name, share in checks.items() if share < _ENOUGH]
                taken += 1
                results.append({"file": path.name, "kind": kind, "page": place.chunk.page, "line": place.line,
                                "text": place.text, "context": place.chunk.context, "checks": checks, "wrong": wrong,
                                "there": there[:2000]})  # fmt: skip
    by_kind = {kind: [result for result in results if result["kind"] == kind] for kind in options.kinds}
    for kind, some in by_kind.items():
        bad = Counter(name for result in some for name in result["wrong"])
        print(f"{kind}: {sum(not result['wrong'] for result in some)} of {len(some)} right {dict(bad) or ''}")
    print(f"not shown by the other reader: {dict(unknown)}")
    print(f"all: {sum(not result['wrong'] for result in results)} of {len(results)}")
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=1, ensure_ascii=False))
    return 0


if __name__ == "__main__":
    sys.exit(main())
