"""The contract between what asks for text and what writes it.

A `Generator` answers messages, token by token, and may be given documents to answer from. It is used by one thread at a
time and holds its memory under the budget it was opened with.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from edge.errors import InputError
from edge.predictor import PromptWork

Finish = Literal["stop", "length", "cancelled"]
"""Why an answer ended: by itself or at a stop string, at its longest, or because nobody wanted more."""

ROLES = ("system", "user", "assistant")


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen.

    Attributes:
        temperature: 0 takes the most probable token (greedy); above, probabilities are flattened by it.
        top_p: only the most probable tokens that together reach this probability (nucleus sampling).
        min_p: only tokens at least this fraction as probable as the most probable one.
        seed: the same seed gives the same text.
        stop: the answer ends before the first of these strings.
        max_tokens: the longest answer.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    max_tokens: int = 256

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise InputError(f"a temperature is 0 (greedy) or above, not {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise InputError(f"top_p is above 0 and at most 1, not {self.top_p}")
        if not 0 <= self.min_p <= 1:
            raise InputError(f"min_p is within 0 and 1, not {self.min_p}")
        if not 0 <= self.seed < 2**32 - 1:
            raise InputError(f"a seed is within 0 and {2**32 - 2}, not {self.seed}")
        if self.max_tokens < 1:
            raise InputError(f"an answer has at least 1 token, not {self.max_tokens}")
        if isinstance(self.stop, str) or not all(self.stop):
            raise InputError("stop is a tuple of strings, none of them empty")


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation; the role is `system`, `user` or `assistant`."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Document:
    """A passage to answer from.

    Attributes:
        id: names it in traces; two documents with the same id and text are the same.
        text: the passage.
        title: where it is from, for the model to read; not part of the passage.
    """

    id: str
    text: str
    title: str = ""


@dataclass(frozen=True, slots=True)
class Piece:
    """One token of an answer.

    Attributes:
        text: its text; the texts of an answer's pieces, joined, are the answer. Empty for a token that ends within a
            character, whose last token then carries it.
        token: its number in the vocabulary; None where the generator has no vocabulary of its own.
        logprob: natural logarithm of the probability the model gave it, at temperature 1 and before top_p and min_p;
            None where that is not known.
    """

    text: str
    token: int | None = None
    logprob: float | None = None


@dataclass(frozen=True, slots=True)
class GenerationStats:
    """What one answer took.

    Attributes:
        prompt_tokens: tokens of everything the model read.
        cached_tokens: those of them whose states need not be computed.
        new_tokens: tokens of the answer.
        ttft_s: seconds to the first token, from the call on.
        seconds: seconds to the end.
        dropped_documents: documents left out, from the end, since the context does not hold them.
        finish: why it ended.
        restored_tokens: those of the cached tokens whose states had to be copied into the context, which took
            `restore_s` of the time to the first token.
    """

    prompt_tokens: int
    cached_tokens: int
    new_tokens: int
    ttft_s: float
    seconds: float
    dropped_documents: int = 0
    finish: Finish = "stop"
    restored_tokens: int = 0
    restore_s: float = 0.0

    @property
    def work(self) -> PromptWork:
        """What reading the prompt took."""
        return PromptWork(self.prompt_tokens - self.cached_tokens, self.restored_tokens)


class Generator(Protocol):
    """Writes text."""

    name: str
    """Names the model in results and traces."""

    context: int
    """Tokens of prompt and answer together, at most."""

    follows_instructions: bool
    """False where the answer is not written to order (sentences picked from documents): pipelines that ask for a
    rewritten question or a judgement need a generator that does."""

    @property
    def stats(self) -> GenerationStats | None:
        """What the last answer took; None before the first."""
        ...

    def stream(
        self,
        messages: Sequence[Message],
        sampling: Sampling,
        *,
        documents: Sequence[Document] = (),
        cancel: threading.Event | None = None,
    ) -> Iterator[Piece]:
        """Answers, token by token.

        Args:
            messages: an optional system message first, then turns of user and assistant. A last turn of the assistant
                is an answer begun already, and is continued.
            documents: passages between system message and conversation, most important first, numbered from 1 in
                this order. What the context does not hold beside the answer (`answer_room`) is left out from the end.
            cancel: ends the answer before its next token, once set.

        Raises:
            InputError: no messages, an unknown role, or a conversation that does not fit the context without documents.
            ModelError: the model failed, or cannot be reached.
        """
        ...

    def count(self, text: str) -> int:
        """Tokens of a text (an estimate where the vocabulary is not at hand)."""
        ...

    def close(self) -> None:
        """Gives all memory back."""
        ...


@runtime_checkable
class ReusesStates(Protocol):
    """A generator that knows beforehand which tokens of a prompt it will not compute."""

    def prompt_work(self, messages: Sequence[Message], documents: Sequence[Document], sampling: Sampling) -> PromptWork:
        """What reading a prompt would take now. Raises as `Generator.stream` does."""
        ...

    def cached_order(
        self,
        messages: Sequence[Message],
        documents: Sequence[Document],
        sampling: Sampling,
        *,
        scores: Sequence[float],
        tolerance: float,
    ) -> list[int]:
        """Numbers of documents in the order of which the longest beginning is cached (`edge.document_order`). Raises
        as `Generator.stream` does."""
        ...


def numbered(document: Document, number: int) -> str:
    """A document as a model reads it: `[number] title`, then the text, then an empty line."""
    heading = f"[{number}] {document.title}\n" if document.title else f"[{number}] "
    return f"{heading}{document.text}\n\n"


def answer_room(context: int, max_tokens: int) -> int:
    """Tokens that documents leave free for the answer: its longest length, but no more than a fourth of the context."""
    return min(max_tokens, context // 4)


def check_messages(messages: Sequence[Message]) -> None:
    """Checks a conversation's shape.

    Raises:
        InputError: it is empty, has an unknown role, a system message after the first, or no turn of the user.
    """
    for position, message in enumerate(messages):
        if message.role not in ROLES or (message.role == "system" and position > 0):
            raise InputError(
                f"message {position + 1} has the role {message.role!r}; roles are user, assistant, and system "
                f"for the first"
            )
    if not any(message.role == "user" for message in messages):
        raise InputError(f"there is nothing to answer: {len(messages)} messages and none of them the user's")
