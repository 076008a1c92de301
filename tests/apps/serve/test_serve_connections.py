"""No connection stays open because a client does nothing; a server goes on without descriptors and without disk."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from naive.waiting import PATIENCE_S, until

from edge.apps.serve.limits import Limits
from edge.apps.serve.listening import bounded_protocol
from edge.errors import EdgeError, StorageError
from tests.apps.serve.asgi import in_a_loop
from tests.apps.serve.conftest import Running
from tests.apps.serve.test_serve_security import connected


def answered(server: Running, method: str, path: str) -> socket.socket:
    """A connection whose request was answered before its body came."""
    raw = connected(server)
    raw.sendall(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n".encode())
    assert raw.recv(1 << 16).startswith(b"HTTP/1.1 ")
    return raw


def ended(raw: socket.socket, until_s: float) -> bool:
    """Whether the server ends a connection before a moment of the monotonic clock."""
    raw.settimeout(max(0.01, until_s - time.monotonic()))
    try:
        while raw.recv(1 << 16):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        pass
    return True


def test_a_body_that_no_endpoint_reads_is_not_waited_for(server: Running) -> None:
    with server.client() as client:
        document = client.get("/openapi.json").json()["paths"]
    unread = [
        (method.upper(), path.replace("{name}", "x").replace("{memory_id}", "x"))
        for path, methods in document.items() for method in methods if method in ("get", "delete")
    ]  # fmt: skip
    unread += [("GET", place) for place in ("/", "/page/page.js", "/nothing")]
    unread += [("POST", "/nothing"), ("OPTIONS", "/health")]
    held = []
    for method, path in unread:
        if path == "/v1/batch":  # which has a body
            continue
        raw = answered(server, method, path)
        with contextlib.suppress(ConnectionError):
            raw.sendall(b"x")
        held.append((method, path, raw))
    end = time.monotonic() + 60
    stays = [(method, path) for method, path, raw in held if not ended(raw, end)]
    for _, _, raw in held:
        raw.close()
    assert not stays


@pytest.mark.parametrize("length", [1000, 10])
def test_a_client_that_writes_its_body_late_reads_the_answer(server: Running, length: int) -> None:
    """An answer is not lost because the client still writes when it is told of the end."""
    for _ in range(20):
        with connected(server) as raw:
            raw.sendall(f"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n".encode())
            raw.sendall(b"x" * 10)
            raw.settimeout(PATIENCE_S)
            assert raw.recv(1 << 16).startswith(b"HTTP/1.1 200")


class Stuck(asyncio.Transport):
    """A transport to a client that takes nothing: closed, it waits for ever."""

    def __init__(self) -> None:
        super().__init__()
        self.closing = False
        self.written = b""
        self.aborted = asyncio.Event()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def write(self, data: Any) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.aborted.set()

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0


def protocol_of(application: Any, limits: Limits, **options: Any) -> tuple[Any, Any, Callable[[], Any]]:
    """The class of protocols, the state that they share, and a function that makes one."""
    pytest.importorskip("uvicorn")
    import uvicorn
    from uvicorn.server import ServerState

    config = uvicorn.Config(application, log_config=None, log_level="critical", lifespan="off", **options)
    config.load()
    made: Any = bounded_protocol(limits)
    state = ServerState()
    return made, state, lambda: made(config, state, {})


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nx",
        b"nonsense\r\n\r\n",
        b"GET / HT",
        b"",
    ],
)
def test_a_client_that_takes_nothing_is_dropped(sent: bytes) -> None:
    async def application(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"answer"})

    async def serve() -> None:
        limits = Limits(pause_s=0.01, head_s=0.01, idle_s=0)
        _, _, make = protocol_of(application, limits, timeout_keep_alive=0)
        protocol, transport = make(), Stuck()
        protocol.connection_made(transport)
        if sent:
            protocol.data_received(sent)
        await asyncio.wait_for(transport.aborted.wait(), PATIENCE_S)
        protocol.connection_lost(None)

    in_a_loop(serve())


@pytest.mark.parametrize("unsent", [10, 50_000_000])
def test_a_connection_that_has_ended_leaves_no_timer(unsent: int) -> None:
    """Otherwise a client that comes again and again would fill the memory with them."""
    pytest.importorskip("uvicorn")
    from edge.apps.serve.listening import _Closing

    async def close() -> asyncio.TimerHandle | None:
        loop = asyncio.get_running_loop()
        accepted = asyncio.Event()
        made: list[_Closing] = []

        class Serving(asyncio.Protocol):
            def connection_made(self, transport: Any) -> None:
                made.append(_Closing(transport, loop, 600.0))
                accepted.set()

            def connection_lost(self, error: Exception | None) -> None:
                made[0].lost()

        server = await loop.create_server(Serving, "127.0.0.1", 0)
        async with server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            await accepted.wait()
            made[0].write(b"x" * unsent)
            made[0].close()
            assert len(await reader.read()) == unsent
            writer.close()
            await writer.wait_closed()
        return made[0]._last

    timer = in_a_loop(close())
    assert timer is not None
    assert timer.cancelled()


def test_a_connection_beyond_those_at_work_is_told_to_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that waits for its client gives way instead; those at work never do."""
    monkeypatch.setattr("edge.apps.serve.listening._LINGER_S", 0.01)

    async def application(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.Event().wait()

    async def serve() -> None:
        made, state, make = protocol_of(application, Limits(connections=3))
        pairs = [(make(), Stuck()) for _ in range(5)]
        for number, (protocol, transport) in enumerate(pairs[:4]):
            protocol.connection_made(transport)
            protocol.data_received(b"GET / HTTP/1.1\r\nHost: x\r\n" + b"\r\n" * (number != 1))
        assert [transport.aborted.is_set() for _, transport in pairs[:4]] == [False, True, False, False]
        pairs[1][0].connection_lost(None)
        pairs[4][0].connection_made(pairs[4][1])
        told = pairs[4][1].written
        assert told.startswith(b"HTTP/1.1 503 ")
        assert b"\r\nRetry-After: 2\r\n" in told
        assert [transport.aborted.is_set() for _, transport in pairs[:4]] == [False, True, False, False]
        pairs[4][0].data_received(b"POST / HTTP/1.1\r\n")
        await pairs[4][1].aborted.wait()
        assert len(made._told) == 1
        pairs[4][0].connection_lost(None)
        assert not made._told
        more = [(make(), Stuck()) for _ in range(5)]
        for protocol, transport in more:
            protocol.connection_made(transport)
        assert all(transport.written == told for _, transport in more), "however many do not go"
        assert [transport.aborted.is_set() for _, transport in more] == [True, True, False, False, False]
        for protocol, _ in more:
            protocol.connection_lost(None)
        assert not made._told
        for task in state.tasks:
            task.cancel()
        for protocol, _ in pairs:
            protocol._stop()

    in_a_loop(serve())


def test_a_connection_that_takes_its_answer_is_not_the_first_to_go() -> None:
    """Its answer would be cut off, while others only wait for a next request."""

    class Slow(Stuck):
        """A client that has not taken all bytes yet."""

        def get_write_buffer_size(self) -> int:
            return 100

    async def application(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"1")]})
        await send({"type": "http.response.body", "body": b"x"})

    async def serve() -> None:
        _, _, make = protocol_of(application, Limits(connections=3))
        pairs = [(make(), kind()) for kind in (Slow, Stuck, Slow, Stuck)]
        for protocol, transport in pairs[:3]:
            protocol.connection_made(transport)
            protocol.data_received(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            await asyncio.sleep(0.01)
        pairs[3][0].connection_made(pairs[3][1])
        assert [transport.aborted.is_set() for _, transport in pairs] == [False, True, False, False]
        for protocol, _ in pairs:
            protocol._stop()

    in_a_loop(serve())


def post(raw: socket.socket, path: str, body: object) -> bytes:
    """The first bytes of the answer to a request on a connection."""
    data = json.dumps(body).encode()
    kind = "Content-Type: application/json"
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{kind}\r\nContent-Length: {len(data)}\r\n\r\n"
    raw.sendall(head.encode() + data)
    return raw.recv(1 << 16)


@pytest.mark.skipif(sys.platform != "linux", reason="another process's limits are changed")
def test_without_descriptors_new_connections_wait_and_it_is_said_once(
    start_server: Callable[..., Running], tmp_path: Path
) -> None:
    import resource

    server = start_server(runtime=tmp_path / "run")
    with server.client() as client:
        assert client.post("/v1/search", json={"query": "river"}).status_code == 200
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (40, 40))
    host, port = server.url.removeprefix("http://").split(":")
    held = [socket.create_connection((host, int(port)), timeout=60) for _ in range(60)]
    time.sleep(2.5)  # asyncio tries again every second
    asked: dict[str, object] = {
        "/v1/search": {"query": "river"},
        "/v1/embeddings": {"input": "a", "model": "m"},
        "/v1/memories/": {"messages": [{"role": "user", "content": "I like tea."}], "user_id": "u"},
    }
    answers = {path: post(raw, path, body) for raw, (path, body) in zip(held, asked.items(), strict=False)}
    assert {answer.split()[1] for answer in answers.values()} <= {b"200", b"503"}, answers
    for raw in held:
        raw.close()

    def answered() -> bool:
        with server.client() as client:
            return bool(client.post("/v1/search", json={"query": "river"}).status_code == 200)

    until(answered)
    code, errors = server.stop()
    assert code == 0
    assert errors.count("new connections wait, as the system gives no more of something") == 1, errors
    assert "Traceback" not in errors
    assert "nobody expected" not in errors


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


def test_what_the_system_refuses_is_no_error_of_the_server() -> None:
    pytest.importorskip("starlette")
    import apsw

    from edge.apps.serve.refusals import refusal_of

    full, few = OSError(errno.ENOSPC, "No space left on device"), OSError(errno.EMFILE, "Too many open files")
    for error, status in {
        full: 507,
        caused(StorageError("model.bin cannot be written"), full): 507,
        caused(StorageError("edge.db cannot grow"), apsw.FullError("full")): 507,
        caused(EdgeError("outer"), caused(StorageError("inner"), full)): 507,
        few: 503,
        caused(StorageError("edge.db cannot be opened"), apsw.CantOpenError("unable to open")): 503,
        StorageError("damaged"): 500,
        asyncio.CancelledError(): 503,
    }.items():
        refusal = refusal_of(error)
        assert refusal.status == status, error
        assert "did not expect" not in str(refusal)
