"""`LlamaContext`: a sequence of tokens with KV states in llama.cpp; `LlamaSampler` chooses the next; `ReadingRoom` is a
context in which prompts are computed for sequences of another one."""

from __future__ import annotations

import copy
import ctypes
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.budget import Lease
from edge.errors import InputError, ModelError
from edge.kv_cache.backend import KVBackend, State
from edge.runtimes.generation.base import Sampling
from edge.runtimes.generation.llama_model import LlamaModel, Said

TILE = 64
"""llama.cpp's flash attention multiplies tiles from this number of tokens on. With fewer it works row by row."""

_TILE_WIDTH = 16
"""Keys and values are multiplied in tiles only if their width is a multiple of this."""

LINEAR = 1500
"""In tiles, attention to this many tokens takes as long as all other work on a token (measured on 0.1 B parameters)."""

ROW_BY_ROW = 6
"""Ratio of a token's time for attention row by row to that in a tile, between 3.5 (AMD EPYC) and 10 (Xeon)."""


@dataclass(frozen=True, slots=True)
class ContextShape:
    """The sizes of a context: tokens, tokens computed at a time, threads, sequences that share cells."""

    tokens: int
    batch: int
    threads: int
    sequences: int = 1


Cancelled = Callable[[], bool]


class LlamaContext:
    """A sequence of tokens at positions 0 ... length-1, in a context of its own or one of several in a context.

    Alone, position p always lies in cell p, and the sequence changes only at its end, so equal tokens in equal batches
    have bit for bit equal states."""

    def __init__(self, model: LlamaModel, shape: ContextShape, lease: Lease | None = None) -> None:
        """Allocates caches and buffers, under a lease that is released when the context is closed."""
        self.model = model
        self.shape = shape
        self.length = 0
        self.number, self.aside = 0, shape.sequences
        """The sequence's number in its context, and that of the empty one through which states are copied."""
        self.row = -1
        """The row of the last batch with this sequence's logits."""
        self.logits_of: LlamaContext = self
        """The context whose last batch has this sequence's logits."""
        self.room: ReadingRoom | None = None
        self.moved = False
        """Whether keys were moved, which llama.cpp rotates only in its next batch."""
        self.backend: KVBackend | None = None
        """The context's states for a knowledge tree; None if they cannot be parted."""
        self._lease = lease
        self._owns = True
        self.slice = shape.batch
        """Tokens, in whole tiles, that are computed at a time. The last slice has at least one tile, so states are
        those of the whole batch."""
        self._api: Any = model.library.api
        with model.library.listening() as said:
            pointer = self._api.llama_init_from_model(model.pointer, self._params())
        if not pointer:
            raise ModelError(f"{model.file.path}: no context of {shape.tokens:,} tokens can be made: {said.reason}")
        self.pointer: Any = pointer
        self.said: Said = said
        self.memory = self._api.llama_get_memory(pointer)
        # A small context can have a smaller batch than requested.
        self.batch = int(self._api.llama_n_ubatch(pointer))
        self.together = min(TILE - 1, self.batch)
        """Most tokens of a step. From a tile on, attention would compute the cells of all sequences for all of them."""
        self.capacity = int(self._api.llama_n_ctx(pointer))
        """Number of tokens that the context can hold."""
        self.cells = self.capacity - TILE
        """Number of cells that the sequences' tokens may take; the others are for rows that fill a tile."""
        # Rows that fill a tile are removed again, so the model must allow that.
        tiled = all(width and width % _TILE_WIDTH == 0 for width in model.file.head_widths)
        self._fills = tiled and self.batch >= TILE and model.reusable
        self.scratch = np.empty(model.vocabulary, np.float32)
        """Memory for a copy of the logits."""
        self._tokens = np.zeros(shape.batch, np.int32)
        self._positions = np.zeros(shape.batch, np.int32)
        self._wanted = np.zeros(shape.batch, np.int8)
        self._batch = self._make_batch()

    def sequence(self, number: int) -> LlamaContext:
        """Another sequence of the same context. The first one closes the context."""
        other = copy.copy(self)
        other.number, other.length, other.backend, other._lease, other._owns = number, 0, None, None, False
        other.logits_of, other.moved = other, False
        return other

    def append(
        self, tokens: Sequence[int], *, done: int = 0, cancelled: Callable[[], bool] | None = None, logits: bool = False
    ) -> int:
        """Appends `tokens`, of which the context holds the first `done` (`reusable`), with `logits` also those of the
        last. Once `cancelled` returns True nothing more is computed. Returns how many the context holds then."""
        if self.length + (new := len(tokens) - done) > self.capacity:
            raise InputError(f"{new:,} tokens after {self.length:,} do not fit the context of {self.capacity:,} tokens")
        if self.room is not None and self.room.takes(self, new):
            return self.room.append(self, tokens, done, cancelled, logits)
        start, self.logits_of = self.length, self
        for first, end in self._slices(done, len(tokens)):
            if cancelled is not None and cancelled():
                break
            part = tokens[first:end]
            last = end == len(tokens)
            rows = self._rows(len(part))
            self._tokens[: len(part)] = part
            # Rows that fill a tile come after all others, so that no token attends to them.
            self._tokens[len(part) : rows] = part[-1]
            self._positions[:rows] = np.arange(self.length, self.length + rows)
            self._numbers[:rows] = self.number
            self._wanted[:] = 0
            self._wanted[len(part) - 1] = logits and last
            self.row = -1
            code = self._decode(rows)
            if code != 0:
                self.truncate(start)
                raise ModelError(f"llama.cpp failed on {len(part)} tokens after {self.length:,}, with code {code}")
            self.length += rows
            self.truncate(self.length - rows + len(part))
        return done + self.length - start

    def reusable(self, common: int, tokens: int) -> int:
        """How many of the first `common` of `tokens` tokens may stay. At least one is computed again."""
        if self.shape.sequences > 1:
            return min(common, tokens - 1)
        batches = min(common, tokens - 1) // self.batch * self.batch
        return max(batches, min(common, tokens - TILE) // TILE * TILE if self.batch % TILE == 0 else 0)

    def rotate(self) -> None:
        """Has moved keys rotated, by a batch of one token that is removed again."""
        self.append([0])
        self.truncate(self.length - 1)
        self.moved = False

    def step(self, texts: Sequence[tuple[LlamaContext, Sequence[int]]]) -> None:
        """Appends tokens to each of several sequences of this context, and computes the logits behind each at once."""
        self._wanted[:] = 0
        ends = list(accumulate(len(tokens) for _, tokens in texts))
        for end, (sequence, tokens) in zip(ends, texts, strict=True):
            rows = slice(end - len(tokens), end)
            self._tokens[rows], self._numbers[rows] = tokens, sequence.number
            self._positions[rows] = range(sequence.length, sequence.length + len(tokens))
            self._wanted[end - 1] = 1
        if (code := self._decode(ends[-1])) != 0:
            raise ModelError(f"llama.cpp failed on {ends[-1]} tokens of {len(texts)} answers, with code {code}")
        for end, (sequence, tokens) in zip(ends, texts, strict=True):
            sequence.row, sequence.logits_of = end - 1, sequence
            sequence.length += len(tokens)

    def logits(self) -> npt.NDArray[np.float32]:
        """The logits of the token after the last one, [vocabulary]; valid until the next `append`."""
        source = self.logits_of
        pointer = self._api.llama_get_logits_ith(source.pointer, source.row)
        return np.ctypeslib.as_array(pointer, (self.model.vocabulary,))

    def truncate(self, length: int) -> None:
        """Removes positions from `length` on, or all positions if the states cannot be cut (`LlamaModel.reusable`)."""
        if length >= self.length:
            return
        if self.shape.sequences > 1:
            self._api.llama_memory_seq_rm(self.memory, self.number, length, -1)
            self.moved = self.moved and length > 0
            if self.room is not None:
                self.room.cut(self, length)
        elif length == 0 or not self._api.llama_memory_seq_rm(self.memory, self.number, length, -1):
            self._api.llama_memory_clear(self.memory, False)
            length = 0
        self.length = length

    def close(self) -> None:
        """Frees the context, if this is its first sequence. A second call does nothing."""
        pointer, self.pointer = self.pointer, None
        if pointer and self._owns:
            self._api.llama_free(pointer)
        if self._lease is not None:
            self._lease.release()

    def _slices(self, done: int, tokens: int) -> Iterator[tuple[int, int]]:
        for batch in range(done - done % self.batch, tokens, self.batch):
            first, end = max(batch, done), min(batch + self.batch, tokens)
            while end - first >= (size := self.slice) + TILE:  # which may change before the slice is computed
                yield first, first + size
                first += size
            yield first, end

    def _rows(self, tokens: int) -> int:
        """Rows to compute for `tokens`: as many, or a whole tile if faster; by number and position only."""
        fits = self._fills and tokens < TILE and self.length + TILE <= self.capacity
        alone = tokens * (LINEAR + ROW_BY_ROW * self.length)
        return TILE if fits and TILE * (LINEAR + self.length) < alone else tokens

    def _params(self) -> Any:
        params = self._api.llama_context_default_params()
        params.n_ctx = self.shape.tokens
        params.n_batch = params.n_ubatch = self.shape.batch
        params.n_seq_max = params.n_outputs_max = self.shape.sequences + 1
        params.kv_unified = True
        params.offload_kqv = params.op_offload = False
        # A layer with sliding-window attention keeps the states of its window only.
        params.swa_full = False
        params.n_threads = params.n_threads_batch = self.shape.threads
        return params

    def _decode(self, rows: int) -> int:
        self._batch.n_tokens = rows
        return self.model.library.decode(self.pointer, self._batch)

    def _make_batch(self) -> Any:
        """A batch over our own arrays. Every token is in one sequence, at a position that we set."""
        api, rows = self._api, self.shape.batch
        self._counts = (ctypes.c_int32 * rows)(*[1] * rows)
        self._numbers = np.zeros(rows, np.int32)
        start, width = self._numbers.ctypes.data, self._numbers.itemsize
        sequence = ctypes.POINTER(api.llama_seq_id)
        self._sequences = (sequence * rows)(
            *[ctypes.cast(ctypes.c_void_p(start + row * width), sequence) for row in range(rows)]
        )
        batch = api.llama_batch()
        batch.token = self._tokens.ctypes.data_as(ctypes.POINTER(api.llama_token))
        batch.pos = self._positions.ctypes.data_as(ctypes.POINTER(api.llama_pos))
        batch.n_seq_id = ctypes.cast(self._counts, ctypes.POINTER(ctypes.c_int32))
        batch.seq_id = ctypes.cast(self._sequences, ctypes.POINTER(ctypes.POINTER(api.llama_seq_id)))
        batch.logits = self._wanted.ctypes.data_as(ctypes.POINTER(ctypes.c_int8))
        return batch


class LlamaSampler:
    """The sampler for one answer. Two samplers with the same settings make the same choices."""

    def __init__(self, api: Any, sampling: Sampling) -> None:
        self._api = api
        self._greedy = sampling.temperature == 0
        self._chain = api.llama_sampler_chain_init(api.llama_sampler_chain_default_params())
        for sampler in [] if self._greedy else self._samplers(sampling):
            api.llama_sampler_chain_add(self._chain, sampler)  # the chain owns it now

    def choose(self, context: LlamaContext) -> tuple[int, float]:
        """The next token after the context, and its log-probability under the model itself."""
        logits = context.logits()
        if self._greedy:  # llama.cpp's sampler would copy the whole vocabulary
            token = int(logits.argmax())
        else:
            source = context.logits_of
            token = int(self._api.llama_sampler_sample(self._chain, source.pointer, source.row))
        return token, log_probability(logits, token, context.scratch)

    def close(self) -> None:
        chain, self._chain = self._chain, None
        if chain:
            self._api.llama_sampler_free(chain)

    def _samplers(self, sampling: Sampling) -> list[Any]:
        api, chain = self._api, []
        if sampling.top_p < 1:
            chain.append(api.llama_sampler_init_top_p(sampling.top_p, 1))
        return [*chain, api.llama_sampler_init_temp(sampling.temperature), api.llama_sampler_init_dist(sampling.seed)]


def log_probability(logits: npt.NDArray[np.float32], token: int, scratch: npt.NDArray[np.float32]) -> float:
    """Logarithm of the softmax of `logits` [vocabulary] at `token`; `scratch` [vocabulary] is written over."""
    highest = logits.max()
    np.exp(np.subtract(logits, highest, out=scratch), out=scratch)
    return float(logits[token] - highest) - math.log(scratch.sum())


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
