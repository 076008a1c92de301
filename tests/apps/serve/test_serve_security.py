"""Who may ask, how much and how slowly: checked from outside, on a server that runs."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from naive.waiting import PATIENCE_S

from edge.apps.collection.collection import Collection
from edge.config import Config
from tests.apps.serve.conftest import Running

BODY = {"query": "river", "documents": ["The river floods.", "Tomatoes need sun."]}


def connected(server: Running) -> socket.socket:
    host, _, port = server.url.removeprefix("http://").partition(":")
    return socket.create_connection((host, int(port)), timeout=30)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "localhost"}, 200),
        ({"Host": "[::1]:80"}, 200),
        ({"Host": "evil.example"}, 421),
        ({"Host": "127.0.0.1.evil.example"}, 421),
        ({"Host": "localhost@evil.example"}, 421),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://localhost:1"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors"}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, 200),
        ({"Authorization": "Bearer what a client sends anyway"}, 200),
    ],
    ids=str,
)
def test_host_and_origin_are_checked(server: Running, headers: dict[str, str], status: int) -> None:
    with server.client() as client:
        answer = client.get("/health", headers=headers)
    assert answer.status_code == status
    assert "access-control-allow-origin" not in answer.headers
    assert "default-src 'none'" in answer.headers["content-security-policy"]


def test_the_page_of_the_server_itself_may_ask(server: Running) -> None:
    with server.client() as client:
        assert client.post("/v1/rerank", json=BODY, headers={"Origin": server.url}).status_code == 200


def test_a_header_that_occurs_twice_is_refused(server: Running) -> None:
    with connected(server) as raw:
        raw.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nOrigin: http://a\r\nOrigin: http://b\r\n\r\n")
        assert b" 400 " in raw.recv(4096).partition(b"\r\n")[0]


def test_a_token_an_origin_and_a_rate(start_server: Callable[..., Running], tmp_path: Path) -> None:
    data = tmp_path / "data"
    server = start_server(
        "--new-token", "--rate", "5", "--allow-origin", "https://notes.example", "--host-name", "box",
        runtime=tmp_path / "run", XDG_DATA_HOME=str(data),
    )  # fmt: skip
    with server.client() as client:
        assert client.get("/health").status_code == 200
        assert client.post("/v1/rerank", json=BODY).status_code == 401
        assert client.post("/v1/rerank", json=BODY, headers={"Authorization": "Bearer wrong"}).status_code == 401
    file = next(data.rglob("serve-token.json"))
    if os.name == "posix":
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        over = httpx.HTTPTransport(uds=str(tmp_path / "run" / "edge-rag" / "serve.sock"))
        with httpx.Client(base_url="http://any", transport=over, timeout=60) as owner:
            assert owner.post("/v1/rerank", json=BODY).status_code == 200, "the owner's socket needs no token"
    code, errors = server.stop()
    assert code == 0
    token = errors.rpartition("once only: ")[2].split()[0]
    assert token not in file.read_text()
    again = start_server(
        "--token", "--rate", "5", "--allow-origin", "https://notes.example", "--host-name", "box",
        runtime=tmp_path / "run", XDG_DATA_HOME=str(data),
    )  # fmt: skip
    allowed = {"Authorization": f"Bearer {token}"}
    with again.client() as client:
        page = client.post("/v1/rerank", json=BODY, headers={**allowed, "Origin": "https://notes.example"})
        assert page.headers["access-control-allow-origin"] == "https://notes.example"
        asked = client.options("/v1/rerank", headers={"Origin": "https://notes.example"})
        assert asked.status_code == 204
        assert client.get("/v1/engine", headers={**allowed, "Host": "box:80"}).status_code == 200
        statuses = [client.get("/v1/engine", headers=allowed).status_code for _ in range(6)]
        assert 429 in statuses
        assert statuses.count(200) >= 2
    _, errors = again.stop()
    assert token not in errors, "it is shown once"


def test_a_body_that_is_too_long_is_refused_with_the_number(server: Running) -> None:
    long = b'{"query": "' + b"x" * (9 << 20) + b'"}'
    with server.client() as client:
        announced = client.post("/v1/rerank", content=long)
        streamed = client.post("/v1/rerank", content=(long[at : at + 65536] for at in range(0, len(long), 65536)))
        assert client.post("/v1/rerank", json=BODY).status_code == 200
    assert (announced.status_code, streamed.status_code) == (413, 413)
    assert "8388608" in announced.json()["detail"]


SLOW = {
    "head": b"GET /health HTTP/1.1\r\n",
    "body": b"POST /v1/search HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9000\r\n\r\n{",
    "chunks": b"POST /v1/search HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n",
    "silent": b"",
    "answered": b"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nx",
}


@pytest.mark.parametrize("kind", SLOW)
def test_slow_clients_keep_nobody_out(start_server: Callable[..., Running], tmp_path: Path, kind: str) -> None:
    """However many they are, the one that has been slow for longest gives way."""
    server = start_server("--connections", "4", runtime=tmp_path / "run")
    held = [connected(server) for _ in range(12)]
    for each in held:
        with contextlib.suppress(ConnectionError):
            each.sendall(SLOW[kind])
    for _ in range(3):
        with server.client() as client:
            assert client.get("/health").status_code == 200
    for each in held[:8]:
        with contextlib.suppress(ConnectionError):
            each.settimeout(PATIENCE_S)
            assert [*iter(lambda each=each: each.recv(1 << 16), b"")] == [] or kind == "answered"
    for each in held:
        each.close()


@pytest.mark.skipif(os.name != "posix", reason="Unix sockets have owners on POSIX systems")
def test_the_socket_is_the_owners_and_the_first_servers(
    start_server: Callable[..., Running], served_settings: dict[str, str], tmp_path: Path
) -> None:
    """A second server, with other collections and another limit, answers at its address."""
    import subprocess
    import sys

    server = start_server(runtime=tmp_path / "run")
    folder = tmp_path / "run" / "edge-rag"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "serve.sock").stat().st_mode) == 0o600
    private = subprocess.run(
        [sys.executable, "-c", "from edge.apps.cli import main; main()", "serve", "--no-port"],
        env=server.environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert private.returncode == 2
    assert "runs already" in private.stderr
    place = tmp_path / "other"
    with Collection(place, config=Config(memory=10**11, models_dir=served_settings["EDGE_MODELS_DIR"],
                                         embedder="tiny-embedder")) as collection:  # fmt: skip
        (tmp_path / "note.md").write_text("The garden is dry.")
        collection.index([tmp_path / "note.md"])
    arguments = ("--port", "0", "-c", str(place), "--memory", "3GB", "--memory-path", str(tmp_path / "memories"))
    second = start_server(*arguments, runtime=tmp_path / "run", usual=False)
    with server.client() as one, second.client() as other:
        names = [
            {Path(hit["path"]).name for hit in client.post("/v1/search", json={"query": "a"}).json()["results"]}
            for client in (one, other)
        ]
        assert other.get("/v1/engine").json()["memory"]["limit"] == 3 * 10**9
    assert names == [{"river.md", "garden.md", "office.md"}, {"note.md"}]
    code, errors = second.stop()
    assert (code, errors.count("\n")) == (0, 1)
    assert "a server of yours runs already on " in errors
    assert f"(process {server.pid})" in errors
    assert (folder / "serve.sock").exists()
    code, errors = server.stop()
    assert (code, errors) == (0, "")
    assert not list(folder.iterdir()), "nothing is left behind"
