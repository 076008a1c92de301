"""`ReplayGenerator`: answers written down beforehand, given again at a stated speed.

TeleRAG's measuring method (section 5.1): what a model wrote in every step of a pipeline is recorded once and replayed
with the same lengths, so that latencies compare across models, machines and arms of an experiment. The processor is
free meanwhile, as where the model runs on an accelerator.

A recording is JSONL. Its first line is `{"format": "edge-replay/1", "name": ..., "context": ..., "prefill": tokens per
second, "decode": tokens per second}` (speeds may be missing, and are then given at opening); every other line is one
answer: `{"messages": [{"role", "content"}, ...], "prompt_tokens": n, "pieces": [[text, logprob or null], ...]}`, or
`"text"` with `"tokens"` in place of `"pieces"`. Without `"messages"`, answers come in their order.
"""

from __future__ import annotations

import itertools
import json
import math
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from edge.errors import InputError, ModelError, StorageError
from edge.runtimes.generation.base import (
    Document,
    Finish,
    GenerationStats,
    Generator,
    Message,
    Piece,
    Sampling,
    check_messages,
)

FORMAT = "edge-replay/1"

_LETTERS_PER_TOKEN = 4
_LONGEST = 1_000_000
"""Tokens of an answer; a recording that claims more is damaged."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Tokens per second of reading a prompt and of writing an answer; infinite takes no time."""

    prefill: float
    decode: float

    def __post_init__(self) -> None:
        if not (self.prefill > 0 and self.decode > 0):
            raise InputError(f"speeds are above 0 tokens per second, not {self.prefill} and {self.decode}")


@dataclass(frozen=True, slots=True)
class _Record:
    pieces: tuple[Piece, ...]
    prompt_tokens: int


class ReplayGenerator:
    """A `Generator` that gives recorded answers. Each is found by its messages (not by its documents, which an
    experiment may find in another order), or, where the recording names none, by its turn."""

    follows_instructions = True

    def __init__(self, path: str | Path, *, speed: Speed | None = None) -> None:
        """Reads a recording.

        Args:
            speed: instead of the recording's own.

        Raises:
            ModelError: there is no such file, it is no recording, or it has no speed and none is given.
        """
        path = Path(path)
        recording = _Recording.read(path)
        self._records, self._turns = recording.by_messages, recording.by_turn
        self.name = recording.name or path.stem
        self.context = recording.context
        speed = speed or recording.speed
        if speed is None:
            raise ModelError(f"{path} was recorded without speeds: give tokens per second of prefill and decode")
        self.speed = speed
        self._path = path
        self._next = 0
        self._stats: GenerationStats | None = None

    @property
    def stats(self) -> GenerationStats | None:
        """What the last answer took; None before the first."""
        return self._stats

    def count(self, text: str) -> int:
        """Tokens of a text, estimated from its letters."""
        return math.ceil(len(text) / _LETTERS_PER_TOKEN)

    def rewind(self) -> None:
        """Answers that are given by their turn begin again, such as for the next arm of an experiment."""
        self._next = 0

    def seconds(self, messages: Sequence[Message]) -> float:
        """How long the recorded answer to these messages takes; answers given by turn: how long the next one does."""
        record = self._find(messages)
        return record.prompt_tokens / self.speed.prefill + len(record.pieces) / self.speed.decode

    def stream(
        self,
        messages: Sequence[Message],
        sampling: Sampling,
        *,
        documents: Sequence[Document] = (),
        cancel: threading.Event | None = None,
    ) -> Iterator[Piece]:
        """The recorded answer, each token when it is due; of `sampling`, `max_tokens` counts.

        Raises:
            InputError: nothing was recorded for these messages.
        """
        check_messages(messages)
        record = self._find(messages)
        if not self._records:
            self._next += 1
        return self._answer(record, sampling.max_tokens, cancel or threading.Event())

    def close(self) -> None:
        """Nothing is held."""

    def _find(self, messages: Sequence[Message]) -> _Record:
        if self._records:
            record = self._records.get(_key(messages))
            if record is None:
                raise InputError(
                    f"{self._path} has no answer to {messages[-1].content[:80]!r} among its {len(self._records):,}; "
                    f"record this pipeline anew"
                )
            return record
        if self._next >= len(self._turns):
            raise InputError(f"{self._path} has {len(self._turns):,} answers, and all have been given; rewind it")
        return self._turns[self._next]

    def _answer(self, record: _Record, most: int, cancel: threading.Event) -> Iterator[Piece]:
        called = time.perf_counter()
        due = called + record.prompt_tokens / self.speed.prefill
        first, new = 0.0, 0
        finish: Finish = "cancelled"
        try:
            for piece in record.pieces[:most]:
                due += 1 / self.speed.decode
                if cancel.wait(max(0.0, due - time.perf_counter())):
                    return
                first = first or time.perf_counter()
                new += 1
                yield piece
            finish = "stop" if len(record.pieces) <= most else "length"
        finally:
            ended = time.perf_counter()
            self._stats = GenerationStats(
                prompt_tokens=record.prompt_tokens,
                cached_tokens=0,
                new_tokens=new,
                ttft_s=(first or ended) - called,
                seconds=ended - called,
                finish=finish,
            )


class Recorder:
    """A `Generator` that passes another's answers on and writes each down when it is complete."""

    def __init__(self, generator: Generator, path: str | Path, *, speed: Speed | None = None) -> None:
        """Begins a recording, in place of what was there.

        Raises:
            StorageError: the file cannot be written.
        """
        self._generator = generator
        self.name = generator.name
        self.context = generator.context
        self.follows_instructions = generator.follows_instructions
        self._path = Path(path)
        header = {"format": FORMAT, "name": self.name, "context": self.context}
        if speed is not None:
            header |= {"prefill": speed.prefill, "decode": speed.decode}
        try:
            self._file: IO[str] = self._path.open("w", encoding="utf-8")
        except OSError as error:
            raise StorageError(f"{self._path} cannot be written: {error.strerror}") from error
        self._write(header)

    @property
    def stats(self) -> GenerationStats | None:
        """What the last answer took; None before the first."""
        return self._generator.stats

    def count(self, text: str) -> int:
        """Tokens of a text."""
        return self._generator.count(text)

    def stream(
        self,
        messages: Sequence[Message],
        sampling: Sampling,
        *,
        documents: Sequence[Document] = (),
        cancel: threading.Event | None = None,
    ) -> Iterator[Piece]:
        """The other generator's answer."""
        pieces = []
        for piece in self._generator.stream(messages, sampling, documents=documents, cancel=cancel):
            pieces.append(piece)
            yield piece
        stats = self._generator.stats
        if stats is not None and stats.finish != "cancelled":
            self._write(
                {
                    "messages": [{"role": message.role, "content": message.content} for message in messages],
                    "prompt_tokens": stats.prompt_tokens,
                    "pieces": [[piece.text, piece.logprob] for piece in pieces],
                }
            )

    def close(self) -> None:
        """Ends the recording; the other generator stays open."""
        self._file.close()

    def _write(self, line: dict[str, Any]) -> None:
        try:
            self._file.write(json.dumps(line, ensure_ascii=False) + "\n")
            self._file.flush()
        except OSError as error:
            raise StorageError(f"{self._path} cannot be written: {error.strerror}") from error


@dataclass(slots=True)
class _Recording:
    """A recording's contents: answers by messages, or by turn."""

    name: str = ""
    context: int = 2**31
    speed: Speed | None = None
    by_messages: dict[tuple[tuple[str, str], ...], _Record] = field(default_factory=dict)
    by_turn: list[_Record] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> _Recording:
        recording, number = cls(), 0
        try:
            with path.open(encoding="utf-8") as file:
                for number, line in enumerate(file, 1):
                    (recording._begin if number == 1 else recording._add)(json.loads(line))
        except OSError as error:
            raise ModelError(f"{path} cannot be read: {error.strerror}") from error
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError, InputError) as error:
            raise ModelError(f"{path} is no recording of answers: line {number}: {error}") from error
        if recording.by_messages and recording.by_turn:
            raise ModelError(f"{path}: {len(recording.by_turn)} of its answers name no messages, though others do")
        if not recording.by_messages and not recording.by_turn:
            raise ModelError(f"{path} has no answers in it")
        return recording

    def _begin(self, header: dict[str, Any]) -> None:
        if header["format"] != FORMAT:
            raise ValueError(f"its format is {header['format']!r}, not {FORMAT!r}")
        self.name = str(header.get("name", ""))
        self.context = int(header.get("context", self.context))
        if "prefill" in header and "decode" in header:
            self.speed = Speed(float(header["prefill"]), float(header["decode"]))

    def _add(self, data: dict[str, Any]) -> None:
        if "messages" in data:
            self.by_messages[_key([Message(**message) for message in data["messages"]])] = _record(data)
        else:
            self.by_turn.append(_record(data))


def _record(data: dict[str, Any]) -> _Record:
    if "pieces" in data:
        pieces = [
            Piece(str(text), None, None if logprob is None else float(logprob)) for text, logprob in data["pieces"]
        ]
    else:
        text, tokens = str(data["text"]), int(data["tokens"])
        if not 1 <= tokens <= _LONGEST:
            raise ValueError(f"an answer of {tokens} tokens")
        cuts = [len(text) * i // tokens for i in range(tokens + 1)]
        pieces = [Piece(text[start:end]) for start, end in itertools.pairwise(cuts)]
    return _Record(tuple(pieces), int(data["prompt_tokens"]))


def _key(messages: Sequence[Message]) -> tuple[tuple[str, str], ...]:
    return tuple((message.role, message.content) for message in messages)
