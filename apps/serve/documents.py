"""Indexed documents, for the page: the text around a passage (`/v1/preview`), a page of a PDF as a picture
(`/v1/page`), and a document in the person's editor (`/v1/open`). No document is opened that the index does not name."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from edge.apps.collection.catalog import Catalog, FileRow, StoredChunk
from edge.apps.collection.excerpts import NotIndexed
from edge.apps.collection.hits import modified
from edge.apps.collection.paths import on_disk
from edge.apps.collection.searching import read_hits
from edge.apps.documents import kinds
from edge.apps.documents.base import Stamp
from edge.apps.documents.extraction import Extractor
from edge.apps.documents.pdf import PICTURE_NBYTES
from edge.apps.serve.body import PathText, Whole
from edge.apps.serve.editor import is_passive
from edge.apps.serve.endpoint import Call, ServedPath
from edge.apps.serve.refusals import HttpRefusal
from edge.ivf.base import Connection

if TYPE_CHECKING:
    from edge.apps.serve.library import Served


MOST_BYTES = 48_000
LEAST_LINE = 24
"""A line counts as so many bytes at least, so that a preview has 2,000 lines at most."""

PER_BYTE = 100
"""Memory of a preview for each byte of its text. Lines of one letter took 21 to 45."""


@dataclass(frozen=True, slots=True)
class NumberedLine:
    number: int
    text: str
    page: int | None
    kind: str


class PreviewBody(Struct, kw_only=True):
    """A passage by its number (`id`), or a `line` or a `page` of the document at a `path`."""

    collection: str | None = None
    id: Whole | None = None
    path: PathText | None = None
    line: Whole | None = None
    page: Whole | None = None
    max_bytes: Whole | None = None


def post_preview(call: Call, body: PreviewBody) -> dict[str, Any]:
    """Reads the part of an indexed document around a passage or a line: `lines` as number, text and kind (empty where
    the line goes on with the paragraph, row or code of the line before), `pages`, the passages before and after this
    part (`earlier`, `later`), and whether its own program can show it (`opens`)."""
    if body.id is None and not body.path:
        raise HttpRefusal(422, "the field `path` is missing")
    most = min(body.max_bytes or MOST_BYTES, MOST_BYTES)
    collection = call.library.collection(body.collection or "")
    with call.server.budget.reserve("previews", PER_BYTE * most):
        found = preview(collection, body.id, body.path or "", body.line or 1, most, page=body.page)
        return {**found, "opens": call.server.options.opener.is_named and is_passive(Path(found["path"]))}


def preview(
    collection: Served, passage: int | None, path: str, line: int, most: int, *, page: int | None = None
) -> dict[str, Any]:
    catalog = Catalog()
    with collection.database.read() as db:
        if passage is not None:
            hit = read_hits(db, [passage]).get(passage)
            if hit is None:
                raise NotIndexed(f"there is no passage {passage} in the collection; a new search finds its successor")
            path = hit.path
        file = indexed_file(db, path)
        chunks = catalog.chunks(db, file.id)
        at = _place(chunks, passage, line, page)
        lines, first, last = _around(db, chunks, at, most)
    return {
        "path": file.path, "title": file.title, "kind": file.kind, "size": file.size,
        "modified": modified(file.mtime_ns) or None,
        "lines": [[line.number, line.text, line.kind] for line in lines],
        "pages": _pages(lines),
        "earlier": chunks[first - 1].id if first > 0 else None,
        "later": chunks[last + 1].id if last < len(chunks) - 1 else None,
    }  # fmt: skip


def indexed_file(db: Connection, path: str) -> FileRow:
    file = Catalog().find(db, path)
    if file is None or file.status != "indexed":
        raise NotIndexed(f"{path} is not indexed in this collection")
    return file


def _place(chunks: Sequence[StoredChunk], passage: int | None, line: int, page: int | None) -> int:
    if passage is not None:
        return next(i for i, chunk in enumerate(chunks) if chunk.id == passage)
    on = (i for i, chunk in enumerate(chunks) if (chunk.page or 0) >= (page or 0) and chunk.line_end >= line)
    return next(on, len(chunks) - 1)


def _around(db: Connection, chunks: Sequence[StoredChunk], at: int, most: int) -> tuple[list[NumberedLine], int, int]:
    """Lines of the chunk `at` and of its neighbours, as many as fit; the places of the first and last chunk."""
    first = last = at
    found = _lines(db, chunks[at], most)
    left = most - _nbytes(found)
    after = before = True
    while after or before:
        if after:
            after = last + 1 < len(chunks)
            more = _lines(db, chunks[last + 1], most) if after else []
            after = after and _nbytes(more) <= left
            if after:
                found, last, left = [*found, *more], last + 1, left - _nbytes(more)
        if before:
            before = first > 0
            more = _lines(db, chunks[first - 1], most) if before else []
            before = before and _nbytes(more) <= left
            if before:
                found, first, left = [*more, *found], first - 1, left - _nbytes(more)
    return found, first, last


_NAMES = {
    kinds.NOTHING: "mark", kinds.ITEM: "item", kinds.ROW: "row", kinds.COLUMNS: "columns", kinds.SETTING: "field",
    kinds.DOCSTRING: "code", kinds.CODE: "code", kinds.COMMAND: "code", kinds.COMMENT: "code",
}  # fmt: skip
_WRAPPED = frozenset({"markdown", "notebook", "pdf"})
"""Kinds of files in which only a blank line ends a paragraph."""


def _lines(db: Connection, chunk: StoredChunk, most: int) -> list[NumberedLine]:
    """The lines of a chunk that are not blank, cut after `most` bytes; a blank one has no number in the index."""
    hit = read_hits(db, [chunk.id])[chunk.id]
    text = hit.text.encode()[:most].decode("utf-8", "ignore")
    ends = [end for _, end in hit.kinds]
    found: list[NumberedLine] = []
    at, before, last, goes_on = 0, -1, "", False
    for number, line in islice(zip(hit.numbers, text.split("\n"), strict=False), max(1, most // LEAST_LINE)):
        if line.strip():
            word = kinds.WORD.search(line)
            part = bisect_right(ends, at + (word.start() if word else len(line) - len(line.lstrip())))
            kind = _name(hit.kinds[part][0]) if part < len(ends) else "text"
            joined = part == before < len(ends) or (kind == last == "text" and goes_on and hit.kind in _WRAPPED)
            found.append(NumberedLine(number, line, hit.page, "" if joined else kind))
            before, last = part, kind
        goes_on = bool(line.strip())
        at += len(line) + 1
    return found


def _name(kind: int) -> str:
    return f"heading {kind - kinds.HEADING}" if kind > kinds.HEADING else _NAMES.get(kind, "text")


def _nbytes(lines: Sequence[NumberedLine]) -> int:
    return sum(max(LEAST_LINE, len(line.text.encode()) + 1) for line in lines)


def _pages(lines: Sequence[NumberedLine]) -> list[list[int]]:
    found: list[list[int]] = []
    for place, line in enumerate(lines):
        if line.page is not None and (not found or found[-1][1] != line.page):
            found.append([place, line.page])
    return found


_MOST_LINES = 5_000


class PageBody(Struct, kw_only=True):
    """A page of the document at a `path`, and the lines that are marked on it."""

    path: PathText
    collection: str | None = None
    page: Whole | None = None
    first: Whole | None = None
    last: Whole | None = None


def draw(call: Call, body: PageBody) -> Any:
    """Draws a `page` of the document at a `path`, as PNG. Its lines from `first` to `last` are marked, or from `first`
    on where the passage ends on a later page. The header `Edge-Pages` gives the number of pages."""
    from starlette.responses import Response

    first, last = body.first, body.last
    end = min(last, _MOST_LINES) if last and last >= (first or 1) else _MOST_LINES
    lines = range(first, end + 1) if first else range(0)
    budget = call.server.budget
    _check(call.library.collection(body.collection or ""), body.path)
    # As for indexing, a process of its own opens the document, under limits of time and memory. Each page has its
    # own, so that its memory is given back at once.
    with call.server.drawing, budget.reserve("page pictures", PICTURE_NBYTES), Extractor(budget=budget) as extractor:
        picture = extractor.picture(Path(on_disk(body.path)), body.page or 1, lines)
    call.hold_more(2 * len(picture.png))
    headers = {"Edge-Pages": str(picture.pages), "Cache-Control": "no-store"}
    return Response(picture.png, media_type="image/png", headers=headers)


def _check(collection: Served, path: str) -> None:
    with collection.database.read() as db:
        file = indexed_file(db, path)
    if file.kind != "pdf":
        raise HttpRefusal(422, f"{path} has no pages that could be drawn")
    try:
        now = os.stat(on_disk(path))
    except OSError as error:
        raise HttpRefusal(409, f"{path} cannot be read now: {error.strerror}") from None
    if (file.size, file.mtime_ns) != Stamp.of(now)[:2]:
        raise HttpRefusal(409, f"{path} has changed since it was indexed; `edge index` reads it again")


class OpenBody(Struct, kw_only=True):
    """A place in the document at a `path`."""

    path: PathText
    collection: str | None = None
    line: Whole | None = None
    page: Whole | None = None
    own: bool | None = None


def open_document(call: Call, body: OpenBody) -> dict[str, Any]:
    """Opens the document at a `path` in the editor that `edge serve --editor` names, at a `line` or `page`; with `own`
    in the program of its type. Only an indexed document is opened."""
    server = call.server
    editor = server.options.opener if body.own else server.options.editor
    if not editor.is_named:
        needed = "--token on a machine with a screen" if body.own else "--editor COMMAND"
        raise HttpRefusal(501, f"the server opens no documents so: `edge serve {needed}` does")
    with call.library.collection(body.collection or "").database.read() as db:
        file = indexed_file(db, body.path)
    place = Path(on_disk(file.path))
    if not place.is_file():
        raise HttpRefusal(409, f"{body.path} is not there any more; `edge index` takes it out")
    if body.own and not is_passive(place):
        raise HttpRefusal(403, f"{body.path} is no kind of file that its own program only shows; open it yourself")
    editor.open(place, body.line or 1, body.page or 1)
    return {"opened": body.path}


PATHS = (
    ServedPath("POST", "/v1/preview", post_preview, PreviewBody),
    ServedPath("POST", "/v1/page", draw, PageBody),
    ServedPath("POST", "/v1/open", open_document, OpenBody),
)
