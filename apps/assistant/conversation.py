"""What was said before: the turns of a chat, and follow-up questions as questions that stand alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edge.apps.assistant.answer import Answer
from edge.apps.assistant.judged_question import new_topic, refers_back
from edge.apps.assistant.stream import AnswerStream

_REMEMBERED = 3
"""Turns shown to the generator; what a follow-up refers to was said a moment ago."""

_REMEMBERED_CHARS = 400


@dataclass(frozen=True, slots=True)
class Turn:
    """A question as it was asked, as it stands alone, and its answer."""

    asked: str
    question: str
    answer: Answer


def recent(turns: Sequence[Turn]) -> list[tuple[str, str]]:
    """The last turns as (question, answer), cut to what a follow-up can refer to."""
    return [(turn.question, turn.answer.text[:_REMEMBERED_CHARS]) for turn in turns[-_REMEMBERED:]]


def standalone(question: str, turns: Sequence[Turn]) -> str:
    """A follow-up question as one that can be searched for without the conversation: what can be done without a
    language model.

    A question that points back is put behind the one it continues. One that only names something new leaves that
    question behind, but stays in the documents of its answer: it is asked below their titles.
    """
    if not turns:
        return question
    last = turns[-1]
    if topic := new_topic(question):
        titles = dict.fromkeys(citation.title or citation.path for citation in last.answer.citations[:1])
        return " ".join([f"{topic}?", *titles]) if titles else f"{last.question.rstrip()} {question}"
    return f"{last.question.rstrip()} {question}" if refers_back(question) else question


class Conversation:
    """A chat: questions may refer to what was said before."""

    def __init__(self, ask: Callable[[str, Sequence[Turn], Callable[[Turn], None]], AnswerStream]) -> None:
        """Starts with nothing said; `ask` is the assistant's."""
        self.turns: list[Turn] = []
        self._ask = ask

    def stream(self, question: str) -> AnswerStream:
        """The answer as it is written; when it has ended it is part of the conversation, as far as it got."""
        return self._ask(question, tuple(self.turns), self.turns.append)

    def ask(self, question: str) -> Answer:
        """The whole answer."""
        return self.stream(question).answer
