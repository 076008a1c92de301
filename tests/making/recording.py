"""Recordings of a generator's answers: `Recorder` writes one, and `Recording` is the content of one.

A recording is JSONL. Its first line is `{"format": "edge-replay/1", "name": ..., "context": ..., "prefill": tokens per
second, "decode": tokens per second}`. Speeds may be missing, and are then given at opening. Every other line is one
answer: `{"messages": [{"role", "content"}, ...], "prompt_tokens": n, "pieces": [[text, logprob or null], ...]}`. In
place of `"pieces"` there may be `"text"` together with `"tokens"` (their number) or `"letters"` (the length of each
token), and optionally `"logprobs"` in hundredths. `"finish"` gives the reason for the end, if the answer did not end by
itself. Answers without `"messages"` are given in file order, and `"for"` names the question.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Generator as Iteration
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast, get_args

from edge.errors import InputError, ModelError, StorageError
from edge.runtimes.generation.base import Document, Finish, GenerationStats, Generator, Message, Piece, Sampling

FORMAT = "edge-replay/1"

_LONGEST = 1_000_000
"""Largest number of tokens in an answer. A recording with a larger number is damaged."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Tokens per second for reading a prompt and for writing an answer. At an infinite speed no time passes."""

    prefill: float
    decode: float

    def __post_init__(self) -> None:
        if not (self.prefill > 0 and self.decode > 0):
            raise InputError(f"speeds are above 0 tokens per second, not {self.prefill} and {self.decode}")


@dataclass(frozen=True, slots=True)
class Record:
    """One recorded answer."""

    pieces: tuple[Piece, ...]
    prompt_tokens: int
    finish: Finish = "stop"


@dataclass(slots=True)
class Recording:
    """A recording's content: answers by messages, or answers by turn."""

    name: str = ""
    context: int = 2**31
    speed: Speed | None = None
    by_messages: dict[tuple[tuple[str, str], ...], Record] = field(default_factory=dict)
    by_turn: list[Record] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> Recording:
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
            self.by_messages[key_of([Message(**message) for message in data["messages"]])] = _record(data)
        else:
            self.by_turn.append(_record(data))


def _record(data: dict[str, Any]) -> Record:
    finish = data.get("finish", "stop")
    if finish not in get_args(Finish):
        raise ValueError(f"an answer that ended by {finish!r}")
    return Record(tuple(_pieces(data)), int(data["prompt_tokens"]), finish)


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


def key_of(messages: Sequence[Message]) -> tuple[tuple[str, str], ...]:
    """The key of an answer in `Recording.by_messages`."""
    return tuple((message.role, message.content) for message in messages)


class Recorder:
    """A `Generator` that passes on another generator's answers and records each.

    If `asked` names the current question, answers are recorded without messages, to be replayed by turn, and as far as
    they were read, because a replayed pipeline stops at the same place. If it is empty, only complete answers are
    recorded, with their messages.
    """

    def __init__(self, generator: Generator, path: str | Path, *, speed: Speed | None = None) -> None:
        """Begins a recording. An existing file is overwritten."""
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
        """The figures of the last answer; None before the first."""
        return self._generator.stats

    def count(self, text: str) -> int:
        """Number of tokens of a text."""
        return self._generator.count(text)

    def stream(
        self,
        messages: Sequence[Message],
        sampling: Sampling,
        *,
        documents: Sequence[Document] = (),
        cancel: threading.Event | None = None,
    ) -> Iterator[Piece]:
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
        """Ends the recording. The other generator stays open."""
        self._file.close()

    def _write(self, line: dict[str, Any]) -> None:
        try:
            self._file.write(json.dumps(line, ensure_ascii=False) + "\n")
            self._file.flush()
        except OSError as error:
            raise StorageError(f"{self._path} cannot be written: {error.strerror}") from error
