"""The pages of memories, as mem0's hosted client asks for them."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from naive.waiting import result_of

from edge.apps.memory.arguments import Scope
from edge.apps.memory.searching import Searcher
from edge.apps.serve import mem0
from edge.apps.verbs.memories import ListOptions
from tests.apps.serve.every_request import Request, Site

pytest.importorskip("starlette")
pytest.importorskip("httpx")

MEMORIES, TOGETHER = 25, 10


def test_pages_go_on_behind_the_most_that_comes_at_once(here: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each `next` is answered, no memory is missing or twice, and no page reads those before it."""
    memory = here.server.library.memory()
    for number in range(MEMORIES):
        memory.add(f"Bob keeps the number {number}.", user_id="bob")
    expected = [each["id"] for each in memory.get_all(user_id="bob", top_k=MEMORIES)["results"]]
    top_k, option = ListOptions.options()["top_k"]
    bounded = {"top_k": (top_k, replace(option, most=TOGETHER))}
    monkeypatch.setattr(ListOptions, "options", staticmethod(lambda: bounded))
    read: list[int] = []
    listed = Searcher.listed

    def noted(self: Searcher, *given: Any, **named: Any) -> Any:
        found = listed(self, *given, **named)
        read.append(len(found))
        return found

    monkeypatch.setattr(Searcher, "listed", noted)

    async def page(client: Any, number: int, size: int) -> Any:
        query = {"page": str(number), "page_size": str(size)}
        answer = await here.send(client, Request("POST", "/v3/memories", {"filters": {"user_id": "bob"}}, query=query))
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def walk(size: int) -> list[str]:
        found, number = [], 1
        async with here.client() as client:
            while True:
                each = await page(client, number, size)
                found += [result["id"] for result in each["results"]]
                assert (each["previous"] is None) == (number == 1)
                if each["next"] is None:
                    assert each["count"] == MEMORIES
                    behind = await page(client, number + 1, size)
                    assert (behind["results"], behind["next"], behind["count"]) == ([], None, 0)
                    return found
                number += 1
                assert each["next"] == f"/v3/memories/?page={number}&page_size={size}"
                assert each["count"] == len(found) + 1

    for size in (1, 3, 5, TOGETHER - 1):
        read.clear()
        assert result_of(walk(size)) == expected
        assert max(read) <= size + 1


def test_an_export_in_pages_is_taken_in_whole(here: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The pages hold what an export to a file holds, and another server's memory becomes equal to it."""
    memory = here.server.library.memory()
    turns = [{"role": role, "content": f"{role} {n}"} for n in range(5) for role in ("user", "assistant")]
    said = memory.add(turns, user_id="bob", run_id="r", timestamp="2026-05-01")["results"]
    memory.pin(said[3]["id"])
    memory.add("Ann rows.", user_id="ann")
    monkeypatch.setattr(mem0, "_PAGE_NBYTES", 1_500)

    async def pages(client: Any, **query: str) -> list[list[dict[str, Any]]]:
        found: list[list[dict[str, Any]]] = []
        after: str | None = ""
        while after is not None:
            asked = query | ({"after": str(after)} if after else {})
            answer = (await here.send(client, Request("GET", "/v1/export", query=asked))).json()
            found.append(answer["memories"])
            after = answer["next"]
        return found

    def lines(**ids: str) -> list[dict[str, Any]]:
        file = io.StringIO()
        memory.within(Scope(**ids)).export_jsonl(file)
        return [json.loads(line) for line in file.getvalue().splitlines()]

    async def move() -> None:
        async with here.client() as client:
            bobs = await pages(client, user_id="bob")
            assert len(bobs) > 2
            assert [each for page in bobs for each in page] == lines(user_id="bob")
            every = await pages(client)
            before = lines()
            assert [each for page in every for each in page] == before
            await here.send(client, Request("POST", "/reset", {}))
            for page in every:
                answer = await here.send(client, Request("POST", "/v1/import", {"memories": page}))
                assert answer.json() == {"count": len(page)}
            again = await here.send(client, Request("POST", "/v1/import", {"memories": every[0]}))
            assert again.json() == {"count": 0}
            whole = memory.get_all(user_id="bob", filters={"conversation_of": said[0]["id"]})["results"]
            assert len(whole) == len(turns)
            for one, other in zip(lines(), before, strict=True):
                assert [change["event"] for change in one["history"]][-1] == "IMPORT"
                for version in (one, other):
                    del version["history"]
                assert one == other
            bad = {"memories": [{"memory": "x", "user_id": "ann"}], "user_id": "bob"}
            assert (await here.send(client, Request("POST", "/v1/import", bad))).status_code == 422

    result_of(move())
