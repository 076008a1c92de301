"""Requests leave the memory of a search, and each token and each address has a rate of its own."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from naive.program import config_of

from edge.apps.serve.application import application
from edge.apps.serve.limits import Limits
from edge.apps.serve.security import Access, Gate
from edge.apps.serve.server import HttpServer, ServerOptions
from edge.resident import anonymous_resident
from edge.scheduling.waiting_line import BATCH
from tests.apps.serve.asgi import Asked, ask, in_a_loop

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

PART = b'{"query": "' + b"x" * (7 << 20)
"""Most of a body of which the end does not come. It needs 28 MiB once parsed."""

GREEDY = 16


def requests_hold(inside: HttpServer) -> int:
    return inside.budget.holders().get("requests", 0)


def test_unfinished_bodies_leave_the_memory_of_a_search(inside: HttpServer) -> None:
    small, again = {"query": "x", "documents": ["a", "b"]}, {"query": "x" * (7 << 20), "documents": []}

    async def siege() -> None:
        app = application(inside)
        greedy = [Asked(app, "/v1/rerank") for _ in range(3 * GREEDY)]
        for asked in greedy:
            asked.send(PART)
        for asked in greedy:
            await asked.taken.wait()
        assert inside.budget.limit - requests_hold(inside) > inside.needed - (len(greedy) << 20)
        assert requests_hold(inside) > inside.budget.limit / 4, "what is free may be used"
        assert (await ask(app, "/v1/rerank", small))[0] == 200
        status, said, headers = await ask(app, "/v1/rerank", again)
        assert (status, headers["retry-after"]) == (429, "2")
        assert "other requests hold it" in said["detail"]
        for asked in greedy:
            asked.leave()
        await asyncio.gather(*(asked.task for asked in greedy))
        assert requests_hold(inside) == 0
        assert (await ask(app, "/v1/rerank", again))[0] == 422, "the room is free again"

    in_a_loop(siege())


@pytest.mark.parametrize("inside", [6 * 10**8], indirect=True)
def test_what_no_request_may_hold_is_refused_with_the_limit_that_would_do(inside: HttpServer) -> None:
    body = b'{"query": "' + "\u4e00".encode() * (20 << 20) + b'"}'  # ten bytes for each of its bytes

    async def refused() -> tuple[int, Any]:
        asked = Asked(application(inside), "/v1/rerank")
        asked.send(body, last=True)
        status, said, _ = await asked.answer()
        return status, said["detail"]

    status, said = in_a_loop(refused())
    assert status == 413
    assert "leaves; --memory " in said
    assert requests_hold(inside) == 0


def test_small_requests_are_not_behind_large_ones(
    tiny_models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a flood half of the threads work, and the others wait."""
    release = threading.Event()

    def embedded(call: Any, model: str, texts: list[str], *_: Any, **__: Any) -> tuple[list[Any], int]:
        if len(texts) > 1:
            working.append(call.urgency.priority)
            release.wait(100)
        return [[1.0]] * len(texts), 1

    working: list[int] = []
    monkeypatch.setattr("edge.apps.serve.models.embedded", embedded)
    config = config_of(tiny_models, tmp_path / "scratch", memory=anonymous_resident() + 10**9)
    large, small = {"input": ["river"] * 3000, "model": "x"}, {"input": "river", "model": "x"}

    async def flood(app: Any) -> None:
        greedy = [asyncio.create_task(ask(app, "/v1/embeddings", large)) for _ in range(30)]
        assert (await ask(app, "/v1/embeddings", small))[0] == 200
        while len(working) < 4:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        assert len(working) == 4, "half of the threads are for large requests"
        assert set(working) == {BATCH}
        release.set()
        assert {(await task)[0] for task in greedy} == {200}

    with HttpServer(config, ServerOptions(Limits(workers=8), memory=tmp_path / "memory")) as server:
        in_a_loop(flood(application(server)))


TOKEN = "a token"
RATE = 2


async def _served(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def statuses(gate: Gate, requests: list[tuple[str, str, dict[str, str]]]) -> list[int]:
    """The statuses of requests, each with its address, its path and its headers."""
    found: list[int] = []

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            found.append(message["status"])

    async def ask() -> None:
        for address, path, headers in requests:
            named = {"host": "localhost", **headers}
            raw = [(name.encode(), value.encode()) for name, value in named.items()]
            scope = {
                "type": "http", "method": "GET", "path": path, "headers": raw,
                "client": (address, 1), "server": ("127.0.0.1", 8777),
            }  # fmt: skip
            await gate(scope, None, send)

    with ThreadPoolExecutor(1) as apart:  # a browser of other tests may keep a loop running in this thread
        apart.submit(asyncio.run, ask()).result()
    return found


OTHER = {"x-api-key": "another"}
GUARDED = Access(token=sha256(TOKEN.encode()).hexdigest())
ANYWAY = {"authorization": "Bearer what a client sends anyway"}


@pytest.mark.parametrize(
    ("access", "asked"),
    [
        # A token has one bucket, however it is brought and from wherever.
        (GUARDED, [("10.0.0.0", "/v1/engine", {"authorization": f"Bearer {TOKEN}"}, 200),
                   ("10.0.0.1", "/v1/engine", {"x-api-key": TOKEN}, 200),
                   ("10.0.0.2", "/v1/engine", {"api-key": TOKEN}, 429)]),
        # Who has none takes nothing from those who have: a stranger's bucket is that of the address, whatever the key.
        (GUARDED, [("10.0.0.1", "/health", OTHER, 200), ("10.0.0.1", "/health", {}, 200),
                   ("10.0.0.1", "/health", {"api-key": "c"}, 429), ("10.0.0.2", "/health", {}, 200),
                   ("10.0.0.1", "/v1/engine", {"x-api-key": TOKEN}, 200), ("10.0.0.3", "/v1/engine", OTHER, 401)]),
        # Where none is needed, each address has a bucket.
        (Access(), [*[("10.0.0.1", "/v1/engine", ANYWAY, status) for status in (200, 200, 429)],
                    ("10.0.0.2", "/v1/engine", ANYWAY, 200)]),
    ],
)  # fmt: skip
def test_each_client_has_a_rate_of_its_own(access: Access, asked: list[tuple[str, str, dict[str, str], int]]) -> None:
    found = statuses(Gate(_served, access, RATE), [each[:3] for each in asked])
    assert found == [status for *_, status in asked]
