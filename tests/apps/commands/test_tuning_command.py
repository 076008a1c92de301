"""`edge index --tune` and `edge plan index`: what they print, change and refuse."""

from __future__ import annotations

import io
import json
import re
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from making.synth import synth

from edge.apps.cli import main
from edge.budget import MemoryBudget
from edge.runtimes.embedder import Embedder

ROWS = 330


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
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
    run(folder, "index", "documents", "-c", "store")
    run(folder, "index", "few", "-c", "small")
    return folder


def called(home: Path, *arguments: str) -> tuple[int, str, str]:
    """Runs `edge` in this process; returns its exit code, stdout and stderr."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stderr(err), redirect_stdout(out):
        patch.setattr("edge.planner.candidates._ROUNDS", 1)  # nothing here depends on how exact the times are
        for name, value in {
            "EDGE_MODELS_DIR": str(home / "models"), "EDGE_EMBEDDER": "tiny-embedder", "EDGE_THREADS": "1",
            "EDGE_MEMORY": "10GB", "XDG_CONFIG_HOME": str(home / "config"), "XDG_CACHE_HOME": str(home / "cache"),
            "XDG_DATA_HOME": str(home / "data"),
        }.items():  # fmt: skip
            patch.setenv(name, value)
        patch.chdir(home)
        with pytest.raises(SystemExit) as end:
            main(list(arguments))
    assert isinstance(end.value.code, int)
    assert "Traceback" not in err.getvalue()
    return end.value.code, out.getvalue(), err.getvalue()


def run(home: Path, *arguments: str) -> str:
    code, out, err = called(home, *arguments)
    assert code == 0, err
    return out


def as_json(home: Path, *arguments: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(run(home, *arguments, "--json"))
    return document


def found(home: Path) -> set[tuple[str, str]]:
    """The results of some queries, each with its query."""
    queries = ["the river", "bread and salt", "ice on a stone", "wind in the leaf", "a cloud of sand", "fire and snow"]
    return {
        (query, hit["path"])
        for query in queries
        for hit in as_json(home, "search", query, "-c", "store", "--no-rerank")["results"]
    }


def made_of(home: Path) -> dict[str, Any]:
    """How the index is made. Rows may move to segments at any time, and then its files change."""
    status = as_json(home, "status", "-c", "store")["index"]
    return {name: status[name] for name in ("rows", "lists", "codec", "tuned")}


def test_tuning_says_what_it_chose_and_why_and_is_done_once(home: Path) -> None:
    before = found(home)
    said = run(home, "index", "-c", "store", "--tune", "--recall", "0.9")
    assert "tuned for a recall of 0.9: " in said
    assert "predicted to be the fastest: " in said
    assert "ms per query, a recall of " in said
    again = as_json(home, "index", "-c", "store", "--tune", "--recall", "0.9")["tuning"]
    assert again["changed"] is False
    assert again["rows"] == ROWS
    assert again["recall"] >= 0.9
    assert again["goal"] == {"recall": 0.9, "seconds": None, "nbytes": None}
    assert "already tuned" in run(home, "index", "-c", "store", "--tune", "--recall", "0.9")
    status = as_json(home, "status", "-c", "store")["index"]
    assert status["tuned"]["parameters"]["codec"] == again["codec"]
    # A recall is a mean over queries; a single query may find less.
    assert len(before & found(home)) >= len(before) / 2
    assert "tuning" not in as_json(home, "index", "-c", "store")


def test_questions_of_one_s_own_and_bytes(home: Path) -> None:
    done = as_json(
        home, "index", "-c", "store", "--tune", "--within", "1000", "--lists-size", "20kB", "--questions",
        "questions.txt",
    )["tuning"]  # fmt: skip
    assert done["changed"] is True
    assert done["nbytes"] <= 20_000
    assert done["goal"] == {"recall": None, "seconds": 1.0, "nbytes": 20_000}


def test_questions_in_memory_are_leased_beside_an_open_embedder(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reserve, embed, owners = MemoryBudget.reserve, Embedder.embed, []

    def reserved(self: MemoryBudget, owner: str, nbytes: int, **more: Any) -> Any:
        owners.append(owner)
        return reserve(self, owner, nbytes, **more)

    def embedded(self: Embedder, texts: list[str], **more: Any) -> Any:
        assert self.engine.budget.holders().get("questions", 0) > sum(map(len, texts))
        return embed(self, texts, **more)

    monkeypatch.setattr(MemoryBudget, "reserve", reserved)
    monkeypatch.setattr(Embedder, "embed", embedded)
    run(home, "index", "-c", "store", "--tune", "--recall", "0.8", "--questions", "questions.txt")
    assert owners.index("tokenizer") < owners.index("questions"), "the embedder is open"


def test_a_plan_changes_nothing(home: Path) -> None:
    before = made_of(home)
    here = as_json(home, "plan", "index", "-c", "store", "--recall", "0.8")
    assert (here["origin"], here["rows"]) == ("predicted", ROWS)
    there = as_json(home, "plan", "index", "-c", "store", "--recall", "0.6", "--on", "fpga")
    assert there["codec"] in ("pq", "opq")
    assert there["queries_per_s"] > 0
    assert there["units"]["scanning"] >= 1
    assert 0 < there["luts"] <= 0.6 * 83_640
    assert there["origin"]["frequency"] == "assumed"
    said = run(home, "plan", "index", "-c", "store", "--recall", "0.6", "--on", "fpga")
    # The host's part of the time is measured in each run, so another design may be as fast in this one.
    assert re.search(r"scanning [1-9]\d*, with queues of [1-9]\d* that lead", said)
    assert "has not run on a board" in said
    assert made_of(home) == before


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
def test_wishes_that_cannot_be_met_are_one_sentence(home: Path, arguments: list[str], reason: str) -> None:
    before = made_of(home)
    code, out, err = called(home, *arguments)
    assert (code, out) == (2, "")
    assert reason in err
    assert len(err.strip().splitlines()) == 1, err
    assert made_of(home) == before
