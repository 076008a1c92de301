"""Search, answers and what they are made of, over HTTP."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from naive.program import config_of

from edge.apps.assistant.assistant import Assistant
from edge.apps.collection.collection import Collection
from edge.text.tokens import expected_tokens, most_tokens
from tests.apps.serve.conftest import Running

QUERY = "when does the river flood"


def events(lines: Any) -> list[tuple[str, Any]]:
    """The events of a stream."""
    found, name = [], ""
    for line in lines:
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            found.append((name, json.loads(line.removeprefix("data: "))))
    return found


@pytest.fixture(scope="module")
def alone(served_settings: dict[str, str]) -> Any:
    """The same collection, opened here."""
    base = Path(served_settings["EDGE_SCRATCH_DIR"]).parent
    config = config_of(Path(served_settings["EDGE_MODELS_DIR"]), base / "scratch")
    with Collection(base / "collection", config=config, read_only=True) as collection:
        yield collection


@pytest.mark.parametrize("rerank", [True, False])
@pytest.mark.parametrize("stream", [True, False])
def test_results_equal_those_of_the_library(server: Running, alone: Collection, rerank: bool, stream: bool) -> None:
    body = {"query": QUERY, "top_k": 3, "rerank": rerank, "stream": stream}
    with server.client() as client, client.stream("POST", "/v1/search", json=body) as answer:
        assert answer.status_code == 200
        if stream:
            found = events(answer.iter_lines())
            results = found[-1][1]["results"]
            names = [name for name, _ in found]
            assert names[0] == "fused"
            assert names[-1] == "final"
            assert set(names[1:-1]) == ({"layer"} if rerank else set())
        else:
            results = json.loads(answer.read())["results"]
    expected = [hit.to_json() for hit in alone.search(QUERY, 3, rerank=rerank)]
    assert [{name: result[name] for name in expected[0]} for result in results] == expected


@pytest.mark.parametrize("limit", [None, 60, 120])
def test_a_brief_answer_fits_as_it_is_sent(server: Running, limit: int | None) -> None:
    body = {"query": QUERY, "brief": True, "max_tokens": limit}
    with server.client() as client:
        whole = client.post("/v1/search", json={"query": QUERY}).json()["results"]
        sent = client.post("/v1/search", json=body).text
    found = json.loads(sent)
    shown = [result["path"] for result in found["results"]]
    assert shown == [result["path"] for result in whole][: len(shown)]
    assert len(shown) + found["left_out"] == len(whole)
    assert (
        (len(sent) <= 2_500 and found["left_out"] == 0)
        if limit is None
        else most_tokens(expected_tokens(sent)) <= limit
    )


def test_filters_and_bounds_are_those_of_the_library(server: Running, alone: Collection) -> None:
    with server.client() as client:
        found = client.post("/v1/search", json={"query": QUERY, "filters": ["path:garden.md"]}).json()["results"]
        wrong = client.post("/v1/search", json={"query": QUERY, "filters": ["nonsense:x"]})
        other = client.post("/v1/search", json={"query": QUERY, "collection": "nowhere"})
        path = client.post("/v1/search", json={"query": QUERY, "collection": str(server.folder / "elsewhere")})
    assert {Path(result["path"]).name for result in found} == {"garden.md"}
    assert [answer.status_code for answer in (wrong, other, path)] == [422, 404, 404]
    assert "no collection is called" in path.json()["detail"]


def test_a_follow_up_is_looked_up_with_the_question_before_it(server: Running) -> None:
    turn = {"question": "When does the river flood?", "answer": "In spring. [1]"}
    with server.client() as client:
        body = {"question": "and the bridge?", "llm": "extractive", "turns": [turn], "rerank": False}
        answer = client.post("/v1/ask", json=body).json()
    assert answer["stats"]["question"] == "When does the river flood, and the bridge?"


@pytest.mark.parametrize("stream", [True, False])
def test_answers_equal_those_of_the_library(server: Running, alone: Collection, stream: bool) -> None:
    with Assistant(alone, llm="extractive") as assistant:
        expected = assistant.ask(f"{QUERY}?").to_json()
    body = {"question": f"{QUERY}?", "stream": stream, "llm": "extractive"}
    with server.client() as client, client.stream("POST", "/v1/ask", json=body) as answer:
        if stream:
            found = events(answer.iter_lines())
            said = "".join(data["text"] for name, data in found if name == "text")
            assert [name for name, _ in found][-1] == "answer"
            document = found[-1][1]
            assert said.strip() == document["text"]
        else:
            document = json.loads(answer.read())
    assert document["text"] == expected["text"]
    assert document["citations"] == expected["citations"]
    assert document["rounds"][0]["passages"] or not document["found"]


def test_the_lines_of_a_document_are_read(server: Running) -> None:
    river = server.folder / "documents" / "river.md"
    with server.client() as client:
        found = client.post("/v1/documents", json={"targets": [f"{river}:1-3"]}).json()["documents"]
    assert "floods every spring" in found[0]["text"]


def test_collections_and_the_engine_can_be_seen(server: Running) -> None:
    with server.client() as client:
        names = client.get("/v1/collections").json()["collections"]
        assert names[0]["exists"]
        assert client.get("/v1/collections/default").json()["indexed"] == 3
        assert len(client.get("/v1/collections/default/files").json()["files"]) == 3
        assert client.get("/v1/collections/nowhere").status_code == 404
        client.post("/v1/search", json={"query": QUERY})
        engine = client.get("/v1/engine").json()
        metrics = client.get("/metrics").text
        document = client.get("/openapi.json").json()
    assert sum(engine["memory"]["holders"].values()) == engine["memory"]["used"] <= engine["memory"]["limit"]
    assert {model["kind"] for model in engine["models"] if model["open"]} == {"reranker", "embedder"}
    assert engine["reranking"]["layers"][-1]["scores"]
    assert engine["answers"] == []
    (lists,) = (one for one in engine["lists"] if one["collection"] == "collection")
    assert (lists["collection"], lists["waiting"], lists["held"], lists["within"]) == ("collection", 0, 0, 0.0)
    assert 'edge_requests_total{path="/v1/search",method="POST",status="200"}' in metrics
    assert {"/v1/search", "/v1/rerank", "/memories/{memory_id}"} <= set(document["paths"])
    assert all(operation["summary"] for path in document["paths"].values() for operation in path.values())
