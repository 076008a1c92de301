"""`Endpoint`: takes one request from its body to its answer. Memory is leased before the body is read, a thread does
the work, and every error becomes a sentence in the shape of the dialect. An answer may be a stream of events."""

from __future__ import annotations

import asyncio
import inspect
import json
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from edge.apps.serve.body import decoded, read_query
from edge.apps.serve.connection import OWN
from edge.apps.serve.library import ServedLibrary
from edge.apps.serve.limits import attending, settled, urgency_of
from edge.apps.serve.refusals import HttpRefusal, Shape, plain, refusal_of, refused
from edge.apps.serve.server import HttpServer
from edge.budget import Lease
from edge.errors import EdgeError
from edge.scheduling.waiting_line import BATCH, PERSON, PROGRAM, Urgency
from edge.text.control_characters import escaped

if TYPE_CHECKING:
    from starlette.requests import Request


_MOST = 64
_PAUSE_S = 15.0
"""Without an event for so long, a comment shows that the connection lives."""


class Events:
    """Events from one thread to one client. One that reads slowly never holds up requests that share a pass with it:
    `offer` leaves an event out where too many wait, `put` waits."""

    def __init__(self, urgency: Urgency) -> None:
        self._urgency = urgency
        self._waiting: deque[bytes] = deque()
        self._changed = threading.Condition()
        self._loop = asyncio.get_running_loop()
        self._arrived = asyncio.Event()
        self._ended = False

    def offer(self, name: str, data: Any) -> None:
        with self._changed:
            if len(self._waiting) < _MOST // 2:
                self._append(name, data)

    def put(self, name: str, data: Any) -> None:
        with self._urgency.heard(self._wake), self._changed:
            while len(self._waiting) >= _MOST:
                self._urgency.check()
                self._changed.wait(self._urgency.remaining)
            self._append(name, data)

    def tell(self, name: str, data: Any) -> None:
        """Sends an event, however many wait: the last one, about an error."""
        with self._changed:
            self._append(name, data)

    def end(self) -> None:
        self._ended = True
        self._announce()

    async def texts(self) -> AsyncIterator[bytes]:
        while True:
            with self._changed:
                part = list(self._waiting)
                self._waiting.clear()
                self._changed.notify_all()
            for text in part:
                yield text
            if part:
                continue
            if self._ended:
                return
            self._arrived.clear()
            if self._waiting or self._ended:
                continue
            if not await self._has_arrived():
                yield b": waiting\n\n"

    async def _has_arrived(self) -> bool:
        """Whether there is something new within the pause. Before Python 3.12, `asyncio.wait_for` loses a cancellation
        that comes together with an event (CPython issue 86296)."""
        arrived = asyncio.ensure_future(self._arrived.wait())
        try:
            done, _ = await asyncio.wait([arrived], timeout=_PAUSE_S)
            return bool(done)
        finally:
            arrived.cancel()

    def _append(self, name: str, data: Any) -> None:
        text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
        head = f"event: {name}\n" if name else ""
        self._waiting.append(f"{head}data: {text}\n\n".encode("utf-8", "replace"))
        self._announce()

    def _announce(self) -> None:
        self._loop.call_soon_threadsafe(self._arrived.set)

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()


def event_answer(
    run: Callable[[Callable[[], None]], Coroutine[Any, Any, None]], urgency: Urgency, work: Callable[[Events], None],
    failed: Callable[[Events, HttpRefusal], None],
) -> Any:  # fmt: skip
    """An ASGI application that starts the work, whose thread sends events."""

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        events, ends = Events(urgency), False

        async def worked() -> None:
            try:
                await run(lambda: work(events))
            except Exception as error:
                ended = ends and isinstance(error, EdgeError)
                failed(events, refusal_of(asyncio.CancelledError() if ended else error))
            finally:
                events.end()

        async def pass_on() -> None:
            async for text in events.texts():
                await send({"type": "http.response.body", "body": text, "more_body": True})

        running = asyncio.ensure_future(worked())
        try:
            async with attending(receive, urgency):
                await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
                await pass_on()
        except asyncio.CancelledError:  # the server ends
            ends = True
            urgency.cancel()
            await settled(running, urgency.cancel)
            await pass_on()
        finally:
            urgency.cancel()
            await settled(running, urgency.cancel)
        await send({"type": "http.response.body", "body": b""})

    return answer


_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


@dataclass(frozen=True, slots=True)
class Call:
    server: HttpServer
    request: Request
    lease: Lease
    urgency: Urgency
    events: Events | None = None

    @property
    def library(self) -> ServedLibrary:
        return self.server.library

    def named(self, part: str) -> str:
        return str(self.request.path_params[part])

    def hold_more(self, nbytes: int) -> None:
        self.server.requests.hold(self.lease, self.lease.nbytes + nbytes)


Handler = Callable[..., Any]
"""Answers a call (and its decoded body or query) with an ASGI application or with content for JSON: a function in a
thread, a coroutine function on the event loop."""


@dataclass(frozen=True, slots=True)
class ServedPath:
    """One path and method: the msgspec classes of its body and query, if they are read, and the shape of its errors.
    `for_person`: a person usually waits; `last`: the event that ends a stream with the whole answer."""

    method: str
    path: str
    handler: Handler
    body: type[Any] | None = None
    query: type[Any] | None = None
    shape: Shape = plain
    for_person: bool = False
    last: str = ""


class Endpoint:
    def __init__(self, server: HttpServer, path: ServedPath) -> None:
        self._server = server
        self._path = path
        self._on_loop = inspect.iscoroutinefunction(path.handler)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        from starlette.requests import Request

        started, status = time.perf_counter(), 0

        async def noted(message: Any) -> None:
            nonlocal status
            await send(message)  # which may wait for the client to take an earlier answer
            if message["type"] == "http.response.start":
                status = message["status"]

        try:
            async with self._server.requests.leased() as lease:
                answer = await self._answer(Request(scope, receive), lease)
                await answer(scope, receive, noted)
        except (Exception, asyncio.CancelledError) as error:
            refusal = refusal_of(error)
            if not status:  # otherwise the answer has begun, and its connection is closed before its end
                await refused(refusal, self._path.shape)(scope, receive, noted)
        finally:
            if scope["path"] not in (OWN, f"{OWN}/status"):
                self._server.used = time.monotonic()
            self._server.metrics.count(scope["path"], scope["method"], status or 500, time.perf_counter() - started)

    async def _answer(self, request: Request, lease: Lease) -> Any:
        path, server = self._path, self._server
        given: list[Any] = []
        if path.body is not None:
            given.append(decoded(await server.requests.read(request, lease), path.body))
        if path.query is not None:
            given.append(read_query(request.query_params, path.query))
        large = server.requests.is_large(lease)
        urgency = urgency_of(request, server.options.limits, PERSON if path.for_person else BATCH if large else PROGRAM)
        run = partial(server.workers.run, urgency, large=large)
        call = Call(server, request, lease, urgency)
        if self._on_loop:
            return _response(await path.handler(call, *given))
        if given and getattr(given[0], "stream", False):
            return event_answer(run, urgency, lambda events: self._stream(call, given, events), self._failed)
        async with attending(request.receive, urgency):
            return await run(lambda: _response(path.handler(call, *given)))

    def _stream(self, call: Call, given: list[Any], events: Events) -> None:
        found = self._path.handler(replace(call, events=events), *given)
        if self._path.last:
            events.put(self._path.last, found)

    def _failed(self, events: Events, error: HttpRefusal) -> None:
        said = self._path.shape(error.status, escaped(error.message))
        events.tell("error" if self._path.shape is plain else said.get("type", ""), said)


def _response(found: Any) -> Any:
    """The answer with this content. msgspec holds the interpreter's lock as it writes: 20 ms for 10 MB of records."""
    import msgspec
    from starlette.responses import Response

    if callable(found):
        return found
    text = msgspec.json.encode(found, enc_hook=_number)
    return Response(text, media_type="application/json", headers={"Cache-Control": "no-store"})


def _number(value: Any) -> Any:
    try:
        return value.item()
    except AttributeError:
        raise TypeError(f"an answer holds an object of {type(value).__name__}") from None
