"""Searching and asking collections (`/v1/search`, `/v1/ask`), their files (`/v1/collections`, `/v1/documents`), and
what the page asks (`/v1/offers`, `/v1/scopes`)."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct

from edge.apps.assistant.answer import Answer, AnswerStats
from edge.apps.assistant.assistant import Turn
from edge.apps.assistant.citations import Citation
from edge.apps.assistant.pipelines import PIPELINES
from edge.apps.collection.collection import Collection
from edge.apps.collection.hits import Hit, brief, written
from edge.apps.collection.paths import resolved
from edge.apps.memory.arguments import SCOPE_FIELDS
from edge.apps.serve.body import MOST_ENTRIES, PathText, Texts, Whole, as_list, options_of, with_options
from edge.apps.serve.endpoint import Call, Events, ServedPath
from edge.apps.serve.refusals import HttpRefusal
from edge.apps.store.database import Database
from edge.apps.verbs import work
from edge.apps.verbs.requests import AskOptions, SearchOptions
from edge.runtimes.scoring import LayerReport


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
    """A question that was asked before, and its answer. The `title` of the document that the answer cites first keeps
    the search for a follow-up near that document."""

    question: str
    answer: str | None = None
    title: str | None = None
    standalone: str | None = None

    def turn(self) -> Turn:
        title = self.title
        cited = (Citation(1, 0, title, 1, 1, 1, None, title, "", None),) if title else ()
        said = Answer(self.answer or "", cited, AnswerStats(question=self.question))
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
)
