"""`ReplayGenerator`: answers written down beforehand, given again at a stated speed.

TeleRAG's measuring method (section 5.1): what a model wrote in every step of a pipeline is recorded once and replayed
with the same lengths, so that latencies compare across models, machines and arms of an experiment. The processor is
free while the generator waits, as where the model runs on an accelerator. As with a real model, the next token is begun
when it is asked for: whatever the caller does between two tokens delays the second one.

A recording is JSONL. Its first line is `{"format": "edge-replay/1", "name": ..., "context": ..., "prefill": tokens per
second, "decode": tokens per second}` (speeds may be missing, and are then given at opening); every other line is one
answer: `{"messages": [{"role", "content"}, ...], "prompt_tokens": n, "pieces": [[text, logprob or null], ...]}`. In
place of `"pieces"` there may be `"text"` with `"tokens"`, their number, or with `"letters"`, the length of each, and
perhaps `"logprobs"` in hundredths. `"finish"` says how the answer ended, if not by itself. Without `"messages"`,
answers come in their order; `"for"` then names what was asked.
"""

from __future__ import annotations

import itertools
import json
import math
import threading
import time
from collections.abc import Generator as Iteration
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast, get_args

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
    finish: Finish = "stop"


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
        takes = record.prompt_tokens / self.speed.prefill
        first, new = 0.0, 0
        finish: Finish = "cancelled"
        try:
            for piece in record.pieces[:most]:
                if cancel.wait(takes + 1 / self.speed.decode):
                    return
                takes = 0.0
                first = first or time.perf_counter()
                new += 1
                yield piece
            finish = record.finish if len(record.pieces) <= most else "length"
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
    """A `Generator` that passes another's answers on and writes each down.

    Attributes:
        asked: names what is being answered. Where it is set, answers are written to be given by turn, as far as they
            were read: a pipeline that stops reading does so again. Otherwise complete answers are written, to be found
            by their messages.
    """

    def __init__(self, generator: Generator, path: str | Path, *, speed: Speed | None = None) -> None:
        """Begins a recording, in place of what was there.

        Raises:
            StorageError: the file cannot be written.
        """
        self._generator = generator
        self.name = generator.name
        self.context = generator.context
        self.follows_instructions = generator.follows_instructions
        self.asked = ""
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
        pieces: list[Piece] = []
        complete = False
        answer = self._generator.stream(messages, sampling, documents=documents, cancel=cancel)
        try:
            with closing(cast("Iteration[Piece, None, None]", answer)):
                for piece in answer:
                    pieces.append(piece)
                    yield piece
            complete = True
        except GeneratorExit:
            complete = bool(self.asked)
            raise
        finally:
            stats = self._generator.stats
            if complete and stats is not None and (self.asked or stats.finish != "cancelled"):
                self._write(self._line(messages, pieces, stats))

    def _line(self, messages: Sequence[Message], pieces: Sequence[Piece], stats: GenerationStats) -> dict[str, Any]:
        if not self.asked:
            return {
                "messages": [{"role": message.role, "content": message.content} for message in messages],
                "prompt_tokens": stats.prompt_tokens,
                "pieces": [[piece.text, piece.logprob] for piece in pieces],
            }
        line: dict[str, Any] = {
            "for": self.asked,
            "prompt_tokens": stats.prompt_tokens,
            "text": "".join(piece.text for piece in pieces),
            "letters": [len(piece.text) for piece in pieces],
        }
        if all(piece.logprob is not None for piece in pieces):
            line["logprobs"] = [round(100 * (piece.logprob or 0.0)) for piece in pieces]
        return line if stats.finish == "stop" else {**line, "finish": stats.finish}

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
    finish = data.get("finish", "stop")
    if finish not in get_args(Finish):
        raise ValueError(f"an answer that ended by {finish!r}")
    return _Record(tuple(_pieces(data)), int(data["prompt_tokens"]), finish)


def _pieces(data: dict[str, Any]) -> list[Piece]:
    if "pieces" in data:
        return [Piece(str(text), None, None if logprob is None else float(logprob)) for text, logprob in data["pieces"]]
    text = str(data["text"])
    if "letters" in data:
        ends = [0, *itertools.accumulate(int(length) for length in data["letters"])]
        if ends[-1] != len(text) or ends != sorted(ends):
            raise ValueError(f"the lengths of its tokens do not add up to {len(text)} letters")
    else:
        tokens = int(data["tokens"])
        if not 1 <= tokens <= _LONGEST:
            raise ValueError(f"an answer of {tokens} tokens")
        ends = [len(text) * i // tokens for i in range(tokens + 1)]
    sure = [int(value) / 100 for value in data["logprobs"]] if "logprobs" in data else [None] * (len(ends) - 1)
    return [
        Piece(text[start:end], None, logprob)
        for (start, end), logprob in zip(itertools.pairwise(ends), sure, strict=True)
    ]


def _key(messages: Sequence[Message]) -> tuple[tuple[str, str], ...]:
    return tuple((message.role, message.content) for message in messages)
