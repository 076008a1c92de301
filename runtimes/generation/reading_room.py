"""`ReadingRoom`: a context in which the prompts of sequences are computed that share another one.

llama.cpp's attention to a tile of tokens goes through the used cells of all sequences of a context. So eight prompts in
one context would each pay for all of them. Here a prompt is alone, and its states are then copied to its sequence."""

from __future__ import annotations

from collections.abc import Sequence

from edge.kv_cache.backend import KVBackend, State
from edge.runtimes.generation.llama_context import Cancelled, LlamaContext

COPY_TOKENS = 64
"""Tokens whose states are copied at a time, in memory that the context's buffers account for."""

_FEWEST = 9
"""The fewest tokens that are worth the copies. Row by row attention passes the cells of others over."""


class ReadingRoom:
    """Reads one prompt after the other. Not thread-safe."""

    def __init__(self, context: LlamaContext) -> None:
        """`context` has a backend, and serves nothing else."""
        assert context.backend is not None
        self._context = context
        self._states: KVBackend = context.backend
        self._reads: LlamaContext | None = None

    def takes(self, sequence: LlamaContext, new: int) -> bool:
        """Whether the next `new` tokens of a sequence are computed here."""
        return _FEWEST <= new <= self._context.capacity - sequence.length and not sequence.moved

    def append(
        self, sequence: LlamaContext, tokens: Sequence[int], done: int, cancelled: Cancelled | None, logits: bool
    ) -> int:
        """As `LlamaContext.append`, which calls it."""
        states = self._follow(sequence)

        def stops() -> bool:
            stopped = cancelled is not None and cancelled()
            self._context.slice = sequence.slice
            return stopped

        self._context.slice = sequence.slice
        held = self._context.append(tokens, done=done, cancelled=stops, logits=logits)
        _copy(self._states, states)
        sequence.logits_of = self._context
        return held

    def move(self, sequence: LlamaContext, state: State, start: int, end: int, skip: int) -> None:
        """As `LlamaStates.move`, which calls it if the tokens and one more are taken (`takes`). The keys are rotated
        here, because a sequence with keys that are not would be read in the other context."""
        states = self._follow(sequence)
        self._states.move(state, start, end, skip)
        self._context.rotate()
        _copy(self._states, states)

    def _follow(self, sequence: LlamaContext) -> KVBackend:
        """Copies the states of a sequence that are not here; returns its states."""
        assert sequence.backend is not None
        if self._reads is not sequence:
            self._states.truncate(0)
            self._reads = sequence
        _copy(sequence.backend, self._states)
        return sequence.backend

    def cut(self, sequence: LlamaContext, length: int) -> None:
        """Hears that a sequence was cut."""
        if sequence is self._reads:
            self._states.truncate(length)


def _copy(source: KVBackend, target: KVBackend) -> None:
    """Appends the states that one context has and the other lacks."""
    for start in range(target.length, source.length, COPY_TOKENS):
        end = min(start + COPY_TOKENS, source.length)
        target.restore(source.extract(start, end), start, end)
