"""What was said before: the turns of a chat, and follow-up questions as questions that stand alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edge.apps.assistant.answer import Answer
from edge.apps.assistant.stream import AnswerStream

_WORD = re.compile(r"[^\W_]+(?:'[a-z]+)?")
_POINTING = {
    "it", "its", "it's", "they", "them", "their", "theirs", "he", "him", "his", "she", "her", "hers", "this", "that",
    "these", "those", "there", "then", "one", "ones", "former", "latter", "same", "else",
}  # fmt: skip
"""Words that stand for something said before."""

_CONTINUING = re.compile(
    r"^\s*(?:and|but|or|so|also|what about|how about|what if|why|how so|which one|when|where)\b", re.I
)
_FEW_WORDS = 3

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


def refers_back(question: str) -> bool:
    """Whether a question can be understood only after what was said before, judged by its words.

    >>> refers_back("and how long does it last?"), refers_back("how long does the warranty last?")
    (True, False)
    """
    words = [word.casefold() for word in _WORD.findall(question)]
    if any(word in _POINTING for word in words):
        return True
    return len(words) <= _FEW_WORDS and _CONTINUING.match(question) is not None


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
