"""`ReplayGenerator`: gives the answers of a trace at a given speed.

This is the measuring method of TeleRAG (section 5.1): a model's answers in every step of a pipeline are replayed with
the same lengths, so that latencies can be compared across models, machines and arms of an experiment. The processor is
free while the generator waits, as if the model ran on an accelerator. As with a real model, the next token is begun
when it is requested, so the caller's work between two tokens delays the second one.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from edge.runtimes.generation.base import Document, Finish, GenerationStats, Message, Piece, Sampling

_LETTERS_PER_TOKEN = 4


class ReplayGenerator:
    """A `Generator` that gives the answers of a trace in their order, whatever it is asked.

    A trace has a line `{"prompt_tokens": n, "pieces": [[text, log probability], ...]}` for each answer. `prefill` and
    `decode` are tokens per second; at an infinite speed no time passes. `elsewhere`: as a server, it does not wait
    until a token is asked for.
    """

    follows_instructions = True
    context = 2**31

    def __init__(self, path: Path, *, prefill: float, decode: float, elsewhere: bool = False) -> None:
        self.name = path.stem
        self.stats: GenerationStats | None = None
        self._answers = map(json.loads, path.read_text(encoding="utf-8").splitlines())
        self._prefill, self._decode, self.elsewhere = prefill, decode, elsewhere

    def count(self, text: str) -> int:
        """Estimated number of tokens of a text, from its letters."""
        return math.ceil(len(text) / _LETTERS_PER_TOKEN)

    def stream(
        self,
        messages: Sequence[Message],
        sampling: Sampling,
        *,
        documents: Sequence[Document] = (),
        cancel: threading.Event | None = None,
    ) -> Iterator[Piece]:
        """The next answer, with each token at its time. Of `sampling` only `max_tokens` is used."""
        return self._answer(next(self._answers), sampling.max_tokens, cancel or threading.Event())

    def close(self) -> None:
        """Does nothing, because this generator holds no memory."""

    def _answer(self, record: dict[str, object], most: int, cancel: threading.Event) -> Iterator[Piece]:
        pieces, prompt_tokens = record["pieces"], record["prompt_tokens"]
        assert isinstance(pieces, list)
        assert isinstance(prompt_tokens, int)
        called, first, new = time.perf_counter(), 0.0, 0
        finish: Finish = "cancelled"
        due = called
        try:
            for text, logprob in pieces[:most]:
                due = due if self.elsewhere else time.perf_counter()
                due += (0 if new else prompt_tokens / self._prefill) + 1 / self._decode
                if cancel.wait(due - time.perf_counter()):
                    return
                first = first or time.perf_counter()
                new += 1
                yield Piece(text, None, logprob)
            finish = "stop" if len(pieces) <= most else "length"
        finally:
            ended = time.perf_counter()
            self.stats = GenerationStats(
                prompt_tokens=prompt_tokens, cached_tokens=0, new_tokens=new, ttft_s=(first or ended) - called,
                seconds=ended - called, finish=finish,
            )  # fmt: skip
