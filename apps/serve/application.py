"""The application: which path is answered by what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edge.apps.serve.ask import Ask
from edge.apps.serve.chat import Chat
from edge.apps.serve.connection import OWN
from edge.apps.serve.editor import Opening
from edge.apps.serve.embeddings import Embeddings
from edge.apps.serve.endpoint import Call, Endpoint, Handler
from edge.apps.serve.json_steps import json_response
from edge.apps.serve.mcp_http import files_tools, memory_tools
from edge.apps.serve.mem0_hosted import HostedMemories
from edge.apps.serve.memories import Memories
from edge.apps.serve.offers import Offers
from edge.apps.serve.openapi import described
from edge.apps.serve.own import Own
from edge.apps.serve.page import page_routes
from edge.apps.serve.paper import Paper
from edge.apps.serve.preview import Preview
from edge.apps.serve.refusals import Shape, cohere, openai, plain, tei
from edge.apps.serve.rerank import Rerank
from edge.apps.serve.search import Search
from edge.apps.serve.security import Gate
from edge.apps.serve.shelves import Collections

if TYPE_CHECKING:
    from edge.apps.serve.server import Server


@dataclass(frozen=True, slots=True)
class Path:
    """One path and method of the server.

    Attributes:
        shape: how its errors are written.
    """

    method: str
    path: str
    handler: Handler
    shape: Shape = plain


def paths(server: Server) -> list[Path]:
    """All paths that are answered, but for the page's files."""
    rerank, memories, hosted = Rerank(server.library), Memories(server.library), HostedMemories(server.library)
    embeddings, chat = Embeddings(server.library), Chat(server.library)
    collections, life, offers = Collections(server.library), Life(server), Offers(server.library, server.editor)
    found = [
        Path("POST", "/rerank", rerank.any, tei),
        Path("POST", "/v1/rerank", rerank.v1),
        Path("POST", "/v2/rerank", rerank.v2, cohere),
        Path("POST", "/v1/embeddings", embeddings.openai, openai),
        Path("POST", "/embed", embeddings.tei, tei),
        Path("GET", "/info", embeddings.info, tei),
        Path("GET", "/v1/models", chat.models, openai),
        Path("POST", "/v1/chat/completions", chat.completions, openai),
        Path("POST", "/v1/search", Search(server.library).post),
        Path("POST", "/v1/ask", Ask(server.library).post),
        Path("GET", "/v1/collections", collections.every),
        Path("GET", "/v1/collections/{name:path}/files", collections.files),
        Path("GET", "/v1/collections/{name:path}", collections.one),  # a directory that was named at the start
        Path("POST", "/v1/documents", collections.documents),
        Path("POST", "/v1/preview", Preview(server.library).post),
        Path("POST", "/v1/open", Opening(server.library, server.editor).post),
        Path("POST", "/v1/page", Paper(server.library).post),
        Path("GET", "/v1/offers", offers.get),
        Path("GET", "/v1/scopes", offers.scopes),
        Path("GET", "/v1/engine", server.room.get),
        Path("GET", "/v1/trace", server.recording.get),
        Path("POST", "/v1/trace", server.recording.post),
        Path("GET", "/health", life.health),
        Path("GET", "/metrics", life.metrics),
        Path("POST", "/search", memories.search),
        Path("POST", "/reset", memories.reset),
        Path("POST", "/v1/memories/search", memories.search),
        Path("GET", "/v1/ping", memories.ping),
        Path("POST", "/v3/memories/add", memories.add),
        Path("POST", "/v3/memories/search", memories.search),
        Path("POST", "/v3/memories", memories.listed),
        Path("GET", "/v1/entities", hosted.entities),
        Path("DELETE", "/v2/entities/{kind}/{name:path}", hosted.delete_entity),
        Path("PUT", "/v1/batch", hosted.update_batch),
        Path("DELETE", "/v1/batch", hosted.delete_batch),
    ]
    for path, tools in (("/mcp", files_tools(server.library)), ("/mcp/memory", memory_tools(server.library))):
        found += [Path("POST", path, tools.post), Path("GET", path, tools.other), Path("DELETE", path, tools.other)]
    for base in ("/memories", "/v1/memories"):
        found += [
            Path("POST", base, memories.add),
            Path("GET", base, memories.every),
            Path("DELETE", base, memories.delete_all),
            Path("GET", base + "/{memory_id}", memories.one),
            Path("PUT", base + "/{memory_id}", memories.update),
            Path("DELETE", base + "/{memory_id}", memories.delete),
            Path("GET", base + "/{memory_id}/history", memories.history),
        ]
    return found


def own_paths(server: Server) -> list[Path]:
    """Paths that are answered over the Unix socket only, to the owner's programs."""
    own = Own(server.library, server.limits, server.room)
    return [
        Path("GET", OWN, own.hello),
        Path("POST", f"{OWN}/status", own.status),
        Path("POST", f"{OWN}/search", own.search),
        Path("POST", f"{OWN}/rerank", own.rerank),
        Path("POST", f"{OWN}/embed", own.embed),
        Path("POST", f"{OWN}/ask", own.ask),
        Path("POST", f"{OWN}/end", own.end),
        Path("POST", f"{OWN}/memory", own.memory),
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

    every += [Path("GET", "/openapi.json", describe), *own_paths(server)]
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
