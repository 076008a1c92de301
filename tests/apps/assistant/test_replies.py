"""Reading the replies of models, in the forms they really use."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.apps.assistant import replies


@pytest.mark.parametrize(
    ("reply", "meaning"),
    [
        ("yes", True), ("Yes.", True), ("**No**", False), ("no, it does not", False), ("Answer: yes", True),
        ("I think not", False), ("", None), ("perhaps", None), ("The answer to this is yes", None),
    ],
)  # fmt: skip
def test_verdicts(reply: str, meaning: bool | None) -> None:
    assert replies.verdict(reply) is meaning


@pytest.mark.parametrize(
    ("reply", "value"), [("Fully", 1.0), ("partly supported", 0.5), ("not supported", 0.0), ("hm", None)]
)
def test_support(reply: str, value: float | None) -> None:
    assert replies.support(reply) == value


def test_grades_outside_the_scale_are_none() -> None:
    assert replies.grade("4 of 5") == 4
    assert replies.grade("Grade: 5") == 5
    assert replies.grade("10") is None
    assert replies.grade("good") is None


def test_questions_lose_numbers_bullets_labels_and_repetitions() -> None:
    reply = (
        "Here are the sub-questions:\n1. Who built the bridge?\n- Where was she born?\n"
        "3) who built the bridge?\n\nQ4: What is a mill?\n* And why?"
    )
    assert replies.questions(reply, 4) == [
        "Who built the bridge?", "Where was she born?", "What is a mill?", "And why?",
    ]  # fmt: skip
    assert replies.questions(reply, 2) == ["Who built the bridge?", "Where was she born?"]


def test_questions_without_question_marks_are_still_questions() -> None:
    assert replies.questions("Topics:\n1. builder of the bridge\n2. her birthplace", 4) == [
        "builder of the bridge", "her birthplace",
    ]  # fmt: skip
    assert replies.questions("...\n\n", 4) == []


def test_one_line_is_the_first_with_words() -> None:
    assert replies.one_line('\n  \n"Who built it?"\nI hope this helps.') == "Who built it?"
    assert replies.one_line("Question: Who built it?") == "Who built it?"
    assert replies.one_line(" \n--\n") == ""


def test_refusals_are_recognized_in_any_case() -> None:
    assert replies.refused("Not in the documents.")
    assert not replies.refused("The documents say so.")


@given(st.text(max_size=200))
def test_no_reply_is_too_odd(reply: str) -> None:
    assert replies.verdict(reply) in (True, False, None)
    assert len(replies.questions(reply, 3)) <= 3
    assert "\n" not in replies.one_line(reply).strip()
