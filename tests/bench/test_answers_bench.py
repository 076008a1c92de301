"""The question set of the benchmark `answers` and how an answer is judged."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from bench.answers import KINDS, Question, copy_documents, holds, judge, questions, summary
from edge.apps.assistant.answer import Answer, AnswerStats
from edge.apps.assistant.citations import Citation


def test_every_answer_stands_in_its_document(tmp_path: Path) -> None:
    documents = copy_documents(tmp_path)
    asked = questions()
    assert len(asked) >= 100
    assert set(Counter(question.kind for question in asked)) == set(KINDS)
    for question in asked:
        assert bool(question.answers) == (question.kind not in ("near", "other-name", "far"))
        if question.file:
            text = " ".join((documents / question.file).read_text("utf-8").split())
            assert all(answer in text for answer in question.answers), question


def test_no_document_is_in_both_halves() -> None:
    halves = {(question.file, question.half) for question in questions() if question.file}
    assert len(halves) == len({file for file, _ in halves})


@pytest.mark.parametrize(
    ("text", "wanted", "held"),
    [
        ("It costs 45 euros.", "45 euros", True),
        ("It costs 145 euros.", "45 euros", False),
        ("Within SIX\nweeks", "six weeks", True),
        ("`KEEP=5`", "KEEP=5", True),
        ("50", "5", False),
    ],
)
def test_answers_are_held_as_whole_words(text: str, wanted: str, held: bool) -> None:
    assert holds(text, wanted) is held


def test_an_answer_is_right_if_it_is_shown_from_the_right_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("# Rent\n\nIt is due\nat once.\n\nThe rent is 870 euros.\n")
    question = Question("plain", "How much?", "judge", "a.md", ("870 euros",))
    citation = Citation(1, 1, str(tmp_path / "a.md"), 6, 1, 6, None, "", "", 0.9)
    answer = Answer("The rent is 870 euros. [1]", (citation,), AnswerStats())

    def outcome(given: Answer) -> tuple[bool, bool, bool, bool]:
        found = judge(question, given, tmp_path, 0.0)
        return found.found, found.shown, found.first, found.line

    assert outcome(answer) == (True, True, True, True)
    assert outcome(replace(answer, citations=(replace(citation, line=1),))) == (True, True, True, False)
    assert outcome(replace(answer, text="It is due at once.")) == (True, False, True, False)
    assert outcome(replace(answer, citations=(replace(citation, path="/b.md"),))) == (True, False, False, False)
    assert outcome(replace(answer, found=False)) == (False, False, True, False)
    given = (replace(answer, uncertain=True), replace(answer, found=False))
    row = summary([judge(question, one, tmp_path, 1.0) for one in given])
    assert (row["shown"], row["refused"], row["line"], row["warned"]) == (0.5, 0.5, 1.0, 0.5)
