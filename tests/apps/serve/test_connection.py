"""What a program sends to the server of its user: the request as JSON, and never a copy of one that is too large."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from edge.apps.serve import connection as module
from edge.apps.serve.connection import OwnServer, Unserved

MOST = 100_000


@pytest.fixture
def sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The requests that a server gets which takes `MOST` bytes."""
    found: list[Any] = []

    def answer(self: OwnServer, method: str, path: str, body: bytearray, seconds: float) -> bytes:
        if method == "GET":
            return json.dumps({"body": MOST, "seconds": 1.0}).encode()
        found.append(json.loads(body))
        return b"{}"

    monkeypatch.setattr(module, "own_socket", lambda: tmp_path / "socket")
    monkeypatch.setattr(OwnServer, "_answer", answer)
    return found


def test_a_request_arrives_as_it_is(sent: list[Any]) -> None:
    content = {"texts": ["é€😀", 'a "quote"\n', ""], "top_k": None, "retrieved": True, "least": 0.25, "named": {}}
    OwnServer().ask("/own/rerank", content)
    assert sent == [content]


def test_a_request_that_is_too_large_is_not_copied(sent: list[Any]) -> None:
    texts = ["x" * 1000] * 20_000
    server = OwnServer()
    tracemalloc.start()
    try:
        with pytest.raises(Unserved, match="more than the 100,000 bytes that the server takes"):
            server.ask("/own/embed", {"texts": texts})
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 10 * MOST
    assert not sent
