"""What was said before: the turns of a chat, and follow-up questions as questions that stand alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edge.apps.assistant.answer import Answer
from edge.apps.assistant.gist import refers_back
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


def joined(question: str, turns: Sequence[Turn]) -> str:
    """A follow-up together with the question it continues: what can be done without a language model."""
    return f"{turns[-1].question.rstrip()} {question}" if turns and refers_back(question) else question


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
