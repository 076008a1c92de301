"""`HttpServer`: everything that one server holds, and its ASGI application.

The application has the paths with their handlers, the page, whose files are served as they are, and an OpenAPI document
that is generated from the docstrings of the handlers and the classes of the bodies.
"""

from __future__ import annotations

import importlib.metadata
import inspect
import re
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from edge.apps.assistant.stream import AnswerStream
from edge.apps.mcp.protocol import without_null
from edge.apps.serve import documents, mem0, metrics, openai, own, rerank, search, tei
from edge.apps.serve.body import Requests
from edge.apps.serve.documents import Editor
from edge.apps.serve.endpoint import Call, Endpoint, ServedPath
from edge.apps.serve.lent import ServedModels
from edge.apps.serve.library import ServedLibrary
from edge.apps.serve.limits import CLOSE_S, LEAVE_S, Limits, Workers, load_libraries, server_nbytes, serving_plan
from edge.apps.serve.mcp_http import tool_paths
from edge.apps.serve.metrics import Metrics, TraceRecording
from edge.apps.serve.refusals import HttpRefusal, refused
from edge.apps.serve.security import Gate
from edge.budget import MemoryBudget
from edge.config import Config
from edge.resident import Closing, anonymous_resident
from edge.runtimes.engine import Tuning
from edge.trace import Trace


@dataclass(frozen=True, slots=True)
class Access:
    """The clients that may use a server.

    Attributes:
        hosts: further names by which this machine is called.
        origins: of sites whose pages may use the server.
        token: SHA-256 of the token that requests must bring, in hexadecimal; empty if none is needed.
    """

    hosts: Sequence[str] = ()
    origins: Sequence[str] = ()
    token: str = ""


@dataclass(slots=True)
class HttpServer(Closing):
    """A context manager; `application` serves while it is open.

    Attributes:
        drawing: held while a page is drawn.
        writing: answers that are being written, by the names that the owner's programs gave them.
        url: its address, as a browser takes it.
        started: when the server was made, in seconds since 1970.
        cut_off: whether something was still at work when the server was closed.
    """

    config: Config
    limits: Limits = field(default_factory=Limits)
    access: Access = field(default_factory=Access)
    collections: Sequence[str] = ()
    memory: Path | None = None
    llm: str = ""
    tuning: Tuning | None = None
    editor: Editor = field(default_factory=lambda: Editor(""))
    trace: Trace = field(default_factory=Trace)
    budget: MemoryBudget = field(init=False)
    pool: ServedModels = field(init=False)
    library: ServedLibrary = field(init=False)
    requests: Requests = field(init=False)
    workers: Workers = field(init=False)
    metrics: Metrics = field(init=False)
    recording: TraceRecording = field(init=False)
    drawing: threading.Lock = field(default_factory=threading.Lock, init=False)
    writing: dict[str, AnswerStream] = field(default_factory=dict, init=False)
    url: str = field(default="", init=False)
    started: float = field(default_factory=time.time, init=False)
    cut_off: bool = field(default=False, init=False)
    _leave_by: float | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        """Takes the memory of connections and threads, and nothing else before it is asked for.

        Raises:
            CapabilityError: the HTTP libraries are missing.
            BudgetExceeded: a search does not fit beside that; the error names the smallest limit that works.
        """
        load_libraries()
        plan = serving_plan(self.config, self.limits)
        held = anonymous_resident()
        if held + plan.nbytes > self.config.memory:
            raise plan.refusal(self.config.memory, held)
        self.budget = MemoryBudget(self.config.memory)
        self.budget.reserve("server", server_nbytes(self.limits))
        self.pool = ServedModels(self.budget, self.config, self.trace, self.tuning)
        self.library = ServedLibrary(
            self.pool, self.collections, memory=self.memory, llm=self.llm, longest_s=self.limits.request_s
        )
        self.requests = Requests(self.budget, self.limits, held + plan.nbytes)
        self.workers = Workers(self.limits)
        self.metrics = Metrics()
        self.recording = TraceRecording(self.trace, self.budget)

    def application(self) -> Any:
        """The ASGI application."""
        return application(self)

    def withdraw(self) -> None:
        """Begins the time in which all work must end: its requests have just been withdrawn."""
        self._leave_by = time.monotonic() + LEAVE_S

    def close(self) -> None:
        """Closes everything that was opened, once no thread uses it any more. If one does for too long, all is left to
        the end of the process, and `cut_off` is true. Some work is not counted by `workers`, such as that of tools, so
        closing itself may wait for it, and is not waited for without end either."""
        begun = time.monotonic()
        leave_by = max(begun + CLOSE_S, self._leave_by or begun + LEAVE_S)
        errors: list[BaseException] = []

        def close() -> None:
            try:
                if self.workers.ended(leave_by - time.monotonic()):
                    self.library.close()
            except BaseException as error:
                errors.append(error)

        closing = threading.Thread(target=close, name="edge-closing", daemon=True)
        closing.start()
        closing.join(leave_by - begun)
        self.cut_off = closing.is_alive() or self.workers.busy > 0
        if errors:
            raise errors.pop()


FOLDER = Path(__file__).parent / "page"
INDEX = "index.html"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""By suffix. The system is not asked about suffixes, because a browser runs no module of another type."""


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


def paths(server: HttpServer) -> list[ServedPath]:
    """All paths but for the page's files and those of the owner's socket."""
    subjects = (rerank, tei, openai, search, documents, metrics, mem0)
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

    every += [ServedPath("GET", "/openapi.json", describe), *own.PATHS]
    server.metrics.known = frozenset(path.path for path in every)
    routes = [Route(path.path, Endpoint(server, path), methods=[path.method]) for path in every]
    app = Starlette(routes=[*routes, *page_routes()], exception_handlers={404: _missing, 405: _missing})
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
        return refused(HttpRefusal(405, "this path is not asked in this way", error.headers or {}))
    return refused(HttpRefusal(404, "there is nothing at this path; /openapi.json says what there is"))


_PARAMETER = re.compile(r"\{(\w+)(?::path)?\}")


_JSON: dict[str, Any] = {"application/json": {"schema": {"type": "object"}}}
_CONTENT: dict[str, dict[str, Any]] = {"/v1/page": {"image/png": {}}, "/metrics": {"text/plain": {}}}
"""The kinds of answers that are no JSON objects, by path."""


def described(paths: Sequence[ServedPath]) -> dict[str, Any]:
    """The OpenAPI document of some paths."""
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
