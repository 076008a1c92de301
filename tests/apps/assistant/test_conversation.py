"""Follow-up questions."""

from __future__ import annotations

from edge.apps.assistant.answer import Answer, AnswerStats
from edge.apps.assistant.conversation import Turn, joined, recent


def turn(question: str, text: str) -> Turn:
    return Turn(question, question, Answer(text, (), AnswerStats()))


def test_a_follow_up_is_joined_with_the_question_it_continues() -> None:
    turns = [turn("What is a mill?", "A place."), turn("Who built the bridge?", "Anna Berg.")]
    assert joined("When was it built?", turns) == "Who built the bridge? When was it built?"
    assert joined("Where is the town of Kell in the valley?", turns) == "Where is the town of Kell in the valley?"
    assert joined("When was it built?", []) == "When was it built?"


def test_only_the_last_turns_are_remembered_and_only_their_beginnings() -> None:
    turns = [turn(f"Question {i}?", "word " * 500) for i in range(9)]
    shown = recent(turns)
    assert [asked for asked, _ in shown] == ["Question 6?", "Question 7?", "Question 8?"]
    assert all(len(said) <= 400 for _, said in shown)
