"""The turns of a chat, and the rewriting of follow-up questions so that they stand alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edge.apps.assistant.answer import Answer
from edge.apps.assistant.judged_question import new_topic, refers_back
from edge.apps.assistant.stream import AnswerStream

_REMEMBERED = 3
"""Number of turns shown to the generator. Follow-up questions seldom refer to older ones."""

_REMEMBERED_CHARS = 400


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of a conversation.

    Attributes:
        asked: the question as the user put it.
        question: the question in a form that is understood without the conversation.
        answer: its answer.
    """

    asked: str
    question: str
    answer: Answer


def recent(turns: Sequence[Turn]) -> list[tuple[str, str]]:
    """The last turns as (question, answer) pairs; long answers are cut."""
    return [(turn.question, turn.answer.text[:_REMEMBERED_CHARS]) for turn in turns[-_REMEMBERED:]]


def standalone(question: str, turns: Sequence[Turn]) -> str:
    """Rewrites a follow-up question, without a language model, so that it can be searched for without the
    conversation.

    A question that refers back is appended to the question before it. A question that only names a new topic replaces
    the question before it, and the title of the last answer's first citation is appended, so that the search stays
    near the same document.
    """
    if not turns:
        return question
    last = turns[-1]
    if topic := new_topic(question):
        titles = dict.fromkeys(citation.title or citation.path for citation in last.answer.citations[:1])
        return " ".join([f"{topic}?", *titles]) if titles else f"{last.question.rstrip()} {question}"
    return f"{last.question.rstrip()} {question}" if refers_back(question) else question


class Conversation:
    """A chat, in which questions may refer to earlier turns."""

    def __init__(self, ask: Callable[[str, Sequence[Turn], Callable[[Turn], None]], AnswerStream]) -> None:
        """Starts an empty conversation. `ask` is the assistant's function that streams an answer."""
        self.turns: list[Turn] = []
        self._ask = ask

    def stream(self, question: str) -> AnswerStream:
        """Streams the answer to a question. Once the stream has ended, its text, even if cut short, is a turn of the
        conversation."""
        return self._ask(question, tuple(self.turns), self.turns.append)

    def ask(self, question: str) -> Answer:
        """The whole answer."""
        return self.stream(question).answer
