"""The household of the benchmark `household`, and how an answer is judged."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from bench.answers import holds
from bench.household import ANSWERED, SOURCE, UNANSWERED, Everyday, judge, read, summary
from edge.apps.assistant.answer import Answer, AnswerStats
from edge.apps.assistant.citations import Citation


def test_every_answer_stands_in_its_files() -> None:
    files, asked = read(SOURCE.read_text("utf-8"))
    assert len(files) >= 80
    assert len(asked) >= 150
    assert {question.language for question in asked} == {"en", "de", "fr", "es", "it"}
    assert set(Counter(question.kind for question in asked)) == {*ANSWERED, *UNANSWERED}
    for question in asked:
        assert bool(question.answers) == (question.kind in ANSWERED)
        text = "\n".join(files[file] for file in question.files)
        for wordings in question.answers:
            assert any(holds(text, word) or word.startswith("box: ") for word in wordings), question


def test_a_line_that_asks_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="asks nothing"):
        read("## en a.txt\nRent: 9\n? plain\n")


def test_an_answer_is_right_if_all_its_parts_and_files_are_shown(tmp_path: Path) -> None:
    asked = Everyday("two-place", "en", "en", "choose", "Both?", ("a.txt", "b.txt"), (("84",), ("92", "ninety-two")))
    cited = [Citation(n, n, str(tmp_path / name), 1, 1, 1, None, "", "", 0.9) for n, name in enumerate("ab", 1)]
    cited = [replace(citation, path=f"{citation.path}.txt") for citation in cited]
    answer = Answer("84 euros [1] ninety-two euros [2]", tuple(cited), AnswerStats())

    def right(given: Answer) -> bool:
        return judge(asked, given, "", tmp_path, 0.0).right

    assert right(answer)
    assert not right(replace(answer, citations=tuple(cited[:1])))
    assert not right(replace(answer, text="84 euros"))
    assert not right(replace(answer, found=False))
    wrong = judge(asked, replace(answer, text="84 euros"), str(tmp_path / "b.txt"), tmp_path, 0.0)
    assert summary([wrong])["wrong"] == 1.0
    assert summary([replace(wrong, warned=True)])["wrong"] == 0.0
    assert summary([wrong])["first"] == 1.0
    gone = replace(wrong, asked=replace(asked, answers=()))
    shares = [
        {name: summary([each])[name] for name in ("answered", "closest")} for each in (gone, replace(gone, warned=True))
    ]
    assert shares == [{"answered": 1.0, "closest": 0.0}, {"answered": 0.0, "closest": 1.0}]
