"""What the page asks for and no other client: parts of documents, dates, scopes."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from edge.apps.collection.collection import Collection
from edge.apps.serve import search
from edge.apps.serve.documents import preview
from edge.config import Config
from edge.errors import InputError
from tests.apps.serve.conftest import TEXTS, Running

LONG = "\n\n".join(f"## Part {i}\n\nThe part {i} tells of the number {i} and of nothing else." for i in range(400))


@pytest.fixture(scope="module")
def long_document(tiny_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collection]:
    base = tmp_path_factory.mktemp("long")
    (base / "documents").mkdir()
    (base / "documents" / "long.md").write_text(LONG)
    config = Config(
        memory=10**11, scratch_dir=str(base / "scratch"), models_dir=str(tiny_models), embedder="tiny-embedder"
    )
    with Collection(base / "collection", config=config) as collection:
        collection.index([base / "documents"])
        yield collection


def test_a_preview_holds_the_passage_and_what_stands_around_it(server: Running) -> None:
    with server.client() as client:
        hit = client.post("/v1/search", json={"query": "river", "top_k": 1}).json()["results"][0]
        found = client.post("/v1/preview", json={"id": hit["id"]}).json()
    name = Path(hit["path"]).name
    lines = TEXTS[name].split("\n")
    assert found["path"] == hit["path"]
    assert found["lines"] == [[i + 1, line] for i, line in enumerate(lines) if line]
    assert (found["earlier"], found["later"], found["kind"]) == (None, None, "markdown")
    assert found["modified"] == hit["modified"]


def test_the_parts_of_a_long_document_follow_each_other(long_document: Collection) -> None:
    path = long_document.files()[0].path
    part = preview(long_document, None, path, 200, 3_000)
    assert any(number == 201 for number, _ in part["lines"])
    parts = [part]
    while parts[0]["earlier"] is not None:
        parts.insert(0, preview(long_document, parts[0]["earlier"], "", 1, 3_000))
    while parts[-1]["later"] is not None:
        parts.append(preview(long_document, parts[-1]["later"], "", 1, 3_000))
    assert len(parts) > 5
    for each in parts:
        assert sum(len(text) + 1 for _, text in each["lines"]) <= 3_000
    seen = {number: text for each in parts for number, text in each["lines"]}
    assert seen == {i + 1: line for i, line in enumerate(LONG.split("\n")) if line}


@pytest.mark.parametrize(
    "body", [{"path": "/etc/passwd"}, {"path": "../documents/river.md"}, {"path": "river.md"}, {"id": 10**9}, {}]
)
def test_only_what_is_indexed_is_shown(server: Running, body: dict[str, Any]) -> None:
    with server.client() as client:
        answer = client.post("/v1/preview", json=body)
    assert answer.status_code == 422
    assert answer.json()["detail"]


def test_a_preview_of_nothing_is_refused_by_name(long_document: Collection) -> None:
    with pytest.raises(InputError, match="no passage 77777"):
        preview(long_document, 77777, "", 1, 1_000)


def test_results_bear_the_dates_of_their_files(server: Running) -> None:
    with server.client() as client:
        results = client.post("/v1/search", json={"query": "river garden office"}).json()["results"]
    assert results
    for result in results:
        assert datetime.fromisoformat(result["modified"]).timestamp() == int(Path(result["path"]).stat().st_mtime)


def test_examples_are_the_titles_that_changed_last_and_no_empty_ones() -> None:
    db = sqlite3.connect(":memory:")
    db.execute("CREATE TABLE files (title, mtime_ns)")
    rows = [("Old", 1), ("Two", 2), ("One", 3), ("Two", 4), ("Long" * 9, 5), ("", 6), (None, 7), (b"bytes", 8)]
    db.executemany("INSERT INTO files VALUES (?, ?)", rows)
    assert db.execute(search._LATEST, (8, 3)).fetchall() == [("LongLong",), ("Two",), ("One",)]
    db.close()


def test_scopes_are_counted(server: Running) -> None:
    with server.client() as client:
        for text in ("The user likes tea.", "The user lives in Ghent."):
            client.post("/memories", json={"messages": text, "user_id": "scoped", "agent_id": "a"}).raise_for_status()
        scopes = client.get("/v1/scopes").json()["scopes"]
    assert {"user_id": "scoped", "agent_id": "a", "run_id": None, "memories": 2} in scopes
