"""Server-sent events: a thread sends parts of an answer to the client while it works on the rest."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any

from edge.apps.serve.refusals import HttpRefusal, refusal_of
from edge.apps.serve.working import Workers, settled
from edge.errors import EdgeError
from edge.scheduling.waiting_line import Urgency

_MOST = 64
"""Events that wait for a client."""

_PAUSE_S = 15.0
"""Without an event for so long, a comment shows that the connection lives."""


class Events:
    """Events from one thread to one client.

    A client that reads slowly never holds up the requests that share a pass with it: `offer` leaves an event out where
    too many wait. `put` waits, for events that must all arrive.
    """

    def __init__(self, urgency: Urgency) -> None:
        self._urgency = urgency
        self._waiting: deque[bytes] = deque()
        self._changed = threading.Condition()
        self._loop = asyncio.get_running_loop()
        self._arrived = asyncio.Event()
        self._ended = False

    def offer(self, name: str, data: Any) -> None:
        """Sends an event, unless many wait already."""
        with self._changed:
            if len(self._waiting) < _MOST // 2:
                self._append(name, data)

    def put(self, name: str, data: Any) -> None:
        """Sends an event, and waits for its turn.

        Raises:
            Withdrawn, DeadlinePassed: the client has gone, or is too slow.
        """
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
        """Says that there are no more events."""
        self._ended = True
        self._announce()

    async def texts(self) -> AsyncIterator[bytes]:
        """The events as they are written to the client."""
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
        """Whether there is something new within the pause. `asyncio.wait_for` would not do: before Python 3.12 it loses
        a cancellation that comes together with an event (CPython issue 86296), and the server's end goes unnoticed."""
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


class EventResponse:
    """An answer of events that a thread sends. An ASGI application."""

    def __init__(
        self,
        workers: Workers,
        urgency: Urgency,
        work: Callable[[Events], None],
        failed: Callable[[Events, HttpRefusal], None],
    ) -> None:
        """Starts nothing yet.

        Args:
            work: sends the events; runs in a thread.
            failed: tells the client of an error in an event: the status is on its way by then.
        """
        self._workers = workers
        self._urgency = urgency
        self._work = work
        self._failed = failed

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Sends the events until the work has ended, or the client has gone."""
        events = Events(self._urgency)
        ends = False

        async def run() -> None:
            try:
                await self._workers.run(self._urgency, lambda: self._work(events))
            except Exception as error:
                ended = ends and isinstance(error, EdgeError)
                self._failed(events, refusal_of(asyncio.CancelledError() if ended else error))
            finally:
                events.end()

        async def attend() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            self._urgency.cancel()

        async def pass_on() -> None:
            async for text in events.texts():
                await send({"type": "http.response.body", "body": text, "more_body": True})

        running, attending = (asyncio.ensure_future(each()) for each in (run, attend))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            await pass_on()
        except asyncio.CancelledError:  # the server ends
            ends = True
            self._urgency.cancel()
            await settled(running, self._urgency.cancel)
            await pass_on()
        finally:
            self._urgency.cancel()
            await settled(running, self._urgency.cancel)
            attending.cancel()
        await send({"type": "http.response.body", "body": b""})


_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]
