"""The application: which path is answered by what. The page's files lie in the folder `page` beside this module, and
are served as they are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge.apps.serve.answers import Ask, Chat
from edge.apps.serve.connection import OWN
from edge.apps.serve.editor import Opening
from edge.apps.serve.embeddings import Embeddings
from edge.apps.serve.endpoint import Call, Endpoint, Operation
from edge.apps.serve.json_steps import json_response
from edge.apps.serve.mcp_http import files_tools, memory_tools
from edge.apps.serve.memories import HostedMemories, Memories
from edge.apps.serve.offers import Collections, Offers
from edge.apps.serve.openapi import described
from edge.apps.serve.own import Own
from edge.apps.serve.paper import Paper
from edge.apps.serve.preview import Preview
from edge.apps.serve.refusals import cohere, openai, plain, tei
from edge.apps.serve.rerank import Rerank
from edge.apps.serve.search import Search
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
