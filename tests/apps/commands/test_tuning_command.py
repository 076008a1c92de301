"""`edge index --tune` and `edge plan index`: what they print, change and refuse."""

from __future__ import annotations

import re
from typing import Any

import pytest
from making.synth import synth

from edge.budget import MemoryBudget
from edge.runtimes.embedder import Embedder
from tests.apps.commands.conftest import Edge

ROWS = 330


@pytest.fixture(scope="module")
def edge(tmp_path_factory: pytest.TempPathFactory) -> Edge:
    """A collection of short files, and questions."""
    folder = tmp_path_factory.mktemp("home").resolve()
    synth("tiny-bert-embedder", folder / "models" / "tiny-embedder").close()
    documents = folder / "documents"
    documents.mkdir()
    words = ["river", "bread", "ice", "salt", "stone", "wind", "sand", "fire", "snow", "cloud", "leaf", "root"]
    for number in range(ROWS):
        chosen = [words[number % 12], words[number // 12 % 12], words[number // 30 % 12]]
        (documents / f"{number}.md").write_text(f"The {' and the '.join(chosen)} number {number}.\n")
    (folder / "few").mkdir()
    (folder / "few" / "one.md").write_text("Bread needs time.\n")
    (folder / "questions.txt").write_text("".join(f"where is the {a} of the {b}\n" for a in words for b in words[:5]))
    edge = Edge(folder, folder)
    edge.said("index", "documents", "-c", "store")
    edge.said("index", "few", "-c", "small")
    return edge


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here depends on how exact the times are."""
    monkeypatch.setattr("edge.planner.candidates._ROUNDS", 1)


def found(edge: Edge) -> set[tuple[str, str]]:
    """The results of some queries, each with its query."""
    queries = ["the river", "bread and salt", "ice on a stone", "wind in the leaf", "a cloud of sand", "fire and snow"]
    return {
        (query, hit["path"])
        for query in queries
        for hit in edge.json("search", query, "-c", "store", "--no-rerank")["results"]
    }


def made_of(edge: Edge) -> dict[str, Any]:
    """How the index is made. Rows may move to segments at any time, and then its files change."""
    status = edge.json("status", "-c", "store")["index"]
    return {name: status[name] for name in ("rows", "lists", "codec", "tuned")}


def test_tuning_says_what_it_chose_and_why_and_is_done_once(edge: Edge) -> None:
    before = found(edge)
    said = edge.said("index", "-c", "store", "--tune", "--recall", "0.9")
    assert "tuned for a recall of 0.9: " in said
    assert "predicted to be the fastest: " in said
    assert "ms per query, a recall of " in said
    again = edge.json("index", "-c", "store", "--tune", "--recall", "0.9")["tuning"]
    assert again["changed"] is False
    assert again["rows"] == ROWS
    assert again["recall"] >= 0.9
    assert again["goal"] == {"recall": 0.9, "seconds": None, "nbytes": None}
    assert "already tuned" in edge.said("index", "-c", "store", "--tune", "--recall", "0.9")
    status = edge.json("status", "-c", "store")["index"]
    assert status["tuned"]["parameters"]["codec"] == again["codec"]
    # A recall is a mean over queries; a single query may find less.
    assert len(before & found(edge)) >= len(before) / 2
    assert "tuning" not in edge.json("index", "-c", "store")


def test_questions_of_one_s_own_and_bytes(edge: Edge) -> None:
    done = edge.json(
        "index", "-c", "store", "--tune", "--within", "1000", "--lists-size", "20kB", "--questions",
        "questions.txt",
    )["tuning"]  # fmt: skip
    assert done["changed"] is True
    assert done["nbytes"] <= 20_000
    assert done["goal"] == {"recall": None, "seconds": 1.0, "nbytes": 20_000}


def test_questions_in_memory_are_leased_beside_an_open_embedder(edge: Edge, monkeypatch: pytest.MonkeyPatch) -> None:
    reserve, embed, owners = MemoryBudget.reserve, Embedder.embed, []

    def reserved(self: MemoryBudget, owner: str, nbytes: int, **more: Any) -> Any:
        owners.append(owner)
        return reserve(self, owner, nbytes, **more)

    def embedded(self: Embedder, texts: list[str], **more: Any) -> Any:
        assert self.engine.budget.holders().get("questions", 0) > sum(map(len, texts))
        return embed(self, texts, **more)

    monkeypatch.setattr(MemoryBudget, "reserve", reserved)
    monkeypatch.setattr(Embedder, "embed", embedded)
    edge.said("index", "-c", "store", "--tune", "--recall", "0.8", "--questions", "questions.txt")
    assert owners.index("tokenizer") < owners.index("questions"), "the embedder is open"


def test_a_plan_changes_nothing(edge: Edge) -> None:
    before = made_of(edge)
    here = edge.json("plan", "index", "-c", "store", "--recall", "0.8")
    assert (here["origin"], here["rows"]) == ("predicted", ROWS)
    there = edge.json("plan", "index", "-c", "store", "--recall", "0.6", "--on", "fpga")
    assert there["codec"] in ("pq", "opq")
    assert there["queries_per_s"] > 0
    assert there["units"]["scanning"] >= 1
    assert 0 < there["luts"] <= 0.6 * 83_640
    assert there["origin"]["frequency"] == "assumed"
    said = edge.said("plan", "index", "-c", "store", "--recall", "0.6", "--on", "fpga")
    # The host's part of the time is measured in each run, so another design may be as fast in this one.
    assert re.search(r"scanning [1-9]\d*, with queues of [1-9]\d* that lead", said)
    assert "has not run on a board" in said
    assert made_of(edge) == before


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["index", "-c", "store", "--recall", "0.9"], "--recall says what the index is tuned to: it needs --tune"),
        (["index", "-c", "store", "--lists-size", "1MB"], "it needs --tune"),
        (["index", "-c", "store", "--tune", "--recall", "1.5"], "at most 1, not 1.5"),
        (["index", "-c", "store", "--tune", "--within", "0"], "above 0, not 0 ms"),
        (["index", "-c", "store", "--tune", "--lists-size", "much"], "is not a size"),
        (["index", "-c", "store", "--tune", "--lists-size", "10B"], "no codec keeps the lists"),
        (["index", "-c", "store", "--tune", "--questions", "absent.txt"], "absent.txt"),
        (["index", "-c", "small", "--tune"], "at least 200 vectors, and there are 1"),
        (["plan", "index", "-c", "small"], "at least 200 vectors, and there are 1"),
        (["plan", "index", "-c", "store", "--recall", "0"], "above 0"),
    ],
)
def test_wishes_that_cannot_be_met_are_one_sentence(edge: Edge, arguments: list[str], reason: str) -> None:
    before = made_of(edge)
    said = edge.refused(*arguments)
    assert reason in said
    assert "\n" not in said
    assert made_of(edge) == before
