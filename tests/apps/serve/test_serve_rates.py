"""Rates: each token and each address has a bucket of its own."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from typing import Any

import pytest

from edge.apps.serve.security import Access, Gate

pytest.importorskip("starlette")

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


def test_a_token_has_one_bucket_however_it_is_brought_and_from_wherever() -> None:
    gate = Gate(_served, Access(token=sha256(TOKEN.encode()).hexdigest()), RATE)
    brought = [{"authorization": f"Bearer {TOKEN}"}, {"x-api-key": TOKEN}, {"api-key": TOKEN}]
    assert statuses(gate, [(f"10.0.0.{n}", "/v1/engine", headers) for n, headers in enumerate(brought)]) == [
        200, 200, 429,
    ]  # fmt: skip


def test_who_has_no_token_takes_nothing_from_those_who_have() -> None:
    """Open paths need none: a stranger's bucket is that of the address, whatever is written into the headers."""
    gate = Gate(_served, Access(token=sha256(TOKEN.encode()).hexdigest()), RATE)
    wrong = {"x-api-key": "another"}
    strangers = [("10.0.0.1", "/health", wrong), ("10.0.0.1", "/health", {}), ("10.0.0.1", "/health", {"api-key": "c"})]
    assert statuses(gate, strangers) == [200, 200, 429]
    assert statuses(gate, [("10.0.0.2", "/health", {}), ("10.0.0.1", "/v1/engine", {"x-api-key": TOKEN})]) == [200, 200]
    assert statuses(gate, [("10.0.0.3", "/v1/engine", wrong)]) == [401]


def test_without_a_token_each_address_has_its_own() -> None:
    gate = Gate(_served, Access(), RATE)
    sent = {"authorization": "Bearer what a client sends anyway"}
    asked = [("10.0.0.1", "/v1/engine", sent)] * 3 + [("10.0.0.2", "/v1/engine", sent)]
    assert statuses(gate, asked) == [200, 200, 429, 200]
