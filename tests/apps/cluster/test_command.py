"""`edge cluster` and `edge search --cluster`, with all shards in the process of the command."""

from __future__ import annotations

import importlib.util
import json
import re
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner
from naive.program import output_of
from naive.spread import invented

from edge.apps.cli import edge
from edge.apps.cluster.calling import ShardDocument
from edge.apps.cluster.cluster import Cluster
from edge.apps.cluster.places import LocalPlaces
from edge.apps.collection.catalog import passage
from edge.apps.documents.chunking import chunks_of
from edge.apps.documents.plain import text_blocks
from edge.config import Config
from edge.errors import CapabilityError, EdgeError, StorageError


def test_a_collection_in_shards_is_made_searched_and_grown(home: Path) -> None:
    there = ("-c", str(home / "all"), "--cluster", "here")
    shards = [word for name in "ab" for word in ("--shard", f"{name}={home / name}")]
    output_of(edge, "cluster", "create", *there, *shards)
    with LocalPlaces(config=Config.load()) as places, Cluster(home / "all", places, config=Config.load()) as cluster:
        documents = []
        for name, text in invented(1, 60).items():
            chunks = tuple(chunks_of(text_blocks(text), ""))
            vectors = cluster.models.embed([passage(chunk.context, chunk.text) for chunk in chunks])
            documents.append(ShardDocument(name, "", "text", "", name.encode(), chunks, vectors))
        cluster.put(documents)
        cluster.finish()
    before = json.loads(output_of(edge, "search", *there, "--json", "old ice"))
    assert before["stats"]["missing"] == []
    assert not any("collection" in hit for hit in before["results"])
    assert len({hit["id"] for hit in before["results"]}) == len(before["results"])
    assert "documents moved" in CliRunner().invoke(
        edge, ["cluster", "grow", *there, "--shard", f"c={home / 'c'}"], catch_exceptions=False
    ).stderr  # fmt: skip
    after = json.loads(output_of(edge, "search", *there, "--json", "old ice"))
    assert [(hit["path"], hit["score"]) for hit in after["results"]] == [
        (hit["path"], hit["score"]) for hit in before["results"]
    ]
    nothing = CliRunner().invoke(edge, ["search", *there, "zzqqy blorfle"], standalone_mode=False)
    assert (nothing.return_value, "no word of the query" in nothing.stderr) == (1, True)
    told = output_of(edge, "cluster", "status", *there)
    assert told.startswith("version 3\n")
    assert told.count("of 20.0 GB") == 3
    state = json.loads(output_of(edge, "cluster", "status", *there, "--json"))
    assert sum(shard["documents"] for shard in state["shards"].values()) == 60


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["search", "--partial", "x"], "--partial needs --cluster"),
        (["search", "--cluster", "here", "-c", "none", "x"], "there is no collection in shards in"),
        (["search", "--cluster", "here", "-c", "a", "-c", "b", "x"], "one collection is searched"),
        (["cluster", "create", "--cluster", "here", "-c", "new", "--shard", "a"], "is no shard: write NAME="),
        (["cluster", "create", "--cluster", "here", "-c", "new", "--shard", "a=x:"], "is no shard"),
    ],
)
def test_mistakes_are_told_in_one_sentence(
    home: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], told: str
) -> None:
    monkeypatch.chdir(home)
    done = CliRunner().invoke(edge, words)
    assert not (home / "new").exists()
    assert done.exit_code != 0
    assert told in str(done.exception)


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")
@pytest.mark.parametrize("words", [["search", "old ice"], ["index", "."], ["cluster", "status"]])
def test_a_dead_head_is_told_in_one_sentence_and_nothing_changes(
    home: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    there = ("-c", str(home / "all"), "--cluster")
    output_of(edge, "cluster", "create", *there, "here", "--shard", f"a={home / 'a'}")
    kept = (home / "all" / "cluster.db").read_bytes()
    for name, value in {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "7" * 64, "RAY_USAGE_STATS_ENABLED": "0"}.items():
        monkeypatch.setenv(name, value)
    with socket.socket() as nobody:  # bound, and nothing listens
        nobody.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        done = CliRunner().invoke(edge, [*words, *there, address], standalone_mode=False)
    assert isinstance(done.exception, StorageError)
    assert re.fullmatch(rf"Ray's head \({address}\) does not answer. What was indexed is .*", str(done.exception))
    assert (home / "all" / "cluster.db").read_bytes() == kept


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")
def test_a_version_of_ray_that_is_not_known_is_told(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = ("-c", str(home / "all"), "--cluster")
    output_of(edge, "cluster", "create", *there, "here", "--shard", f"a={home / 'a'}")
    monkeypatch.delattr("ray._private.services.canonicalize_bootstrap_address")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "7" * 64)
    done = CliRunner().invoke(edge, ["search", *there, "auto", "x"], standalone_mode=False)
    assert isinstance(done.exception, CapabilityError)
    assert "pip install 'edge-rag[cluster]'" in str(done.exception)


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray")
@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--listen", "a\nb"], r"'a\\nb' is no address of this machine"),
        (["--listen", "192.0.2.1"], "'192.0.2.1' is no address of this machine"),
        (["--listen", 70 * "x" + ".y"], "is no address of this machine"),
        (["--join", "127.0.0.1:1"], "nothing answers at '127.0.0.1:1'; --join takes HOST:PORT of the cluster's head"),
        (["--join", "x:" + "9" * 30], "nothing answers at "),
        (["--join", "nowhere"], "nothing answers at 'nowhere'"),
    ],
)
def test_a_node_at_an_address_that_is_none_is_refused_at_once(
    options: list[str], told: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    done = CliRunner().invoke(edge, ["cluster", "node", "--place", "a", *options], standalone_mode=False)
    assert isinstance(done.exception, EdgeError)
    assert re.search(told, str(done.exception))
