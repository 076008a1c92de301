"""Reranking over HTTP: every dialect gets what the library says, and errors in its own shape."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from edge.config import Config
from edge.runtimes.reranker import Reranker
from tests.apps.serve.conftest import TEXTS, Running

QUERY = "when does the river flood"
DOCS = [sentence for text in TEXTS.values() for sentence in text.split("\n\n")]


@pytest.fixture(scope="module")
def expected(served_settings: dict[str, str]) -> dict[str, list[tuple[int, float]]]:
    """Index and score by the library, best first, for several queries."""
    config = Config(memory=10**11, scratch_dir=served_settings["EDGE_SCRATCH_DIR"])
    with Reranker(f"{served_settings['EDGE_MODELS_DIR']}/tiny", config=config) as reranker:
        queries = [QUERY, *(f"{QUERY} in {n}" for n in range(12))]
        return {query: [(r.index, r.score) for r in reranker.rank(query, DOCS)] for query in queries}


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_documents_are_ranked_as_the_library_ranks_them(
    server: Running, expected: dict[str, list[tuple[int, float]]], path: str
) -> None:
    with server.client() as client:
        found = client.post(path, json={"model": "rerank-v3.5", "query": QUERY, "documents": DOCS}).json()
        assert [(r["index"], r["relevance_score"]) for r in found["results"]] == expected[QUERY]
        assert all(0 <= r["relevance_score"] <= 1 for r in found["results"])
        assert "document" not in found["results"][0]
        few = client.post(
            path, json={"query": QUERY, "documents": [{"text": doc, "n": 1} for doc in DOCS], "top_n": 2,
                        "return_documents": True},
        ).json()  # fmt: skip
    assert [r["index"] for r in few["results"]] == [index for index, _ in expected[QUERY]][:2]
    assert [r["document"]["text"] for r in few["results"]] == [DOCS[r["index"]] for r in few["results"]]


def test_texts_are_ranked_in_the_shape_of_text_embeddings_inference(
    server: Running, expected: dict[str, list[tuple[int, float]]]
) -> None:
    with server.client() as client:
        found = client.post("/rerank", json={"query": QUERY, "texts": DOCS, "return_text": True}).json()
        raw = client.post("/rerank", json={"query": QUERY, "texts": DOCS, "raw_scores": True}).json()
    assert [(r["index"], r["score"]) for r in found] == expected[QUERY]
    assert found[0]["text"] == DOCS[found[0]["index"]]
    assert [r["index"] for r in raw] == [r["index"] for r in found]
    assert max(r["score"] for r in raw) > 1 or min(r["score"] for r in raw) < 0


def test_requests_at_once_get_the_scores_of_each_alone(
    server: Running, expected: dict[str, list[tuple[int, float]]]
) -> None:
    def ask(query: str) -> list[tuple[int, float]]:
        with server.client() as client:
            found = client.post("/v1/rerank", json={"query": query, "documents": DOCS}).json()
        return [(r["index"], r["relevance_score"]) for r in found["results"]]

    with ThreadPoolExecutor(12) as pool:
        for _ in range(3):
            for query, found in zip(expected, pool.map(ask, expected), strict=True):
                assert found == expected[query]


WRONG: list[tuple[dict[str, Any], int, str]] = [
    ({"query": "", "documents": DOCS}, 422, "query is empty"),
    ({"query": QUERY}, 422, "`documents` is missing"),
    ({"query": QUERY, "documents": []}, 422, "no documents"),
    ({"query": QUERY, "documents": "one"}, 422, "is a list"),
    ({"query": QUERY, "documents": [3]}, 422, "`documents[0]` is a text or an object"),
    (
        {"query": QUERY, "documents": [{}] * 9_000, "rank_fields": ["a"] * 200_000},
        413,
        "`rank_fields` has more than 100 entries",
    ),
    ({"query": QUERY, "documents": DOCS, "top_n": 0}, 422, "at least 1"),
    ({"query": QUERY, "documents": ["\ud800"]}, 400, "not valid JSON"),
    ({"query": QUERY, "documents": DOCS, "model": "tiny-embedder"}, 424, "embedder"),
]


@pytest.mark.parametrize(("body", "status", "said"), WRONG, ids=lambda value: str(value)[:40])
def test_bad_requests_are_told_what_is_wrong_in_their_dialect(
    server: Running, body: dict[str, Any], status: int, said: str
) -> None:
    shapes = {"/v1/rerank": "detail", "/v2/rerank": "message", "/rerank": "error"}
    with server.client() as client:
        for path, field in shapes.items():
            answer = client.post(path, content=json.dumps(body))
            assert answer.status_code == status
            assert said in answer.json()[field]
        assert client.post("/v1/rerank", json={"query": QUERY, "documents": DOCS}).status_code == 200


def test_a_field_that_is_named_twice_is_read_once(server: Running) -> None:
    """Otherwise a document is copied as often as its field is named."""
    documents = [{"text": text} for text in DOCS]
    with server.client() as client:
        once, often = (
            client.post("/v1/rerank", json={"query": QUERY, "documents": documents, "rank_fields": names}).json()
            for names in (["text"], ["text"] * 100)
        )
    assert once["results"] == often["results"]
    assert once["usage"] == often["usage"]
