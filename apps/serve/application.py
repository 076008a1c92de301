"""The application: which path is answered by what, and the OpenAPI document of the paths. What a handler's docstring
says is what clients read there.

The page's files lie in the folder `page` beside this module, and are served as they are.
"""

from __future__ import annotations

import importlib.metadata
import inspect
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge.apps.serve.answers import Ask, Chat
from edge.apps.serve.connection import OWN
from edge.apps.serve.documents import Opening, Paper
from edge.apps.serve.endpoint import Call, Endpoint, Operation
from edge.apps.serve.inference import Embeddings, Rerank
from edge.apps.serve.json_values import json_response
from edge.apps.serve.mcp_http import files_tools, memory_tools
from edge.apps.serve.memories import HostedMemories, Memories
from edge.apps.serve.own import Own
from edge.apps.serve.preview import Preview
from edge.apps.serve.refusals import cohere, openai, plain, tei
from edge.apps.serve.search import Collections, Offers, Search
from edge.apps.serve.security import Gate

if TYPE_CHECKING:
    from edge.apps.serve.server import Server


FOLDER = Path(__file__).parent / "page"
INDEX = "index.html"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""By suffix. What the system believes about suffixes is not asked: a browser runs no module of another type."""


def page_routes(folder: Path = FOLDER) -> list[Any]:
    """Routes of the page, `/` and `/page/NAME`: one for each file that is there now; none where there is no page."""
    from starlette.routing import Route

    if not (folder / INDEX).is_file():
        return []
    files = sorted(path for path in folder.iterdir() if path.suffix in TYPES)
    routes = [Route(f"/page/{path.name}", _served(path), methods=["GET"]) for path in files]
    return [Route("/", _served(folder / INDEX), methods=["GET"]), *routes]


def _served(path: Path) -> Any:
    """An endpoint that answers with a file."""
    from starlette.responses import FileResponse

    async def file(request: Any) -> Any:
        return FileResponse(path, media_type=TYPES[path.suffix], headers={"Cache-Control": "no-cache"})

    return file


def paths(server: Server) -> list[Operation]:
    """All paths that are answered, but for the page's files."""
    rerank, memories, hosted = Rerank(server.library), Memories(server.library), HostedMemories(server.library)
    embeddings, chat = Embeddings(server.library), Chat(server.library)
    collections, life, offers = Collections(server.library), Life(server), Offers(server.library, server.editor)
    found = [
        Operation("POST", "/rerank", rerank.any, tei),
        Operation("POST", "/v1/rerank", rerank.v1),
        Operation("POST", "/v2/rerank", rerank.v2, cohere),
        Operation("POST", "/v1/embeddings", embeddings.openai, openai),
        Operation("POST", "/embed", embeddings.tei, tei),
        Operation("GET", "/info", embeddings.info, tei),
        Operation("GET", "/v1/models", chat.models, openai),
        Operation("POST", "/v1/chat/completions", chat.completions, openai),
        Operation("POST", "/v1/search", Search(server.library).post),
        Operation("POST", "/v1/ask", Ask(server.library).post),
        Operation("GET", "/v1/collections", collections.every),
        Operation("GET", "/v1/collections/{name:path}/files", collections.files),
        Operation("GET", "/v1/collections/{name:path}", collections.one),  # a directory that was named at the start
        Operation("POST", "/v1/documents", collections.documents),
        Operation("POST", "/v1/preview", Preview(server.library).post),
        Operation("POST", "/v1/open", Opening(server.library, server.editor).post),
        Operation("POST", "/v1/page", Paper(server.library).post),
        Operation("GET", "/v1/offers", offers.get),
        Operation("GET", "/v1/scopes", offers.scopes),
        Operation("GET", "/v1/engine", server.room.get),
        Operation("GET", "/v1/trace", server.recording.get),
        Operation("POST", "/v1/trace", server.recording.post),
        Operation("GET", "/health", life.health),
        Operation("GET", "/metrics", life.metrics),
        Operation("POST", "/search", memories.search),
        Operation("POST", "/reset", memories.reset),
        Operation("POST", "/v1/memories/search", memories.search),
        Operation("GET", "/v1/ping", memories.ping),
        Operation("POST", "/v3/memories/add", memories.add),
        Operation("POST", "/v3/memories/search", memories.search),
        Operation("POST", "/v3/memories", memories.listed),
        Operation("GET", "/v1/entities", hosted.entities),
        Operation("DELETE", "/v2/entities/{kind}/{name:path}", hosted.delete_entity),
        Operation("PUT", "/v1/batch", hosted.update_batch),
        Operation("DELETE", "/v1/batch", hosted.delete_batch),
    ]
    for path, tools in (("/mcp", files_tools(server.library)), ("/mcp/memory", memory_tools(server.library))):
        found += [
            Operation("POST", path, tools.post),
            Operation("GET", path, tools.other),
            Operation("DELETE", path, tools.other),
        ]
    for base in ("/memories", "/v1/memories"):
        found += [
            Operation("POST", base, memories.add),
            Operation("GET", base, memories.every),
            Operation("DELETE", base, memories.delete_all),
            Operation("GET", base + "/{memory_id}", memories.one),
            Operation("PUT", base + "/{memory_id}", memories.update),
            Operation("DELETE", base + "/{memory_id}", memories.delete),
            Operation("GET", base + "/{memory_id}/history", memories.history),
        ]
    return found


def own_paths(server: Server) -> list[Operation]:
    """Paths that are answered over the Unix socket only, to the owner's programs."""
    own = Own(server.library, server.limits, server.room)
    return [
        Operation("GET", OWN, own.hello),
        Operation("POST", f"{OWN}/status", own.status),
        Operation("POST", f"{OWN}/search", own.search),
        Operation("POST", f"{OWN}/rerank", own.rerank),
        Operation("POST", f"{OWN}/embed", own.embed),
        Operation("POST", f"{OWN}/ask", own.ask),
        Operation("POST", f"{OWN}/end", own.end),
        Operation("POST", f"{OWN}/memory", own.memory),
    ]


class Life:
    """What every server has: whether it lives, its metrics."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def health(self, call: Call) -> dict[str, Any]:
        """Whether the server lives, and whether a request would have room now."""
        return {"status": "ok", "ready": self._server.budget.free > 0 or self._server.workers.busy > 0}

    async def metrics(self, call: Call) -> Any:
        """Counts, times and memory, as Prometheus reads them."""
        from starlette.responses import PlainTextResponse

        server = self._server
        text = server.metrics.text(server.budget, server.trace, server.room.levels())
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")


def application(server: Server) -> Any:
    """The ASGI application of a server, behind its gate."""
    from starlette.applications import Starlette
    from starlette.routing import Route

    every = paths(server)
    document = described(every)

    async def describe(call: Call) -> dict[str, Any]:
        """This interface, as an OpenAPI document."""
        return document

    every += [Operation("GET", "/openapi.json", describe), *own_paths(server)]
    server.metrics.known = frozenset(path.path for path in every)
    routes = [
        Route(
            path.path,
            Endpoint(path.handler, server.requests, server.workers, server.metrics, path.shape),
            methods=[path.method],
        )
        for path in every
    ]
    app = Starlette(
        routes=[*routes, *page_routes()],
        exception_handlers={404: _missing, 405: _missing},
    )
    app.router.redirect_slashes = False
    access = server.access
    return Gate(
        _without_slash(app), hosts=access.hosts, origins=access.origins, token=access.token, rate=server.limits.rate
    )


def _without_slash(app: Any) -> Any:
    """The application, for which `/memories/` is `/memories`."""

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        path = scope.get("path", "")
        if scope["type"] == "http" and len(path) > 1 and path.endswith("/"):
            scope = {**scope, "path": path.rstrip("/") or "/"}
        await app(scope, receive, send)

    return serve


async def _missing(request: Any, error: Any) -> Any:
    if error.status_code == 405:
        return json_response(plain(405, "this path is not asked in this way"), 405, error.headers)
    return json_response(plain(404, "there is nothing at this path; /openapi.json says what there is"), 404)


_PARAMETER = re.compile(r"\{(\w+)(?::path)?\}")


_JSON: dict[str, Any] = {"application/json": {"schema": {"type": "object"}}}
_CONTENT: dict[str, dict[str, Any]] = {"/v1/page": {"image/png": {}}, "/metrics": {"text/plain": {}}}
"""What an answer is, by path, where it is not a JSON object."""


def described(paths: Sequence[Operation]) -> dict[str, Any]:
    """The document."""
    found: dict[str, dict[str, Any]] = {}
    for path in paths:
        summary = " ".join((inspect.getdoc(path.handler) or "").split())
        operation: dict[str, Any] = {
            "summary": summary.partition(". ")[0].rstrip("."),
            "description": summary,
            "operationId": f"{path.method.lower()}{re.sub(r'[^A-Za-z0-9]+', '_', path.path)}",
            "responses": {
                "200": {"description": "Done.", "content": _CONTENT.get(path.path, _JSON)},
                "4XX": {"description": "Refused: one sentence says why."},
            },
        }
        names, template = _PARAMETER.findall(path.path), _PARAMETER.sub(r"{\1}", path.path)
        if names:
            operation["parameters"] = [
                {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
            ]
        if path.method in ("POST", "PUT"):
            schema = SCHEMAS.get(path.path, {"type": "object"})
            operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
        found.setdefault(template, {})[path.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "edge-rag",
            "version": importlib.metadata.version("edge-rag"),
            "description": "Reranking, embeddings, search, answers and memory within one memory limit.",
        },
        "paths": found,
    }


def _schema(required: Sequence[str], **properties: str) -> dict[str, Any]:
    """An object's schema; types by their names, lists of texts as `texts`."""
    texts = {"type": "array", "items": {"type": "string"}}
    made = {
        name: texts if kind == "texts" else {} if kind == "any" else {"type": kind} for name, kind in properties.items()
    }
    return {"type": "object", "required": list(required), "properties": made}


_RERANK = _schema(
    ["query", "documents"], model="string", query="string", documents="array", top_n="integer",
    return_documents="boolean",
)  # fmt: skip
_ANY_RERANK = {
    "oneOf": [
        _RERANK,
        _schema(["query", "texts"], query="string", texts="texts", raw_scores="boolean", return_text="boolean"),
    ]
}
_MEMORY = _schema(
    ["messages"], messages="any", user_id="string", agent_id="string", run_id="string", metadata="object",
)  # fmt: skip
_MEMORY_SEARCH = _schema(
    ["query"], query="string", user_id="string", agent_id="string", run_id="string", filters="object",
    top_k="integer", threshold="number", rerank="boolean",
)  # fmt: skip

SCHEMAS: dict[str, dict[str, Any]] = {
    "/rerank": _ANY_RERANK,
    "/v1/rerank": _RERANK,
    "/v2/rerank": _RERANK,
    "/v1/search": _schema(
        ["query"], query="string", collections="texts", top_k="integer", pool="integer", filters="texts",
        rerank="boolean", min_score="number", min_blended="number", stream="boolean",
    ),
    "/v1/ask": _schema(
        ["question"], question="string", collection="string", llm="string", pipeline="string", passages="integer",
        filters="texts", min_score="number", rerank="boolean", check="boolean", temperature="number",
        max_tokens="integer", seed="integer", turns="array", stream="boolean",
    ),
    "/v1/documents": _schema(
        ["targets"], targets="texts", collections="texts", lines="integer", max_bytes="integer",
    ),
    "/v1/preview": _schema(
        [], collection="string", id="integer", path="string", line="integer", max_bytes="integer",
    ),
    "/v1/open": _schema(["path"], collection="string", path="string", line="integer", page="integer"),
    "/v1/page": _schema(
        ["path"], collection="string", path="string", page="integer", first="integer", last="integer",
    ),
    "/memories": _MEMORY,
    "/v1/memories": _MEMORY,
    "/search": _MEMORY_SEARCH,
    "/v1/memories/search": _MEMORY_SEARCH,
}  # fmt: skip
"""What the bodies of requests hold, by path."""
