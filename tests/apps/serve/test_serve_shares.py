"""One client cannot take the memory of the others, and each token and each address has a rate of its own."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from naive.program import config_of

from edge.apps.serve.application import application
from edge.apps.serve.body import Shares
from edge.apps.serve.limits import Limits
from edge.apps.serve.security import Access, Gate, client_of
from edge.apps.serve.server import HttpServer, ServerOptions
from edge.resident import anonymous_resident
from edge.scheduling.waiting_line import BATCH
from tests.apps.serve.asgi import Asked, ask, in_a_loop

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

WHOLE = 1000
PART = b'{"query": "' + b"x" * (7 << 20)
"""Most of a body of which the end does not come. It needs 28 MiB once parsed."""

GREEDY = 16


@pytest.fixture
def server(tiny_models: Path, tmp_path: Path) -> Iterator[HttpServer]:
    config = config_of(tiny_models, tmp_path / "scratch", memory=anonymous_resident() + 10**9)
    limits = Limits(body=64 << 20, body_s=600, pause_s=600)
    with HttpServer(config, ServerOptions(limits, memory=tmp_path / "memory")) as server:
        yield server


def requests_hold(server: HttpServer) -> int:
    return server.budget.holders().get("requests", 0)


def test_unfinished_bodies_of_one_client_leave_room_for_the_others(server: HttpServer) -> None:
    large, small = {"query": "x" * (2 << 20), "documents": []}, {"query": "x", "documents": ["a", "b"]}

    again = {"query": "x" * (7 << 20), "documents": []}

    async def siege() -> None:
        app = application(server)
        before = server.budget.free
        greedy = [Asked(app, "/v1/rerank", key="greedy") for _ in range(GREEDY)]
        for asked in greedy:
            asked.send(PART)
        for asked in greedy:
            await asked.taken.wait()
        assert requests_hold(server) < before / 2, "16 bodies of 28 MiB would take half of it"
        assert requests_hold(server) > before / 8, "what is free may be used"
        assert (await ask(app, "/v1/rerank", small, key="another"))[0] == 200
        assert (await ask(app, "/v1/rerank", large, key="another"))[0] == 422, "it was read: it has no documents"
        assert (await ask(app, "/v1/rerank", large, key="greedy", address="::1"))[0] == 422, "another machine"
        assert (await ask(app, "/v1/rerank", small, key="greedy"))[0] == 200, "small requests are not counted"
        status, said, headers = await ask(app, "/v1/rerank", again, key="greedy")
        assert (status, headers["retry-after"]) == (429, "2")
        assert "large requests of this client" in said["detail"]
        for asked in greedy:
            asked.leave()
        await asyncio.gather(*(asked.task for asked in greedy))
        assert requests_hold(server) == 0
        assert (await ask(app, "/v1/rerank", again, key="greedy"))[0] == 422, "its share is free again"

    in_a_loop(siege())


def test_what_one_client_may_never_hold_is_refused_with_the_limit_that_would_do(server: HttpServer) -> None:
    body = b'{"query": "' + "\u4e00".encode() * (20 << 20) + b'"}'  # ten bytes for each of its bytes

    async def refused() -> tuple[int, Any]:
        asked = Asked(application(server), "/v1/rerank")
        asked.send(body, last=True)
        status, said, _ = await asked.answer()
        return status, said["detail"]

    status, said = in_a_loop(refused())
    assert status == 413
    assert "that one client may hold; --memory " in said
    assert requests_hold(server) == 0


def test_small_requests_are_not_behind_large_ones(
    tiny_models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a flood of one client some work, some wait, and the others are told to come again."""
    release = threading.Event()

    def embedded(call: Any, model: str, texts: list[str], *_: Any, **__: Any) -> tuple[list[Any], int]:
        if len(texts) > 1:
            working.append(call.urgency.priority)
            release.wait(100)
        return [[1.0]] * len(texts), 1

    working: list[int] = []
    monkeypatch.setattr("edge.apps.serve.openai.embedded", embedded)
    config = config_of(tiny_models, tmp_path / "scratch", memory=anonymous_resident() + 10**9)
    large, small = {"input": ["river"] * 3000, "model": "x"}, {"input": "river", "model": "x"}

    async def flood(app: Any) -> None:
        greedy = [asyncio.create_task(ask(app, "/v1/embeddings", large, key="greedy")) for _ in range(200)]
        waiting = set(greedy)
        while len(waiting) > 16:
            _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in set(greedy) - waiting:
            status, said, headers = await task
            assert (status, headers["retry-after"]) == (429, "2")
            assert "large requests of this client" in said["error"]["message"]
        assert (await ask(app, "/v1/embeddings", small, key="greedy"))[0] == 200
        other = asyncio.create_task(ask(app, "/v1/embeddings", large, key="another"))
        assert (await ask(app, "/v1/embeddings", small, key="another"))[0] == 200
        while len(working) < 4:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        assert len(working) == 4, "half of the threads are for large requests"
        assert set(working) == {BATCH}
        release.set()
        assert {(await task)[0] for task in (*waiting, other)} == {200}

    with HttpServer(config, ServerOptions(Limits(workers=8), memory=tmp_path / "memory")) as server:
        in_a_loop(flood(application(server)))


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(-WHOLE, WHOLE)), max_size=60))
def test_shares_are_those_of_the_rule(steps: list[tuple[int, int]]) -> None:
    """The rule, computed anew from a plain record of who holds what."""
    shares, held = Shares(WHOLE), Counter[str]()
    for number, amount in steps:
        client = str(number)
        if amount < 0:
            less = min(-amount, held[client])
            shares.shrinks(client, less)
            held[client] -= less
            continue
        after = held[client] + amount
        allowed = amount == 0 or after <= WHOLE - (sum(held.values()) + amount)
        assert shares.grows(client, amount) == allowed
        held[client] = after if allowed else held[client]
    assert sum(held.values()) < WHOLE
    assert shares.grows("newcomer", 0)


@pytest.mark.parametrize("count", [1, 2, 5, 24])
def test_greedy_clients_share_equally_and_leave_as_much(count: int) -> None:
    shares, held = Shares(WHOLE), Counter[str]()
    growing = True
    while growing:
        growing = False
        for number in range(count):
            if shares.grows(str(number), 1):
                held[str(number)] += 1
                growing = True
    assert max(held.values()) - min(held.values()) <= 1
    assert held["0"] == pytest.approx(WHOLE / (count + 1), abs=1.01)
    assert shares.alone == WHOLE // 2
    assert shares.grows("newcomer", (WHOLE - held.total()) // 2)


def scope(address: str, *headers: tuple[str, str], socket: bool = False) -> dict[str, Any]:
    return {
        "client": None if socket else (address, 1),
        "server": ("/run/serve.sock", None) if socket else ("127.0.0.1", 8777),
        "headers": [(name.encode(), value.encode()) for name, value in headers],
    }


def test_a_client_is_an_address_and_a_key() -> None:
    plain = scope("127.0.0.1")
    keyed = [scope("127.0.0.1", (name, value)) for name, value in (
        ("x-api-key", "one"), ("authorization", "Bearer one"), ("api-key", "one"),
    )]  # fmt: skip
    other = scope("127.0.0.1", ("x-api-key", "two"))
    assert len({client_of(each) for each in keyed}) == 1
    every = [plain, keyed[0], other, scope("10.0.0.1"), scope("10.0.0.1", ("x-api-key", "one")), scope("", socket=True)]
    assert len({client_of(each) for each in every}) == len(every)
    assert not any("one" in client_of(each) or "two" in client_of(each) for each in every), "keys are not kept"


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
