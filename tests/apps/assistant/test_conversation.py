"""Follow-up questions."""

from __future__ import annotations

from edge.apps.assistant.answer import Answer, AnswerStats
from edge.apps.assistant.citations import Citation
from edge.apps.assistant.conversation import Turn, recent, standalone


def turn(question: str, text: str, *titles: str) -> Turn:
    cited = tuple(Citation(n, n, f"/{n}.md", 1, 1, 1, None, title, "", None) for n, title in enumerate(titles, 1))
    return Turn(question, question, Answer(text, cited, AnswerStats()))


def test_a_follow_up_is_joined_with_the_question_it_continues() -> None:
    turns = [turn("What is a mill?", "A place."), turn("Who built the bridge?", "Anna Berg.")]
    assert standalone("When was it built?", turns) == "Who built the bridge? When was it built?"
    assert standalone("Where is the town of Kell in the valley?", turns) == "Where is the town of Kell in the valley?"
    assert standalone("When was it built?", []) == "When was it built?"


def test_what_is_new_leaves_the_last_question_behind_and_stays_in_its_document() -> None:
    turns = [turn("How much is the rent?", "It is 870 euros. [1]", "Tenancy agreement", "Prices")]
    assert standalone("and the deposit?", turns) == "the deposit? Tenancy agreement"
    assert standalone("What about pets?", turns) == "pets? Tenancy agreement"
    assert standalone("And who gets it?", turns) == "How much is the rent? And who gets it?"
    assert standalone("and that?", turns) == "How much is the rent? and that?"
    turns = [turn("How much is the rent?", "This is not in the documents.")]
    assert standalone("and the deposit?", turns) == "How much is the rent? and the deposit?"


def test_only_the_last_turns_are_remembered_and_only_their_beginnings() -> None:
    turns = [turn(f"Question {i}?", "word " * 500) for i in range(9)]
    shown = recent(turns)
    assert [asked for asked, _ in shown] == ["Question 6?", "Question 7?", "Question 8?"]
    assert all(len(said) <= 400 for _, said in shown)
