"""`Endpoint`: takes one request from its body to its answer.

Memory is leased before the body is read. The body becomes an object of its class, a thread of the server does the work,
and every error becomes a sentence in the shape of the path's dialect.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from edge.apps.serve.body import decoded, read_query
from edge.apps.serve.events import EventResponse, Events
from edge.apps.serve.refusals import HttpRefusal, Shape, plain, refusal_of, refused
from edge.apps.serve.security import CLIENT, client_of
from edge.apps.serve.working import urgency_of
from edge.budget import Lease
from edge.scheduling.waiting_line import PERSON, PROGRAM, Urgency
from edge.text.control_characters import escaped

if TYPE_CHECKING:
    from starlette.requests import Request

    from edge.apps.serve.library import ServedLibrary
    from edge.apps.serve.server import HttpServer


@dataclass(frozen=True, slots=True)
class Call:
    """One request, as a handler sees it.

    Attributes:
        lease: holds the memory of the request until the answer is written.
        urgency: how urgent the request is.
        events: takes pieces of the answer, if the client asked for a stream.
    """

    server: HttpServer
    request: Request
    lease: Lease
    urgency: Urgency
    events: Events | None = None

    @property
    def library(self) -> ServedLibrary:
        """Everything that can be searched or asked."""
        return self.server.library

    def named(self, part: str) -> str:
        """A part of the path, by its name."""
        return str(self.request.path_params[part])

    def hold_more(self, nbytes: int) -> None:
        """Adds memory of the answer to the lease. Raises as `Requests.hold` does."""
        self.server.requests.hold(self.lease, self.lease.nbytes + nbytes)


Handler = Callable[..., Any]
"""Answers a call, with an ASGI application or with content for JSON. A function is called in a thread, a coroutine
function on the event loop. It takes the call, and the decoded body if its path has a class for it."""


@dataclass(frozen=True, slots=True)
class ServedPath:
    """One path and method of the server.

    Attributes:
        body: msgspec class of the body; None if the body is not read.
        query: msgspec class of the query behind the path, likewise.
        shape: writes its errors.
        for_person: whether a person usually waits for the answer.
        last: name of the event that ends a stream with the whole answer; empty if the handler ends it.
    """

    method: str
    path: str
    handler: Handler
    body: type[Any] | None = None
    query: type[Any] | None = None
    shape: Shape = plain
    for_person: bool = False
    last: str = ""


class Endpoint:
    """An ASGI application around a path's handler."""

    def __init__(self, server: HttpServer, path: ServedPath) -> None:
        self._server = server
        self._path = path
        self._on_loop = inspect.iscoroutinefunction(path.handler)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serves one request."""
        from starlette.requests import Request

        started, status = time.perf_counter(), 0

        async def noted(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        CLIENT.set(client_of(scope))
        try:
            async with self._server.requests.leased() as lease:
                answer = await self._answer(Request(scope, receive), lease)
                await answer(scope, receive, noted)
        except (Exception, asyncio.CancelledError) as error:
            refusal = refusal_of(error)
            if not status:  # otherwise the answer has begun, and its connection is closed before its end
                await refused(refusal, self._path.shape)(scope, receive, noted)
        finally:
            self._server.metrics.count(scope["path"], scope["method"], status or 500, time.perf_counter() - started)

    async def _answer(self, request: Request, lease: Lease) -> Any:
        path, server = self._path, self._server
        given: list[Any] = []
        if path.body is not None:
            given.append(decoded(await server.requests.read(request, lease), path.body))
        if path.query is not None:
            given.append(read_query(request.query_params, path.query))
        urgency = urgency_of(request, server.limits, PERSON if path.for_person else PROGRAM)
        call = Call(server, request, lease, urgency)
        if self._on_loop:
            return _response(await path.handler(call, *given))
        if given and getattr(given[0], "stream", False):
            return EventResponse(
                server.workers, urgency, lambda events: self._stream(call, given, events), self._failed
            )
        return await server.workers.attended(request, urgency, lambda: _response(path.handler(call, *given)))

    def _stream(self, call: Call, given: list[Any], events: Events) -> None:
        found = self._path.handler(replace(call, events=events), *given)
        if self._path.last:
            events.put(self._path.last, found)

    def _failed(self, events: Events, error: HttpRefusal) -> None:
        """Tells the client of an error that comes after the status."""
        shape = self._path.shape
        events.tell("error" if shape is plain else "", shape(error.status, escaped(error.message)))


def _response(found: Any) -> Any:
    """The answer with this content. msgspec holds the interpreter's lock as it writes: 20 ms for 10 MB of records."""
    import msgspec
    from starlette.responses import Response

    if callable(found):
        return found
    text = msgspec.json.encode(found, enc_hook=_number)
    return Response(text, media_type="application/json", headers={"Cache-Control": "no-store"})


def _number(value: Any) -> Any:
    """A number of numpy as one of Python."""
    try:
        return value.item()
    except AttributeError:
        raise TypeError(f"an answer holds an object of {type(value).__name__}") from None
