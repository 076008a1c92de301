"""The interface of generators, which write text.

A `Generator` answers messages, token by token, and can take documents to answer from. It is used by one thread at a
time. Its memory is leased from the budget that it was opened with. `Stopping` ends its text at stop strings.
"""

from __future__ import annotations

import codecs
import math
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, runtime_checkable

from edge.errors import InputError
from edge.scheduling.predictor import PromptWork
from edge.text.control_characters import CONTROL

Finish = Literal["stop", "length", "cancelled"]
"""The reason why an answer ended: `stop` (by itself or at a stop string), `length` (`max_tokens`), or `cancelled`."""

ROLES = ("system", "user", "assistant")


@dataclass(frozen=True, slots=True)
class Sampling:
    """The settings by which the next token is chosen.

    Attributes:
        temperature: 0 takes the most probable token (greedy); larger values flatten the probabilities.
        top_p: only the most probable tokens that together reach this probability are used (nucleus sampling).
        seed: the same seed gives the same text.
        stop: the answer ends before the first of these strings.
        max_tokens: largest number of tokens in the answer.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    max_tokens: int = 256

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise InputError(f"a temperature is 0 (greedy) or above, not {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise InputError(f"top_p is above 0 and at most 1, not {self.top_p}")
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


class Quotable(Protocol):
    """A part of a passage, with its text as it is quoted."""

    @property
    def text(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Document:
    """A passage to answer from.

    Attributes:
        id: the document's name in traces. Documents with the same id and text are the same.
        text: the passage.
        title: the passage's source. The model reads it, but it is not part of the passage.
        parts: the parts of the passage that can be quoted; its sentences if None.
    """

    id: str
    text: str
    title: str = ""
    parts: Sequence[Quotable] | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Piece:
    """One token of an answer.

    Attributes:
        text: the token's text. The joined texts of all pieces are the answer. Empty for a token that ends inside a
            character; the character's last token has the whole character.
        token: the token's number in the vocabulary; None if the generator has no vocabulary.
        logprob: natural logarithm of the token's probability under the model, at temperature 1 and before top_p;
            None if it is not known.
    """

    text: str
    token: int | None = None
    logprob: float | None = None


@dataclass(frozen=True, slots=True)
class GenerationStats:
    """The tokens and times of one answer.

    Attributes:
        prompt_tokens: number of tokens in the prompt.
        cached_tokens: prompt tokens with cached states, which were not computed.
        new_tokens: number of tokens in the answer.
        ttft_s: seconds from the call to the first token.
        seconds: seconds from the call to the end.
        dropped_documents: number of documents that did not fit the context. The last ones are left out.
        finish: the reason why the answer ended.
        restored_tokens: cached tokens with states that were copied into the context. The copies took `restore_s` of the
            time to the first token.
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
        """The work of reading the prompt."""
        return PromptWork(self.prompt_tokens - self.cached_tokens, self.restored_tokens)


class Generator(Protocol):
    name: str
    """The model's name in results and traces."""

    context: int
    """Largest number of tokens in prompt and answer together."""

    follows_instructions: bool
    """Whether the generator follows instructions. False for one that only picks sentences from documents. Pipelines
    that ask for a rewritten question or a judgement need a generator that follows instructions."""

    @property
    def stats(self) -> GenerationStats | None:
        """The figures of the last answer; None before the first."""

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
            messages: an optional system message, then turns of user and assistant. If the last turn is the assistant's,
                it is the beginning of the answer and is continued.
            documents: passages, most important first. They stand between system message and conversation and are
                numbered from 1. The last documents are left out if they do not fit the context beside the answer
                (`answer_room`).
            cancel: when this event is set, the answer ends before its next token.

        Raises:
            InputError: no messages, an unknown role, or a conversation that does not fit the context without documents.
            ModelError: the model failed, or cannot be reached.
        """

    def count(self, text: str) -> int:
        """Number of tokens of a text, or an estimate if the vocabulary is not available."""

    def close(self) -> None:
        """Closes the generator and frees all memory."""


@runtime_checkable
class ReusesStates(Protocol):
    """A generator that knows in advance which tokens of a prompt have cached states."""

    def prompt_work(self, messages: Sequence[Message], documents: Sequence[Document], sampling: Sampling) -> PromptWork:
        """The work of reading a prompt now. Raises the errors of `Generator.stream`."""

    def cached_order(
        self,
        messages: Sequence[Message],
        documents: Sequence[Document],
        sampling: Sampling,
        *,
        scores: Sequence[float],
        tolerance: float,
    ) -> list[int]:
        """Numbers of the documents in the order whose cached beginning is longest (`edge.kv_cache.backend`)."""

    def read_ahead(self, ids: Sequence[str]) -> None:
        """Begins to read the stored states of documents that the next prompt will probably hold, likeliest first."""


@runtime_checkable
class WritesElsewhere(Protocol):
    """A generator that may leave the processor to others while it writes."""

    @property
    def elsewhere(self) -> bool:
        """Whether another process runs the model."""


def numbered(document: Document, number: int) -> str:
    """A document in the form that a model reads: `[number] title`, the text, an empty line."""
    heading = f"[{number}] {document.title}\n" if document.title else f"[{number}] "
    return f"{heading}{document.text}\n\n"


def answer_room(context: int, max_tokens: int) -> int:
    """Number of tokens that documents leave free for the answer: `max_tokens`, but at most a fourth of the context."""
    return min(max_tokens, context // 4)


def check_messages(messages: Sequence[Message]) -> None:
    """Checks a conversation's shape.

    Raises:
        InputError: the conversation is empty, or has an unknown role, a system message after the first message, or no
            turn of the user.
    """
    for position, message in enumerate(messages):
        if message.role not in ROLES or (message.role == "system" and position > 0):
            raise InputError(
                f"message {position + 1} has the role {message.role!r}; roles are user, assistant, and system "
                f"for the first"
            )
    if not any(message.role == "user" for message in messages):
        raise InputError(f"there is nothing to answer: {len(messages)} messages and none of them the user's")


class Stopping:
    """Holds tokens back as long as they may be the beginning of a stop string. Pieces stay whole tokens, except that in
    which one begins."""

    def __init__(self, stop: Sequence[str]) -> None:
        self.stopped = False
        self._stop = tuple(stop)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held: list[Piece] = []

    def push(self, data: bytes, token: int | None, logprob: float | None) -> Iterator[Piece]:
        """Takes the next token's bytes, and yields all pieces that are certain now. Yields nothing after `stopped`."""
        yield from self.push_text(self._decoder.decode(data), token, logprob)

    def push_text(self, text: str, token: int | None, logprob: float | None) -> Iterator[Piece]:
        """Like `push`, for a token that is already text."""
        if self.stopped:
            return
        # Control characters are dropped before the search, because without them the text may form a stop string.
        text = CONTROL.sub("", text)
        self._held.append(Piece(text, token, logprob))
        held = "".join(piece.text for piece in self._held)
        found = min((at for at in map(held.find, self._stop) if at >= 0), default=-1)
        if found >= 0:
            self.stopped = True
            yield from self._release(found)
            self._held.clear()
        else:
            yield from self._release(len(held) - self._begun(held))

    def finish(self) -> Iterator[Piece]:
        """Ends the answer: yields the held tokens, and a replacement mark for an incomplete character."""
        if self.stopped:
            return
        yield from self._held
        self._held.clear()
        if rest := self._decoder.decode(b"", final=True):
            yield Piece(rest)

    def _begun(self, held: str) -> int:
        longest = max(map(len, self._stop), default=0)
        for start in range(max(0, len(held) - longest + 1), len(held)):
            if any(stop.startswith(held[start:]) for stop in self._stop):
                return len(held) - start
        return 0

    def _release(self, characters: int) -> Iterator[Piece]:
        """Yields the pieces within the first `characters`, the last one cut there."""
        while self._held and (len(self._held[0].text) <= characters):
            piece = self._held.pop(0)
            characters -= len(piece.text)
            yield piece
        if self.stopped and characters and self._held:
            yield replace(self._held[0], text=self._held[0].text[:characters])
