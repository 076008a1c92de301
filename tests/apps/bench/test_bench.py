"""`edge bench`: every verb measures a person's own data, in processes of its own, and refuses what it cannot use."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Verb = Callable[..., Any]


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    folder = tmp_path / "documents"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.md").write_text(f"The river number {number} floods in spring.\n\nBread needs time.\n")
    return folder


def test_texts_are_ranked_with_pruning_and_at_full_depth(edge_verb: Verb, tmp_path: Path) -> None:
    line = {"query": "when does it flood", "docs": ["in spring", "bread", "ice"], "relevant": [0]}
    (tmp_path / "questions.jsonl").write_text("\n".join([json.dumps(line)] * 2))
    done = edge_verb("bench", "rerank", "questions.jsonl", "--rounds", "2", "--json")
    assert done.code == 0, done.err
    result = json.loads(done.out)
    assert set(result["medians"]) == {"pruned", "full depth"}
    assert [len(found) for found in result["rounds"].values()] == [2, 2]
    full = result["medians"]["full depth"]
    assert (full["computed"], full["questions"]) == (1.0, 2)
    assert 0 <= full["nDCG@10"] <= 1
    assert 0 < full["peak_resident"] < result["limit"]
    assert 0 < full["median_seconds"] <= full["p95_seconds"] < full["first_question_seconds"]


def test_a_collection_is_searched_and_the_files_that_answer_are_counted(
    edge_verb: Verb, tmp_path: Path, documents: Path
) -> None:
    assert edge_verb("index", "documents", "-c", "store").code == 0
    lines = [json.dumps({"query": "number 1 floods", "path": "documents"}), "what needs time"]
    (tmp_path / "questions.txt").write_text("\n".join(lines))
    done = edge_verb("bench", "search", "questions.txt", "-c", "store", "--rounds", "1", "--json")
    assert done.code == 0, done.err
    rows = json.loads(done.out)["medians"]
    assert set(rows) == {"reranked", "not reranked"}
    assert all(row["found"] == 1 and row["questions"] == 2 for row in rows.values())
    shown = edge_verb("bench", "search", "questions.txt", "-c", "store", "--rounds", "1").out
    assert "100.0%" in shown
    assert "peak" in shown


def test_folders_are_indexed_and_nothing_stays(edge_verb: Verb, tmp_path: Path, documents: Path) -> None:
    done = edge_verb("bench", "index", "documents", "--rounds", "1", "--json")
    assert done.code == 0, done.err
    row = json.loads(done.out)["medians"]["index"]
    assert row["files"] == 3
    assert row["passages"] >= 3
    assert row["nbytes"] > 0
    assert 0 < row["comparing_again_seconds"] < row["whole_process_seconds"]
    assert edge_verb("collections").out.count("documents") == 0


@pytest.mark.parametrize(
    ("arguments", "text", "says"),
    [
        (("rerank", "questions"), '{"query": "q", "docs": []}', "line 1 needs a query and docs"),
        (("rerank", "questions"), "a question alone", "line 1 needs a query and docs"),
        (("search", "questions"), "\n", "no questions"),
        (("search", "questions"), '{"query": ', "line 1 is no JSON object"),
        (("search", "questions"), '{"path": "a.md"}', "line 1 needs a query"),
        (("index", "absent"), "", "absent"),
        (("rerank", "--memory", "1MB", "--rounds", "1"), "", "smallest memory limit that works"),
    ],
)
def test_data_that_cannot_be_used_is_refused(
    edge_verb: Verb, tmp_path: Path, arguments: tuple[str, ...], text: str, says: str
) -> None:
    (tmp_path / "questions").write_text(text)
    done = edge_verb("bench", *arguments)
    assert done.code == 2
    assert says in done.err
