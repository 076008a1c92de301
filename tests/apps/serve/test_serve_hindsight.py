"""Hindsight, a whole product, with this server as its embedder and its reranker. It runs from an environment of its
own, which EDGE_HINDSIGHT names: `pip install 'hindsight-api-slim[embedded-db]'`."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.apps.serve.conftest import Running

ENVIRONMENT = Path(os.environ["EDGE_HINDSIGHT"])
FACTS = [
    "The river floods every spring when the snow melts.",
    "Tomatoes need six hours of sun a day.",
    "The office opens at eight.",
]
QUESTION = "when does the river flood"
RERANKERS = {"tei": {"TEI_URL": "{url}"}, "cohere": {"COHERE_API_KEY": "none", "COHERE_BASE_URL": "{url}/v2/rerank"}}


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    """Its database, which refuses to run as root."""
    program = next(ENVIRONMENT.glob("lib/python*/site-packages/pg0/bin/pg0"))
    home = Path(tempfile.mkdtemp())
    shutil.copy(program, home / "pg0")
    options: dict[str, Any] = {"env": {**os.environ, "HOME": str(home)}, "cwd": home, "check": True}
    if os.getuid() == 0:
        shutil.chown(home, "nobody")
        options |= {"user": "nobody", "extra_groups": []}
    port = free_port()
    named = ("--name", "edge", "--username", "edge", "--password", "edge", "--database", "edge")
    subprocess.run([home / "pg0", "start", *named, "--port", str(port)], **options)
    yield f"postgresql://edge:edge@127.0.0.1:{port}/edge"
    subprocess.run([home / "pg0", "stop", "--name", "edge"], **options)
    shutil.rmtree(home)


@contextmanager
def hindsight(server: Running, database: str, reranker: str, folder: Path) -> Iterator[httpx.Client]:
    """A client of its server, which runs without a language model."""
    port = free_port()
    settings = {
        "DATABASE_URL": database, "HOST": "127.0.0.1", "PORT": str(port), "LLM_PROVIDER": "none",
        "EMBEDDINGS_PROVIDER": "tei", "EMBEDDINGS_TEI_URL": server.url, "RERANKER_PROVIDER": reranker,
        **{f"RERANKER_{name}": value.format(url=server.url) for name, value in RERANKERS[reranker].items()},
    }  # fmt: skip
    environment = {**os.environ, "HOME": str(folder), **{f"HINDSIGHT_API_{n}": value for n, value in settings.items()}}
    with (folder / "log.txt").open("wb") as log:
        process = subprocess.Popen(
            [ENVIRONMENT / "bin" / "hindsight-api"], env=environment, cwd=folder, stdout=log, stderr=log
        )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120) as client:
            ends = time.monotonic() + 300
            while True:
                try:
                    client.get("/health").raise_for_status()
                    break
                except httpx.HTTPError:
                    assert process.poll() is None, (folder / "log.txt").read_text()
                    assert time.monotonic() < ends, (folder / "log.txt").read_text()
                    time.sleep(0.5)
            yield client
    finally:
        process.terminate()
        process.wait(60)


@pytest.mark.parametrize("reranker", list(RERANKERS))
def test_it_remembers_and_recalls(server: Running, database: str, tmp_path: Path, reranker: str) -> None:
    """What it recalls has the reranker's scores."""
    bank = f"/v1/default/banks/{reranker}/memories"
    with hindsight(server, database, reranker, tmp_path) as client:
        kept = client.post(bank, json={"items": [{"content": fact} for fact in FACTS]})
        assert kept.json()["items_count"] == len(FACTS), kept.text
        found = client.post(f"{bank}/recall", json={"query": QUESTION}).json()["results"]
    scores = {result["text"]: result["scores"]["reranker"] for result in found}
    with server.client() as own:
        ranked = own.post("/v1/rerank", json={"query": QUESTION, "documents": FACTS}).json()["results"]
    assert scores == pytest.approx({FACTS[result["index"]]: result["relevance_score"] for result in ranked})
