"""Reading judged sets, and the parts of them that training may see."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from edge.models.training.corpora import Corpus, load


def write_set(directory: Path, compressed: bool = True) -> Path:
    (directory / "qrels").mkdir(parents=True)
    rows = [{"_id": f"d{n}", "title": f"title {n}", "text": f"text {n}"} for n in range(6)]
    body = "".join(json.dumps(row) + "\n" for row in rows)
    if compressed:
        with gzip.open(directory / "corpus.jsonl.gz", "wt", encoding="utf-8") as out:
            out.write(body)
    else:
        (directory / "corpus.jsonl").write_text(body, encoding="utf-8")
    queries = [{"_id": f"q{n}", "text": f"query {n}"} for n in range(4)]
    (directory / "queries.jsonl").write_text("".join(json.dumps(q) + "\n" for q in queries), encoding="utf-8")
    head = "query-id\tcorpus-id\tscore\n"
    (directory / "qrels" / "train.tsv").write_text(
        head + "q0\td0\t1\nq1\td1\t1\nq1\td2\t2\nq2\td3\t0\n", encoding="utf-8"
    )
    (directory / "qrels" / "test.tsv").write_text(head + "q3\td2\t1\nq3\td4\t0\n", encoding="utf-8")
    (directory / "answers.json").write_text(json.dumps({"q0": ["text", 3], "q1": {"final": "yes"}}), encoding="utf-8")
    return directory


@pytest.mark.parametrize("compressed", [True, False])
def test_load_reads_documents_queries_and_positive_grades(tmp_path: Path, compressed: bool) -> None:
    corpus = load(write_set(tmp_path / "tiny", compressed))
    assert corpus.name == "tiny"
    assert corpus.passages()[2] == "title 2 text 2"
    assert corpus.train == {"q0": {"d0": 1}, "q1": {"d1": 1, "d2": 2}}
    assert corpus.test == {"q3": {"d2": 1}}
    assert corpus.answers == {"q0": ["text"]}


def test_training_part_has_no_document_judged_for_a_test_query(tmp_path: Path) -> None:
    part = load(write_set(tmp_path / "tiny")).without_test_documents()
    assert part.ids == ["d0", "d1", "d3", "d4", "d5"]
    assert part.train == {"q0": {"d0": 1}, "q1": {"d1": 1}}
    assert set(part.queries) == {"q0", "q1"}
    assert part.test == {}


def test_a_set_split_by_article_loses_whole_test_articles() -> None:
    titles = ["a"] * 5 + ["b"] * 5
    corpus = Corpus(
        "articles",
        [f"d{n}" for n in range(10)],
        titles,
        ["text"] * 10,
        {"q": "query", "t": "test query"},
        {"q": {"d0": 1}},
        {"t": {"d7": 1}},
    )
    assert set(corpus.without_test_documents().titles) == {"a"}


def test_a_query_of_both_splits_is_not_trained_on() -> None:
    corpus = Corpus("both", ["d0", "d1"], ["", ""], ["x", "y"], {"q": "?"}, {"q": {"d0": 1}}, {"q": {"d1": 1}})
    assert corpus.without_test_documents().train == {}
