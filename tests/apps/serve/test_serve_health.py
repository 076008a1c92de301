"""Answers say what is unfinished or damaged in the collection or memory that they come from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from edge.apps.collection.collection import DATABASE
from edge.apps.memory.store import DATABASE as MEMORIES
from edge.apps.store.connections import connect
from edge.apps.store.failures import forget, note
from tests.apps.serve.conftest import Running

SAID = "a check found damage"


@pytest.fixture
def damaged(server: Running) -> Iterator[Running]:
    """A server whose collection and memory are noted as damaged, as another process would note it."""
    with server.client() as client:
        assert client.post("/memories", json={"messages": "The river froze.", "user_id": "ada"}).status_code == 200
    stores = [server.folder / "collection" / DATABASE, server.folder / "memory" / MEMORIES]
    for path in stores:
        _change(path, noted=True)
    yield server
    for path in stores:
        _change(path, noted=False)


def _change(path: Path, *, noted: bool) -> None:
    db = connect(path.as_uri(), writable=True, cache=1 << 20, busy_seconds=10)
    try:
        if noted:
            note(db, "damaged")
        else:
            forget(db, "damaged")
    finally:
        db.close(True)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/search", {"query": "river"}),
        ("POST", "/v1/search", {"query": "river", "stream": True}),
        ("POST", "/v1/ask", {"question": "when does the river flood?", "llm": "extractive"}),
        ("POST", "/v1/ask", {"question": "when does the river flood?", "llm": "extractive", "stream": True}),
        ("GET", "/memories?user_id=ada", None),
        ("POST", "/search", {"query": "river", "user_id": "ada"}),
        ("POST", "/memories", {"messages": "Bread needs time.", "user_id": "ada"}),
        ("POST", "/v3/memories", {"filters": {"user_id": "ada"}}),
    ],
)
def test_answers_say_it(damaged: Running, method: str, path: str, body: dict[str, object] | None) -> None:
    with damaged.client() as client:
        answer = client.request(method, path, json=body)
    assert answer.status_code == 200, answer.text
    assert SAID in answer.text


def test_they_say_nothing_of_it_where_all_is_well(server: Running) -> None:
    with server.client() as client:
        found = client.post("/v1/search", json={"query": "river"}).json()
        memories = client.get("/memories?user_id=ada").json()
    assert found["health"] == {"state": "ok", "troubles": []}
    assert "health" not in memories
