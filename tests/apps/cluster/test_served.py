"""A server whose collection is in shards answers every request as one whose collection is whole."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from naive.mcp_answers import data_of

from edge.apps.cluster import cluster
from edge.apps.collection.excerpts import NotIndexed
from tests.apps.serve.every_request import Request, Site, site

pytest.importorskip("starlette")
pytest.importorskip("httpx")

FROM_A_DATABASE = {"/v1/preview", "/v1/page", "/v1/open"}
"""Paths of the page that read documents from the database of one collection."""

OWN = {"/v1/collections/{name:path}", "/v1/offers", "/v1/engine", "/metrics", "/own", "/own/status", "/v1/trace"}
"""Paths that describe the server or its store, which differ."""

NAMED = {("/mcp", "search"), ("/mcp", "status")}
"""Tools whose results name the collection, or its folders."""

CHANGING = (
    "seconds", "_s", "created", "id", "started", "pid", "resident", "used", "free", "event", "_at", "modified",
    "duration", "file", "limit", "_ns",
)  # fmt: skip


@pytest.fixture(scope="module")
def sites(tiny_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Site, Site]]:
    base = tmp_path_factory.mktemp("sites")
    for name in ("whole", "spread"):
        (base / name).mkdir()
    with site(tiny_models, base / "whole") as whole, site(tiny_models, base / "spread", shards=3) as spread:
        yield whole, spread


def told(text: str, one: Site) -> Any:
    """An answer without times, numbers of passages, and the names of folders."""
    text = text.replace(str(Path(one.document).parent.parent), "BASE").replace(one.memory_id, "MEMORY")

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            value = data_of(value) if value.get("isError") is False else value  # of a tool
            return {name: plain(each) for name, each in value.items() if not name.endswith(CHANGING)}
        return [plain(each) for each in value] if isinstance(value, list) else value

    lines = [line.removeprefix("data: ") for line in text.splitlines()]
    return [plain(json.loads(line)) if line[:1] in "{[" and line else line for line in lines]


def test_every_request_is_answered_as_from_one_collection(sites: tuple[Site, Site]) -> None:
    async def all_of(one: Site) -> list[tuple[Request, int, str]]:
        found = []
        async with one.client() as client:
            for request in one.requests():
                answer = await one.send(client, request)
                found.append((request, answer.status_code, answer.text))
        return found

    answers = [asyncio.run(all_of(one)) for one in sites]
    assert len(answers[0]) > 80
    for (request, status, text), (_, other, spread) in zip(*answers, strict=True):
        named = (request.body or {}).get("params", {}).get("name")
        if request.kind in FROM_A_DATABASE:
            assert (other, "are in shards" in spread) == (501, True), spread
        elif request.kind == "/v1/folders":
            assert other == 501, spread
        elif request.kind == "/mcp" and named == "get":
            assert "are in shards" in spread
        elif request.kind in ("/own/search", "/own/ask"):  # commands open a collection in shards by --cluster
            assert "is not served to commands" in spread
        else:
            assert other == status, (request, spread)
            if request.kind not in OWN and (request.kind, named) not in NAMED:
                found, expected = told(spread, sites[1]), told(text, sites[0])
                assert [a for a, b in zip(found, expected, strict=True) if a != b] == [
                    b for a, b in zip(found, expected, strict=True) if a != b
                ], request


def test_what_is_known_of_the_shards_serves_all_requests(
    sites: tuple[Site, Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, spread = sites
    spread.server.library.together([]).search("the river", 2)
    sent: list[Any] = []
    monkeypatch.setattr(cluster, "assignments", lambda *_: sent.append("assignments"))
    send: Any = type(spread.server.options.places).send

    def seen(self: Any, replica: Any, *rest: Any) -> Any:
        sent.append(rest[0])
        return send(self, replica, *rest)

    monkeypatch.setattr(type(spread.server.options.places), "send", seen)
    spread.server.library.together([]).search("the river", 2)
    assert "assignments" not in sent
    assert not {"statistics", "resembling"}.intersection(map(str, sent))
    assert sent


def test_a_lost_shard_is_an_error_or_a_marked_result(sites: tuple[Site, Site], monkeypatch: pytest.MonkeyPatch) -> None:
    whole, spread = sites
    home = spread.server.library.together([]).read([spread.document])
    assert [one.path for one in home] == [spread.document]
    assert spread.server.library.together([]).read([f"#{spread.passage}"])[0].path == spread.document
    with pytest.raises(NotIndexed, match="no passage #99999 in"):
        spread.server.library.together([]).read(["#99999"])
    places = spread.server.options.places
    send: Any = type(places).send

    def lost(self: Any, replica: Any, *rest: Any) -> Any:
        if replica.shard == "s1":
            answer = Future[Any]()
            answer.set_exception(OSError("its process has ended"))
            return answer
        return send(self, replica, *rest)

    async def search(one: Site, **more: Any) -> tuple[int, Any]:
        async with one.client() as client:
            answer = await one.send(client, Request("POST", "/v1/search", {"query": "the spring river", **more}))
            return answer.status_code, answer.json()

    assert asyncio.run(search(spread, partial=True))[1]["health"]["state"] == "ok"
    monkeypatch.setattr(type(places), "send", lost)
    status, said = asyncio.run(search(spread))
    assert (status, "shard s1 does not answer" in said["detail"]) == (503, True)
    status, said = asyncio.run(search(spread, partial=True))
    assert status == 200
    assert said["health"]["state"] == "unfinished"
    assert "shard s1 is missing" in said["health"]["troubles"][0]["text"]
    status, said = asyncio.run(search(whole, partial=True))
    assert (status, "without --cluster" in said["detail"]) == (422, True)
