"""`--device`: where vectors are searched beside the host."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edge.apps.collection.collection import Collection
from edge.config import Config

Verb = Callable[..., Any]
WORDS = ("river", "flood", "bread", "salt", "ice", "snow", "spring", "water")


@pytest.fixture
def indexed(edge_verb: Verb, tmp_path: Path) -> Path:
    """A collection of enough passages for maintenance to have written a segment of them."""
    texts = tmp_path / "texts"
    texts.mkdir()
    for number in range(40):
        words = [WORDS[(number * 3 + i * i) % len(WORDS)] for i in range(12)]
        (texts / f"{number}.txt").write_text(f"Note {number}: {' '.join(words)}.\n")
    assert edge_verb("index", str(texts), "-c", str(tmp_path / "notes"), EDGE_MEMORY="8GB").code == 0
    with Collection(tmp_path / "notes", memory="8GB") as collection:
        assert collection.vectors is not None
        collection.vectors.maintain(collection.database.write, full=True)
    return tmp_path / "notes"


@pytest.mark.parametrize(
    "device",
    [
        "limited:cap=4MB", "remote:cap=4MB", "fpga:cap=4MB", "searchers:of=cpu,count=3,cap=4MB",
        "limited:cap=4MB,count=2",
    ],
)  # fmt: skip
def test_a_search_on_a_device_finds_the_same(edge_verb: Verb, indexed: Path, device: str) -> None:
    def hits(*options: str) -> list[tuple[str, float]]:
        ended = edge_verb("search", "river", "flood", "-c", str(indexed), "--json", "--no-rerank", *options,
                          EDGE_MEMORY="8GB")  # fmt: skip
        assert ended.code == 0, ended.err
        return [(hit["id"], hit["score"]) for hit in json.loads(ended.out)["results"]]

    assert hits("--device", device) == hits()
    with Collection(indexed, memory="8GB", config=Config.load(flags={"device": device})) as collection:
        collection.search("river flood", rerank=False)
        index = collection.vectors
        assert index is not None
        place = index._searcher.place
        assert place is not None
        assert len(place.residency) > 0, "the setting reaches the index, and the device holds what was searched"


@pytest.mark.parametrize(
    ("verb", "device", "says"),
    [
        ("search", "abacus", "there is no device 'abacus'"), ("ask", "abacus", "there is no device 'abacus'"),
        ("search", "limited:color=red", "color"), ("search", "remote:cap=0", "0"),
    ],
)  # fmt: skip
def test_a_device_that_cannot_be_opened_is_an_error(
    edge_verb: Verb, indexed: Path, verb: str, device: str, says: str
) -> None:
    ended = edge_verb(verb, "river", "-c", str(indexed), "--device", device, EDGE_MEMORY="8GB")
    assert ended.code == 2
    assert says in ended.err
    assert ended.err.count("\n") == 1


def test_figures_of_a_modelled_device_say_so(edge_verb: Verb, indexed: Path) -> None:
    def search(*options: str) -> Any:
        return edge_verb("search", "river", "-c", str(indexed), "--no-rerank", *options, EDGE_MEMORY="8GB")

    shown = search("--stats", "--device", "fpga:cap=4MB").err
    assert "modelled 1 request of a query would take the accelerator" in shown
    assert "nothing of that was measured" in shown
    figures = json.loads(search("--json", "--device", "fpga:cap=4MB").out)["stats"]["modelled"]
    assert figures["queries"] == 1
    assert 0 < figures["seconds"] < 0.01
    assert 0 < figures["joules"] < 1
    assert "modelled" not in search("--stats").err
    assert "modelled" not in json.loads(search("--json").out)["stats"]


def test_an_answer_uses_the_device(edge_verb: Verb, indexed: Path) -> None:
    def answered(*options: str) -> dict[str, Any]:
        ended = edge_verb("ask", "river flood?", "-c", str(indexed), "--json", "--no-rerank", *options,
                          EDGE_MEMORY="8GB")  # fmt: skip
        assert ended.code == 0, ended.err
        document: dict[str, Any] = json.loads(ended.out)
        return document

    plain, modelled = answered(), answered("--device", "fpga:cap=4MB")
    assert modelled["text"] == plain["text"]
    assert modelled["stats"]["modelled_queries"] > plain["stats"]["modelled_queries"] == 0
