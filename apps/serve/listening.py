"""The sockets of a server, and HTTP on them, with bounds that uvicorn does not have."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, ClassVar

from edge.apps.console import notice
from edge.apps.serve.application import application
from edge.apps.serve.connection import listen, socket_path
from edge.apps.serve.limits import GRACE_S, LEAVE_S, RETRY_S, Limits
from edge.apps.serve.server import HttpServer
from edge.errors import InputError, StorageError

_LINGER_S = 2.0
"""Seconds in which the rest of a body is thrown away that no endpoint reads."""


_SCARCE = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_SAID_S = 60.0
"""The next shortage after so many quiet seconds is a new one, and is told again."""

_BUSY_BODY = b'{"detail": "all connections of the server are at work: come again in %s seconds"}' % RETRY_S.encode()
_BUSY = (
    b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Type: application/json\r\n"
    b"Retry-After: %s\r\nContent-Length: %d\r\n\r\n%s"
) % (RETRY_S.encode(), len(_BUSY_BODY), _BUSY_BODY)


class _Closing:
    """A transport that is aborted if a client does not take the last bytes of an answer, which would keep it open."""

    def __init__(self, transport: Any, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        self._transport = transport
        self._loop = loop
        self._seconds = seconds
        self._last: asyncio.TimerHandle | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def close(self) -> None:
        if not self._transport.is_closing():
            self._transport.close()
            self._last = self._loop.call_later(self._seconds, self._transport.abort)

    def lost(self) -> None:
        if self._last is not None:
            self._last.cancel()


def bounded_protocol(limits: Limits) -> type[asyncio.Protocol]:
    import h11
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class BoundedProtocol(H11Protocol):
        """Drops clients that are slow, and those that are too many."""

        _head: asyncio.TimerHandle | None = None
        _taking: asyncio.TimerHandle | None = None

        _told: ClassVar[dict[Any, Any]] = {}
        """Connections that were too many and are still told so, with their transports, the first one first."""

        _ending = False
        _since = 0.0

        def connection_made(self, transport: Any) -> None:
            if len(self.connections) >= limits.connections and not self._make_way():
                self._turn_away(transport)
                return
            self._since = self.loop.time()
            closing: Any = _Closing(transport, self.loop, limits.pause_s)
            super().connection_made(closing)
            self._watch_head()

        def _make_way(self) -> bool:
            """Ends the connection that has waited longest for its client, if there is one."""
            connections: Any = self.connections
            waiting = [
                other for other in connections
                if not other.transport.is_closing()
                and (other._taking is not None or other.conn.their_state in (h11.IDLE, h11.SEND_BODY))
            ]  # fmt: skip
            if waiting:  # one that still takes an answer goes last, because its answer is cut off
                min(waiting, key=lambda other: (other._takes_answer, other._since)).transport.abort()
            return bool(waiting)

        @property
        def _takes_answer(self) -> bool:
            return self._taking is not None or self.transport.get_write_buffer_size() > 0

        def _turn_away(self, transport: Any) -> None:
            """Says that all connections are at work, and throws away what the client sends, or it might not read the
            answer."""
            if len(self._told) >= limits.connections:  # a client that reads has gone after some milliseconds
                self._told.pop(next(iter(self._told))).abort()
            self._told[self] = transport
            transport.write(_BUSY)
            if transport.can_write_eof():
                transport.write_eof()
            self._head = self.loop.call_later(_LINGER_S, transport.abort)

        def connection_lost(self, exc: Exception | None) -> None:
            if self.transport is not None:  # one that was too many was never ours
                self._stop()
                ours: Any = self.transport
                ours.lost()
                super().connection_lost(exc)
            elif self._head is not None:
                self._head.cancel()
                self._told.pop(self, None)

        def data_received(self, data: bytes) -> None:
            if self.transport is None or self._ending:
                return
            super().data_received(data)
            self._watch_head()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._since = self.loop.time()
            self._watch_head(quiet=True)
            if self.conn.their_state is h11.SEND_BODY:
                self._end()

        def _end(self) -> None:
            """Ends the connection after an answer that did not wait for the body, whose rest is thrown away for a
            moment: a client that is told of the end while it writes might not read the answer."""
            self._ending = True
            self._unset_keepalive_if_required()
            if self.transport.can_write_eof():
                self.transport.write_eof()
            self._head = self.loop.call_later(_LINGER_S, self.transport.abort)

        def pause_writing(self) -> None:
            super().pause_writing()
            if self._taking is None:
                self._taking = self.loop.call_later(limits.pause_s, self.transport.abort)

        def resume_writing(self) -> None:
            super().resume_writing()
            if self._taking is not None:
                self._taking.cancel()
                self._taking = None

        def _watch_head(self, *, quiet: bool = False) -> None:
            """Gives a request's head its time. Between two requests (`quiet`) the idle time of uvicorn counts."""
            waiting = self.conn.their_state is h11.IDLE and not self.transport.is_closing()
            if self._head is not None and not waiting:
                self._head.cancel()
                self._head = None
            elif self._head is None and waiting and not quiet:
                self._head = self.loop.call_later(limits.head_s, self.transport.abort)

        def _stop(self) -> None:
            for timer in (self._head, self._taking):
                if timer is not None:
                    timer.cancel()
            self._head = self._taking = None

    return BoundedProtocol


class _Troubles:
    """Handles what goes wrong beside the requests. Without a descriptor for a connection, asyncio waits a second, and
    reports each try."""

    _quiet_until = 0.0

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in _SCARCE:
            loop.default_exception_handler(context)
            return
        if loop.time() >= self._quiet_until:
            notice(f"new connections wait, as the system gives no more of something: {error.strerror}")
        self._quiet_until = loop.time() + _SAID_S


def run(server: HttpServer, sockets: list[socket.socket]) -> None:
    """Serves on some listening sockets until a signal ends it."""
    import uvicorn

    limits = server.options.limits
    config = uvicorn.Config(
        application(server),
        http=bounded_protocol(limits),
        loop="asyncio",
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        log_level="error",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=int(limits.idle_s),
        timeout_graceful_shutdown=int(GRACE_S + LEAVE_S),
        backlog=limits.connections,
        h11_max_incomplete_event_size=32 << 10,
    )

    class Quiet(uvicorn.Server):
        """Ends at the first signal, and lets the caller close the server."""

        should_exit: bool
        force_exit: bool

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            asyncio.get_running_loop().set_exception_handler(_Troubles())
            await super().startup(sockets)

        async def on_tick(self, counter: int) -> bool:
            return await super().on_tick(counter) or (server.is_idle and not self.server_state.connections)

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            """Gives the requests some time, then cancels them: their work is withdrawn, and they are answered."""
            asyncio.get_running_loop().call_later(GRACE_S, self._withdraw)
            await super().shutdown(sockets)

        def _withdraw(self) -> None:
            server.withdraw()
            for task in self.server_state.tasks:
                task.cancel()
            self._drop()

        def _drop(self) -> None:
            connections: Any = self.server_state.connections
            for connection in list(connections):
                if connection.transport.is_closing() or connection.flow.write_paused:
                    connection.transport.abort()
            asyncio.get_running_loop().call_later(1.0, self._drop)

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            def end(number: int, frame: Any) -> None:
                self.force_exit = self.should_exit
                self.should_exit = True

            numbers = [signal.SIGINT, signal.SIGTERM]
            before = [(number, signal.signal(number, end)) for number in numbers]
            try:
                yield
            finally:
                for number, handler in before:
                    signal.signal(number, handler)

    # uvicorn tells of requests that did not end in time. The command says so in its own words.
    logging.getLogger("uvicorn.error").addFilter(lambda record: not str(record.msg).startswith("Cancel "))
    Quiet(config).run(sockets)


def bound_socket(host: str, port: int) -> socket.socket:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, ValueError) as error:  # of an encoding or a port, too
        why = getattr(error, "strerror", None) or "it is no name of a machine"
        raise InputError(f"{host} is no address of this machine: {why}") from None
    family, kind, protocol, _, address = found[0]
    made = socket.socket(family, kind, protocol)
    try:
        if os.name == "posix":
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
    except OSError as error:
        made.close()
        if error.errno == errno.EADDRINUSE:
            raise StorageError(f"{host}:{port} is taken by another program; --port 0 takes a free one") from None
        raise StorageError(f"{host}:{port} cannot be listened on: {error.strerror}; --port takes another") from None
    made.listen(128)
    return made


def address_of(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@contextmanager
def owners_socket() -> Iterator[list[socket.socket]]:
    """The Unix socket for programs of the same user; none where the system has no such sockets."""
    path = socket_path()
    if path is None:
        yield []
        return
    made = listen(path)
    try:
        yield [made]
    finally:
        made.close()
        with suppress(OSError):
            path.unlink()
