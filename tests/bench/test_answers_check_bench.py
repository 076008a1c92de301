"""`answers-check`: statements are made right and wrong, and the check is counted on them."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

from naive.program import output_of

from bench.answers_check import altered, statements
from bench.command import bench
from edge.models.training.corpora import Corpus

TEXT = (
    "Jane Austen wrote Emma in 1815. The novel has 55 chapters. Its heroine is Emma Woodhouse of Highbury. It is "
    "praised. It is long. Later Virginia Woolf wrote of it in 1925, on 12 pages."
)
QUESTION, ANSWER = "Who wrote Emma?", "Jane Austen"


def test_a_question_with_its_answer_is_a_right_statement_and_its_alterations_are_wrong() -> None:
    corpus = Corpus("set", ["d"], ["Emma"], [TEXT], {"q": QUESTION}, test={"q": {"d": 1}}, answers={"q": [ANSWER]})
    made = list(statements(corpus, 5, corpus.test))
    right = {each.kind: each.text for each in made if each.right}
    assert right == {
        "sentence": "Jane Austen wrote Emma in 1815.", "reworded": "Jane Austen wrote Emma.",
        "reworded, introduced": "According to the passage, Jane Austen wrote Emma.",
    }  # fmt: skip
    wrong = [(each.kind, each.text) for each in made if not each.right]
    assert ("date of the same passage", "Jane Austen wrote Emma in 1925.") in wrong
    found = altered("The novel has 55 chapters.", TEXT, "It has 70 rooms.", random.Random(0))
    assert found["number of the same passage"] == "The novel has 12 chapters."
    assert found["number of another passage"] == "The novel has 70 chapters."
    assert found["negation"] == "The novel has not 55 chapters."


def test_facts_of_passages_beside_it_are_exchanged() -> None:
    texts = [TEXT, "Emma Stone won a prize in 2017.", "The river floods in spring."]
    corpus = Corpus("set", ["d", "e", "f"], ["Emma", "", ""], texts, {"q": QUESTION}, test={"q": {"d": 1}},
                    answers={"q": [ANSWER]})  # fmt: skip
    made = list(statements(corpus, 5, corpus.test, 1))
    assert {each.beside for each in made} == {(("", texts[1]),)}
    wrong = [(each.kind, each.text) for each in made if not each.right]
    assert ("date of one beside it", "Jane Austen wrote Emma in 2017.") in wrong


def test_the_check_is_counted_on_a_judged_set(tmp_path: Path) -> None:
    (tmp_path / "qrels").mkdir()
    with gzip.open(tmp_path / "corpus.jsonl.gz", "wt") as file:
        file.write(json.dumps({"_id": "d", "title": "Emma", "text": TEXT}))
    (tmp_path / "queries.jsonl").write_text(json.dumps({"_id": "q", "text": QUESTION}))
    for split in ("train", "test"):
        (tmp_path / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\nq\td\t1\n")
    (tmp_path / "answers.json").write_text(json.dumps({"q": [ANSWER]}))
    rows = json.loads(output_of(bench, "answers-check", str(tmp_path), "--json"))["rows"]
    name = tmp_path.name
    assert rows[f"{name}, right: all"] == {"statements": 3.0, "flagged": 0.0}
    assert rows[f"{name}, wrong: all"]["statements"] > 0
    assert rows[f"{name}, wrong: all"]["found"] < 1, "a date of another sentence is not noticed"
    assert rows == json.loads(output_of(bench, "answers-check", str(tmp_path), "--train", "--json"))["rows"]
