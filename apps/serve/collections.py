"""Collections over HTTP: searching and asking them (`/v1/search`, `/v1/ask`), their files (`/v1/collections`,
`/v1/documents`, `/v1/folders`); and for the page the text around a passage (`/v1/preview`), a page of a PDF as a
picture (`/v1/page`), a document in the person's editor (`/v1/open`), and what it offers (`/v1/offers`, `/v1/scopes`).
No document is opened that the index does not name."""

from __future__ import annotations

import importlib.metadata
import os
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta, Struct

from edge.apps.assistant.answer import Answer, AnswerStats
from edge.apps.assistant.assistant import Turn
from edge.apps.assistant.pipelines import PIPELINES
from edge.apps.collection.catalog import Catalog, FileRow, StoredChunk
from edge.apps.collection.collection import Collection
from edge.apps.collection.excerpts import NotIndexed
from edge.apps.collection.hits import Hit, brief, modified, written
from edge.apps.collection.paths import on_disk, resolved
from edge.apps.collection.searching import read_hits
from edge.apps.documents import kinds
from edge.apps.documents.base import Stamp
from edge.apps.documents.extraction import Extractor
from edge.apps.documents.pdf import PICTURE_NBYTES
from edge.apps.memory.arguments import SCOPE_FIELDS
from edge.apps.serve.body import MOST_ENTRIES, PathText, Texts, Whole, as_list, options_of, with_options
from edge.apps.serve.endpoint import Call, Events, ServedPath
from edge.apps.serve.refusals import HttpRefusal
from edge.apps.serve.server import is_passive
from edge.apps.store.database import Database
from edge.apps.verbs import work
from edge.apps.verbs.requests import AskOptions, SearchOptions
from edge.ivf.base import Connection
from edge.runtimes.scoring import LayerReport

if TYPE_CHECKING:
    from edge.apps.serve.library import Served


class Chosen(Struct, kw_only=True):
    """The collections that are read: several, or one; the usual one if none is named."""

    collections: Texts | None = None
    collection: Texts | None = None

    @property
    def names(self) -> list[str]:
        return as_list(self.collections or self.collection)


@with_options(SearchOptions)
class SearchBody(Chosen, kw_only=True):
    """A search; see `Collection.search`. With `partial` a collection in shards gives the results of those that answer,
    and `health` names the others."""

    query: str
    stream: bool | None = None
    partial: bool | None = None


def search(call: Call, body: SearchBody) -> dict[str, Any]:
    """Finds passages, best first. With `stream` the results come in events: `fused`, one `layer` after each layer whose
    scores were looked at, `final`."""
    collections, options = (
        call.library.together(body.names, partial=bool(body.partial)),
        options_of(body, SearchOptions),
    )
    seen = None if call.events is None else StageEvents(call.events)
    hits = collections.search(body.query, options=options, seen=seen)
    health = {"health": collections.health().to_json()}
    if options.brief:
        return {**brief(hits, top_k=options.top_k, max_tokens=options.max_tokens, around=written(health)), **health}
    return {"results": list(map(record, hits)), **health}


class StageEvents:
    """Sends the results of each stage of a search."""

    def __init__(self, events: Events) -> None:
        self._events = events

    def fused(self, hits: list[Hit]) -> None:
        self._events.put("fused", {"results": list(map(record, hits))})

    def judged(self, hits: Sequence[Hit], report: LayerReport) -> None:
        order = sorted(
            zip(report.scores.tolist(), report.ids.tolist(), strict=True), key=lambda pair: (-pair[0], pair[1])
        )
        found = [{"id": hits[i].id, "collection": hits[i].collection, "score": round(score, 5)} for score, i in order]
        left = {"dropped": len(report.decision.dropped), "active": len(report.ids)}
        self._events.offer("layer", {"layer": report.layer, "results": found, **left})


def record(hit: Hit) -> dict[str, Any]:
    more = {"text": hit.text, "kind": hit.kind, "citation": hit.citation, "file": hit.file}
    more["modified"] = hit.modified or None
    return {**hit.to_json(explain=True), **more, "marks": [list(mark) for mark in hit.marks]}


MOST_TURNS = 1000

Show = Callable[[str], None] | None


class AskedTurn(Struct, kw_only=True):
    """A question that was asked before, its answer, and what it was looked up by (`standalone`)."""

    question: str
    answer: str | None = None
    standalone: str | None = None

    def turn(self) -> Turn:
        said = Answer(self.answer or "", (), AnswerStats(question=self.question))
        return Turn(self.question, self.standalone or self.question, said)


@with_options(AskOptions)
class AskBody(Chosen, kw_only=True):
    """A question to collections."""

    question: str
    llm: str | None = None
    pipeline: str | None = None
    turns: Annotated[list[AskedTurn], Meta(max_length=MOST_TURNS)] | None = None
    stream: bool | None = None


def ask(call: Call, body: AskBody) -> dict[str, Any]:
    """Answers a question from collections, with citations. With `stream` the answer comes in events: `text` for each
    piece of it, then `answer` with the whole."""
    options, events = options_of(body, AskOptions, call.server.options.usual), call.events
    show: Show = None if events is None else lambda text: events.put("text", {"text": text})
    with call.library.assistant(body.names, body.llm or "", body.pipeline or "plain") as assistant:
        conversation = assistant.chat(options=options)
        conversation.turns.extend(turn.turn() for turn in body.turns or ())
        answer = work.written(conversation.stream(body.question), show)
        return {**answer_document(answer), "health": assistant.collection.health().to_json()}


def answer_document(answer: Answer) -> dict[str, Any]:
    rounds = [
        {
            "queries": list(entry.queries), "question": entry.question, "below": entry.below, "best": entry.best,
            "passages": [record(hit) for hit in entry.passages],
            "search_s": entry.search_s, "rerank_s": entry.rerank_s,
        }
        for entry in answer.rounds
    ]  # fmt: skip
    return {**answer.to_json(), "found": answer.found, "rounds": rounds}


def collections(call: Call) -> dict[str, Any]:
    """Lists the names of the collections, with the directory of each and whether it holds a collection yet."""
    return {"collections": call.library.described()}


def collection(call: Call) -> dict[str, Any]:
    """Describes one collection: its content, the files that were left out with the reasons, and the state of its
    index."""
    opened = call.library.collection(call.named("name"))
    return {"name": call.named("name"), **opened.status().to_json(), "descriptions": opened.descriptions()}


def files(call: Call) -> dict[str, Any]:
    """Lists the indexed files of a collection, in the order of their paths."""
    return {"files": [asdict(file) for file in call.library.collection(call.named("name")).files()]}


_MOST_BYTES = 1 << 20


class DocumentsBody(Chosen, kw_only=True):
    """Documents or parts of them: `targets` as `edge get` takes them."""

    targets: PathText | Annotated[list[PathText], Meta(max_length=MOST_ENTRIES)]
    lines: Whole | None = None
    max_bytes: Whole | None = None


def documents(call: Call, body: DocumentsBody) -> dict[str, Any]:
    """Reads the indexed text of documents or of parts of them."""
    most = min(body.max_bytes or _MOST_BYTES, _MOST_BYTES)
    found = call.library.together(body.names).read(as_list(body.targets), lines=body.lines, max_bytes=most)
    return {"documents": [asdict(excerpt) for excerpt in found]}


class FolderBody(Struct, kw_only=True):
    """A folder of the server's machine."""

    path: PathText
    collection: str | None = None
    stream: bool | None = None


def add_folder(call: Call, body: FolderBody) -> dict[str, Any]:
    """Indexes the folder at a `path`, or what has changed in it, if `edge serve --add-folders` allows it. With `stream`
    the progress comes in events before the report, `indexed`."""
    if not call.server.options.adds_folders:
        raise HttpRefusal(501, "the server adds no folders: `edge serve --add-folders` does")
    if Path(resolved(body.path)).is_file():  # a file that is named is read although it may hold secrets
        raise HttpRefusal(422, f"{body.path} is no folder; `edge index FILE` adds a file")

    def tell(done: int, total: int, place: str) -> None:
        if call.events is not None:
            call.events.offer("progress", {"done": done, "total": total, "place": place})

    with call.library.writing(body.collection or "") as opened:
        return opened.index([body.path], progress=tell).to_json()


_MOST_EXAMPLES, _LONGEST = 3, 60
_PROSE = "'markdown', 'html', 'pdf', 'docx', 'odt', 'epub', 'rtf', 'latex', 'rst'"
_LATEST = f"""SELECT title, context FROM (
    SELECT id, title, mtime_ns FROM files WHERE status = 'indexed' AND kind IN ({_PROSE}) AND typeof(title) = 'text'
    AND substr(path, -length(title)) <> title ORDER BY mtime_ns DESC LIMIT 12) AS latest
    JOIN chunks ON file = latest.id AND ordinal < 4 AND typeof(context) = 'text'
    ORDER BY mtime_ns DESC, file, ordinal"""


def examples(database: Database) -> list[dict[str, str]]:
    """Headings of the documents that changed last, each with its document's title: one below the title, or the title
    itself where too few documents have sections."""
    below, titles = dict[str, str](), dict[str, str]()
    with database.read() as db:
        for title, context in db.execute(_LATEST):
            heading = context.rpartition(" > ")[2][:_LONGEST]
            if title not in below.values() and heading not in (title[:_LONGEST], ""):
                below.setdefault(heading, title)
            titles[title] = title
    rest = {title: title for title in titles if title not in below.values()}
    found = [*below.items(), *rest.items()][:_MOST_EXAMPLES]
    return [{"heading": heading[:_LONGEST], "title": title[:_LONGEST]} for heading, title in found]


def offers(call: Call) -> dict[str, Any]:
    """Tells the version, the names of the pipelines that can answer here, headings of the documents that changed last
    in the usual collection, and whether documents can be opened in an editor and folders added."""
    options = call.server.options
    return {
        "version": importlib.metadata.version("edge-rag"),
        "pipelines": list(PIPELINES) if call.library.writes else ["plain"],
        "examples": examples(call.library.collection().database)
        if Collection.exists(next(iter(call.library.names().values())))
        else [],
        "editor": options.editor.is_named,
        "adds_folders": options.adds_folders,
    }


def scopes(call: Call) -> dict[str, Any]:
    """Lists the scopes that memories are stored under, with the number of memories in each, hidden ones included."""
    names = ", ".join(SCOPE_FIELDS)
    with call.library.memory().store.read() as db:
        rows = db.execute(f"SELECT {names}, count(*) FROM memories GROUP BY {names} ORDER BY {names}").fetchall()
    return {"scopes": [dict(zip((*SCOPE_FIELDS, "memories"), row, strict=True)) for row in rows]}


MOST_PREVIEWED = 48_000
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
    most = min(body.max_bytes or MOST_PREVIEWED, MOST_PREVIEWED)
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
    ServedPath("POST", "/v1/search", search, SearchBody, for_person=True, last="final"),
    ServedPath("POST", "/v1/ask", ask, AskBody, for_person=True, last="answer"),
    ServedPath("GET", "/v1/collections", collections),
    ServedPath("GET", "/v1/collections/{name:path}/files", files),
    ServedPath("GET", "/v1/collections/{name:path}", collection),  # a directory that was named at the start
    ServedPath("POST", "/v1/documents", documents, DocumentsBody),
    ServedPath("POST", "/v1/folders", add_folder, FolderBody, last="indexed"),
    ServedPath("GET", "/v1/offers", offers),
    ServedPath("GET", "/v1/scopes", scopes),
    ServedPath("POST", "/v1/preview", post_preview, PreviewBody),
    ServedPath("POST", "/v1/page", draw, PageBody),
    ServedPath("POST", "/v1/open", open_document, OpenBody),
)
