"""`edge.Client`: results of the library, from the user's server."""

from __future__ import annotations

import socket
from pathlib import Path

import numpy as np
import pytest

from edge import Client
from edge.apps.collection.collection import Collection
from edge.config import Config
from edge.errors import CapabilityError, InputError
from edge.runtimes.embedder import Embedder
from edge.runtimes.reranker import Reranker
from tests.apps.serve.conftest import TEXTS, Running

pytestmark = pytest.mark.skipif(not hasattr(socket, "SO_PEERCRED"), reason="the owner's socket, as Linux checks it")
QUERY = "when does the river flood"


@pytest.fixture
def config(server: Running, monkeypatch: pytest.MonkeyPatch) -> Config:
    """The settings of the server, in its folders."""
    for name, value in server.environment.items():
        if name.startswith(("EDGE_", "XDG_")):
            monkeypatch.setenv(name, value)
    monkeypatch.setenv("EDGE_MEMORY", "10GB")
    return Config.load()


def test_results_equal_those_of_working_alone(server: Running, config: Config) -> None:
    client, texts = Client(), list(TEXTS.values())
    with Reranker(config=config) as reranker:
        assert client.rank(QUERY, texts) == reranker.rank(QUERY, texts)
        asked = client.rank(QUERY, texts, 1, retrieved=True, mode="top-k", threshold="inf")
        assert asked == reranker.rank(QUERY, texts, 1, retrieved=True, mode="top-k", threshold="inf")
    with Embedder(config=config) as embedder:
        np.testing.assert_array_equal(client.embed(texts), embedder.embed(texts))
        np.testing.assert_array_equal(client.embed([QUERY], query=True), embedder.embed([QUERY], query=True))
    place = server.folder / "collection"
    with Collection(place, config=config, read_only=True) as collection:
        assert client.search(QUERY, 2, collection=place) == collection.search(QUERY, 2)
        found = client.search(QUERY, rerank=False, collection=place, filters=["path:garden.md"])
        assert found == collection.search(QUERY, rerank=False, where=["path:garden.md"])


def test_what_cannot_be_done_is_said(server: Running, config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client()
    with pytest.raises(InputError, match="empty"):
        client.rank(" ", ["text"])
    with pytest.raises(InputError, match="not served"):
        client.search(QUERY, collection=server.folder / "elsewhere")
    monkeypatch.setenv("EDGE_RUNTIME", "numpy")
    with pytest.raises(CapabilityError, match="its runtime is auto, not numpy"):
        Client()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(Path(server.environment["XDG_RUNTIME_DIR"]) / "empty"))
    with pytest.raises(CapabilityError, match="no server runs"):
        Client()
