"""`ReplayGenerator`: replays recorded answers at a given speed.

This is the measuring method of TeleRAG (section 5.1). A model's answers in every step of a pipeline are recorded once
and replayed with the same lengths, so that latencies can be compared across models, machines and arms of an experiment.
The processor is free while the generator waits, as if the model ran on an accelerator. As with a real model, the next
token is begun when it is requested, so the caller's work between two tokens delays the second one.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from edge.errors import InputError, ModelError
from edge.runtimes.generation.base import (
    Document,
    Finish,
    GenerationStats,
    Message,
    Piece,
    Sampling,
    check_messages,
)
from making.recording import Record, Recording, Speed, key_of

_LETTERS_PER_TOKEN = 4


class ReplayGenerator:
    """A `Generator` that gives recorded answers. An answer is found by its messages, or by its turn if the recording
    has no messages. Documents are ignored, because an experiment may find them in another order."""

    follows_instructions = True

    def __init__(self, path: str | Path, *, speed: Speed | None = None) -> None:
        """`speed` replaces the recording's own."""
        path = Path(path)
        recording = Recording.read(path)
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
        """The figures of the last answer; None before the first."""
        return self._stats

    def count(self, text: str) -> int:
        """Estimated number of tokens of a text, from its letters."""
        return math.ceil(len(text) / _LETTERS_PER_TOKEN)

    def seconds(self, messages: Sequence[Message]) -> float:
        """Seconds that the recorded answer to these messages takes, or the next answer in a recording by turns."""
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
        """The recorded answer, with each token at its time. Of `sampling` only `max_tokens` is used."""
        check_messages(messages)
        record = self._find(messages)
        if not self._records:
            self._next += 1
        return self._answer(record, sampling.max_tokens, cancel or threading.Event())

    def close(self) -> None:
        """Does nothing, because this generator holds no memory."""

    def _next_token(self, prompt_tokens: int, cancel: threading.Event) -> bool:
        """Spends the time of a new token, and of the prompt before the first one. Returns whether it was cancelled."""
        return cancel.wait(prompt_tokens / self.speed.prefill + 1 / self.speed.decode)

    def _find(self, messages: Sequence[Message]) -> Record:
        if self._records:
            record = self._records.get(key_of(messages))
            if record is None:
                raise InputError(
                    f"{self._path} has no answer to {messages[-1].content[:80]!r} among its {len(self._records):,}; "
                    f"record this pipeline anew"
                )
            return record
        if self._next >= len(self._turns):
            raise InputError(
                f"{self._path} has {len(self._turns):,} answers, and all have been given; a new ReplayGenerator begins "
                "with the first"
            )
        return self._turns[self._next]

    def _answer(self, record: Record, most: int, cancel: threading.Event) -> Iterator[Piece]:
        called = time.perf_counter()
        prompt_tokens, first, new = record.prompt_tokens, 0.0, 0
        finish: Finish = "cancelled"
        try:
            for piece in record.pieces[:most]:
                if self._next_token(prompt_tokens, cancel):
                    return
                prompt_tokens = 0
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
