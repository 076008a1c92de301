"""`LlamaStates`: KV states cut out of a llama.cpp context by position, and put back (what a knowledge tree needs).

llama.cpp writes and reads the states of a whole sequence. A document's are copied to a sequence of their own, which
costs no memory since the cells are shared, and written from there; they are read into that sequence again and joined.
So a blob is as large as its own tokens.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from edge.errors import CorruptBlock, ModelError
from edge.knowledge.backend import State
from edge.runtimes.generation.file_hash import file_sha256
from edge.runtimes.generation.llama_context import ASIDE, LINEAR, LIVE, ROW_BY_ROW, TILE, LlamaContext


class LlamaStates:
    """A `KVBackend` over one context. Not thread-safe."""

    def __init__(self, context: LlamaContext, *, hashes: Path) -> None:
        """Measures how large states are; the context is empty afterwards.

        Args:
            hashes: directory where known hashes of model files are kept.

        Raises:
            ModelError: the model's states cannot be cut out, or llama.cpp failed.
        """
        self.context = context
        self._api = context.model.library.api
        self._hashes = hashes
        self._fingerprint = ""
        if not context.model.reusable:
            raise ModelError(
                f"{context.model.file.path} is recurrent, or attends to the nearest tokens only: states of single "
                f"documents cannot be cut out"
            )
        context.truncate(0)
        context.append([0, 0])
        one, two = self._nbytes(0, 1), self._nbytes(0, 2)
        context.truncate(0)
        self.bytes_per_token = two - one
        self._fixed = one - self.bytes_per_token

    @property
    def fingerprint(self) -> str:
        """Hash of all that a state depends on besides its tokens: the whole model file (which says how positions are
        rotated), context, batch, threads and the filling of tiles (they decide in which order is summed), the library,
        and the CPU's instructions."""
        if not self._fingerprint:
            context, model = self.context, self.context.model
            shape = context.shape
            parts = {
                "file": file_sha256(model.file, self._hashes),
                "tokens": context.capacity,
                "batch": context.batch,
                "tile": (TILE, LINEAR, ROW_BY_ROW),
                "threads": shape.threads,
                "kv_type": shape.kv_type,
                "library": model.library.version,
                "system": self._api.llama_print_system_info().decode(),
            }
            self._fingerprint = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
        return self._fingerprint

    @property
    def capacity(self) -> int:
        """Tokens the context can hold."""
        return self.context.capacity

    @property
    def length(self) -> int:
        """Tokens in context now."""
        return self.context.length

    def prefill(self, tokens: Sequence[int], cancelled: Callable[[], bool] | None = None) -> int:
        """Computes the states of `tokens` after what is in context; returns how many are in context now."""
        return self.context.append(tokens, cancelled=cancelled)

    def extract(self, start: int, end: int) -> State:
        """The states of positions start ... end-1, in a buffer of their own: `bytes_per_token` each and a few hundred
        bytes."""
        if not 0 <= start < end <= self.length:
            raise ValueError(f"positions {start} to {end} are not within the {self.length} in context")
        self._copy_aside(start, end)
        try:
            nbytes = self._api.llama_state_seq_get_size(self.context.pointer, ASIDE)
            state = bytearray(nbytes)
            place = (ctypes.c_uint8 * nbytes).from_buffer(state)
            written = self._api.llama_state_seq_get_data(self.context.pointer, place, nbytes, ASIDE)
        finally:
            self._clear_aside()
        if written != self._fixed + (end - start) * self.bytes_per_token:
            raise ModelError(f"llama.cpp gave {written:,} bytes of states for {end - start:,} tokens")
        return state

    def restore(self, state: State, start: int, end: int) -> None:
        """Appends states that `extract(start, end)` returned; `start` equals `length`.

        Raises:
            CorruptBlock: these bytes are no such states; the context is as before.
        """
        if start != self.length or end > self.capacity:
            raise ValueError(f"states of positions {start} to {end} do not follow the {self.length} in context")
        expected = self._fixed + (end - start) * self.bytes_per_token
        if len(state) != expected:
            raise CorruptBlock(f"{len(state):,} bytes are no states of {end - start:,} tokens; those take {expected:,}")
        place, _kept = _pointer(state)
        taken = self._api.llama_state_seq_set_data(self.context.pointer, place, expected, ASIDE)
        memory = self.context.memory
        first = self._api.llama_memory_seq_pos_min(memory, ASIDE)
        last = self._api.llama_memory_seq_pos_max(memory, ASIDE)
        if taken != expected or (first, last) != (start, end - 1):
            self._clear_aside()
            raise CorruptBlock(f"these are no states of positions {start:,} to {end:,}, or of another model")
        self._api.llama_memory_seq_cp(memory, ASIDE, LIVE, -1, -1)
        self._clear_aside()
        self.context.length = end

    def truncate(self, length: int) -> None:
        """Forgets positions from `length` on."""
        self.context.truncate(length)

    def _nbytes(self, start: int, end: int) -> int:
        self._copy_aside(start, end)
        nbytes = int(self._api.llama_state_seq_get_size(self.context.pointer, ASIDE))
        self._clear_aside()
        return nbytes

    def _copy_aside(self, start: int, end: int) -> None:
        self._api.llama_memory_seq_cp(self.context.memory, LIVE, ASIDE, start, end)

    def _clear_aside(self) -> None:
        self._api.llama_memory_seq_rm(self.context.memory, ASIDE, -1, -1)


def _pointer(state: State) -> tuple[object, object]:
    """Where the bytes lie, and what must live as long as they are read."""
    view = memoryview(state)
    if view.readonly:  # `bytes`, or a view of them: ctypes gives no pointer into those but this one
        data = bytes(view) if not isinstance(state, bytes) else state
        return ctypes.cast(ctypes.c_char_p(data), ctypes.POINTER(ctypes.c_uint8)), data
    array = (ctypes.c_uint8 * view.nbytes).from_buffer(view)
    return array, array
