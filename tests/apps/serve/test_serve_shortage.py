"""The system gives the server no more descriptors, or no more disk."""

from __future__ import annotations

import asyncio
import errno
import json
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from naive.waiting import until

from edge.errors import EdgeError, StorageError
from tests.apps.serve.conftest import Running


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
