"""`application`: the ASGI application of a server: its paths, the page, and an OpenAPI document made from the
docstrings."""

from __future__ import annotations

import importlib.metadata
import inspect
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from edge.apps.mcp.protocol import without_null
from edge.apps.serve import chats, collections, mem0, models, own
from edge.apps.serve.endpoint import Call, Endpoint, ServedPath
from edge.apps.serve.mcp_http import tool_paths
from edge.apps.serve.refusals import HttpRefusal, plain, refused
from edge.apps.serve.security import Gate
from edge.apps.serve.server import HttpServer

FOLDER = Path(__file__).parent / "page"
INDEX = "index.html"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""By suffix. A browser runs no module of another type."""


def page_routes() -> list[Any]:
    from starlette.routing import Route

    files = sorted(path for path in FOLDER.iterdir() if path.suffix in TYPES)
    routes = [Route(f"/page/{path.name}", _served(path), methods=["GET"]) for path in files]
    return [Route("/", _served(FOLDER / INDEX), methods=["GET"]), *routes]


def _served(path: Path) -> Any:
    from starlette.responses import FileResponse

    async def file(request: Any) -> Any:
        return FileResponse(path, media_type=TYPES[path.suffix], headers={"Cache-Control": "no-cache"})

    return file


def paths(server: HttpServer) -> list[ServedPath]:
    subjects = (models, chats, collections, own, mem0)
    return [*(path for subject in subjects for path in subject.PATHS), *tool_paths(server)]


def application(server: HttpServer) -> Any:
    """The ASGI application of a server, behind its gate."""
    from starlette.applications import Starlette
    from starlette.routing import Route

    every = paths(server)
    document = described(every)

    async def describe(call: Call) -> dict[str, Any]:
        """Describes this interface in an OpenAPI document."""
        return document

    every += [ServedPath("GET", "/openapi.json", describe), *own.OWN_PATHS]
    server.metrics.known = frozenset(path.path for path in every)
    routes = [Route(path.path, Endpoint(server, path), methods=[path.method]) for path in every]
    shapes = {path.path: path.shape for path in every}

    async def missing(request: Any, error: Any) -> Any:
        """Refuses a path that is not there, or a method that it does not have."""
        said = HttpRefusal(404, "there is nothing at this path; /openapi.json says what there is")
        if error.status_code == 405:
            said = HttpRefusal(405, "this path is not asked in this way", error.headers or {})
        return refused(said, shapes.get(request.url.path, plain))

    app = Starlette(routes=[*routes, *page_routes()], exception_handlers={404: missing, 405: missing})
    app.router.redirect_slashes = False
    return Gate(_without_slash(app), server.options.access, server.options.limits.rate, shapes)


def _without_slash(app: Any) -> Any:
    async def serve(scope: Any, receive: Any, send: Any) -> None:
        path = scope.get("path", "")
        if scope["type"] == "http" and len(path) > 1 and path.endswith("/"):
            scope = {**scope, "path": path.rstrip("/") or "/"}
        await app(scope, receive, send)

    return serve


_PARAMETER = re.compile(r"\{(\w+)(?::path)?\}")


_JSON: dict[str, Any] = {"application/json": {"schema": {"type": "object"}}}
_CONTENT: dict[str, dict[str, Any]] = {"/v1/page": {"image/png": {}}, "/metrics": {"text/plain": {}}}


def described(paths: Sequence[ServedPath]) -> dict[str, Any]:
    classes = {kind for path in paths for kind in (path.body, path.query) if kind is not None}
    ordered = sorted(classes, key=lambda kind: kind.__name__)
    _, schemas = msgspec.json.schema_components(ordered, ref_template="#/components/schemas/{name}")
    components = {name: without_null(schema) for name, schema in schemas.items()}
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
        parameters = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in _PARAMETER.findall(path.path)
        ]
        if path.query is not None:
            properties = components[path.query.__name__]["properties"]
            parameters += [{"name": name, "in": "query", "schema": schema} for name, schema in properties.items()]
        if parameters:
            operation["parameters"] = parameters
        if path.body is not None:
            schema = {"$ref": f"#/components/schemas/{path.body.__name__}"}
            operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
        found.setdefault(_PARAMETER.sub(r"{\1}", path.path), {})[path.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "edge-rag",
            "version": importlib.metadata.version("edge-rag"),
            "description": "Reranking, embeddings, search, answers and memory within one memory limit.",
        },
        "paths": found,
        "components": {"schemas": components},
    }
