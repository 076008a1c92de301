"""`LlamaStates`: cuts KV states out of a llama.cpp context by position, and restores them."""

from __future__ import annotations

import ctypes
import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from edge.errors import CorruptBlock, ModelError
from edge.files.sealed import recall, remember
from edge.kv_cache.backend import KVBackend, State
from edge.models.gguf_file import GGUFFile
from edge.runtimes.generation.llama_context import LINEAR, ROW_BY_ROW, TILE, LlamaContext

_HASHES = "gguf-hashes.json"
_MOST_HASHES = 64
"""Number of stored hashes; the latest are kept."""


_ROTATING = (0, 2)
"""llama.cpp's kinds of rotary positions with one position for each token."""


class LlamaStates:
    """A `KVBackend` over one context. Not thread-safe."""

    def __init__(self, context: LlamaContext, *, hashes: Path) -> None:
        """Measures the size of states, and leaves the context empty. `hashes` holds hashes of model files."""
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
        self.movable = bool(self._api.llama_memory_can_shift(context.memory)) and (
            self._api.llama_model_rope_type(context.model.pointer) in _ROTATING
        )
        """Whether keys can be rotated to other positions."""

    @property
    def fingerprint(self) -> str:
        """Hash of everything that a state depends on besides its tokens: model file, library, CPU's instructions, and
        what determines the order of sums."""
        if not self._fingerprint:
            context, model = self.context, self.context.model
            shape = context.shape
            parts = {
                "file": file_sha256(model.file, self._hashes),
                "tokens": context.capacity,
                "batch": context.batch,
                "tile": (TILE, LINEAR, ROW_BY_ROW),
                "threads": shape.threads,
                **({"shared": True} if shape.sequences > 1 else {}),
                "library": model.library.version,
                "system": self._api.llama_print_system_info().decode(),
            }
            self._fingerprint = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
        return self._fingerprint

    @property
    def capacity(self) -> int:
        return self.context.capacity

    @property
    def length(self) -> int:
        return self.context.length

    def prefill(self, tokens: Sequence[int], cancelled: Callable[[], bool] | None = None) -> int:
        """Appends `tokens` to the context and computes their states. Returns the number of appended tokens."""
        return self.context.append(tokens, cancelled=cancelled)

    def extract(self, start: int, end: int) -> State:
        if not 0 <= start < end <= self.length:
            raise ValueError(f"positions {start} to {end} are not within the {self.length} in context")
        self._copy_aside(start, end)
        try:
            nbytes = self._api.llama_state_seq_get_size(self.context.pointer, self.context.aside)
            state = bytearray(nbytes)
            place = (ctypes.c_uint8 * nbytes).from_buffer(state)
            written = self._api.llama_state_seq_get_data(self.context.pointer, place, nbytes, self.context.aside)
        finally:
            self._clear_aside()
        if written != self._fixed + (end - start) * self.bytes_per_token:
            raise ModelError(f"llama.cpp gave {written:,} bytes of states for {end - start:,} tokens")
        return state

    def restore(self, state: State, start: int, end: int) -> None:
        """Appends states that `extract(start, end)` returned. `start` must equal `length`."""
        if start != self.length or end > self.capacity:
            raise ValueError(f"states of positions {start} to {end} do not follow the {self.length} in context")
        self._read_aside(state, start, end)
        self._api.llama_memory_seq_cp(self.context.memory, self.context.aside, self.context.number, -1, -1)
        self._clear_aside()
        self.context.length = end

    def move(self, state: State, start: int, end: int, skip: int) -> None:
        """Appends states that `extract` returned, but the first `skip`, with keys rotated to new positions."""
        room = self.context.room
        if room is not None and room.takes(self.context, end - start - skip + 1):
            room.move(self.context, state, start, end, skip)
            return
        self._read_aside(state, start, end)
        memory, first, behind = self.context.memory, start + skip, self.length - start - skip
        self._api.llama_memory_seq_rm(memory, self.context.aside, -1, first)
        self._api.llama_memory_seq_add(memory, self.context.aside, first, end, behind)
        self._api.llama_memory_seq_cp(memory, self.context.aside, self.context.number, -1, -1)
        self._clear_aside()
        self.context.length, self.context.moved = end + behind, True

    def share(self, other: KVBackend, start: int, end: int) -> bool:
        """Appends states of another sequence of the same context; the cells are shared."""
        if not isinstance(other, LlamaStates) or other.context.pointer != self.context.pointer:
            return False
        self._api.llama_memory_seq_cp(self.context.memory, other.context.number, self.context.number, start, end)
        self.context.length, self.context.moved = end, self.context.moved or other.context.moved
        return True

    def truncate(self, length: int) -> None:
        self.context.truncate(length)

    def _read_aside(self, state: State, start: int, end: int) -> None:
        expected = self._fixed + (end - start) * self.bytes_per_token
        if len(state) != expected:
            raise CorruptBlock(f"{len(state):,} bytes are no states of {end - start:,} tokens; those take {expected:,}")
        place, _kept = _pointer(state)
        taken = self._api.llama_state_seq_set_data(self.context.pointer, place, expected, self.context.aside)
        memory = self.context.memory
        first = self._api.llama_memory_seq_pos_min(memory, self.context.aside)
        last = self._api.llama_memory_seq_pos_max(memory, self.context.aside)
        if taken != expected or (first, last) != (start, end - 1):
            self._clear_aside()
            raise CorruptBlock(f"these are no states of positions {start:,} to {end:,}, or of another model")

    def _nbytes(self, start: int, end: int) -> int:
        self._copy_aside(start, end)
        nbytes = int(self._api.llama_state_seq_get_size(self.context.pointer, self.context.aside))
        self._clear_aside()
        return nbytes

    def _copy_aside(self, start: int, end: int) -> None:
        self._api.llama_memory_seq_cp(self.context.memory, self.context.number, self.context.aside, start, end)

    def _clear_aside(self) -> None:
        self._api.llama_memory_seq_rm(self.context.memory, self.context.aside, -1, -1)


def _pointer(state: State) -> tuple[object, object]:
    """A pointer to the bytes, and the object that must live as long as they are read."""
    view = memoryview(state)
    if view.readonly:  # `bytes` or a view of them, to which ctypes gives a pointer only in this way
        data = bytes(view) if not isinstance(state, bytes) else state
        return ctypes.cast(ctypes.c_char_p(data), ctypes.POINTER(ctypes.c_uint8)), data
    array = (ctypes.c_uint8 * view.nbytes).from_buffer(view)
    return array, array


def file_sha256(file: GGUFFile, directory: Path) -> str:
    """SHA-256 of a model file, stored in a directory as long as the file's size and time of change are the same."""
    name, stat = str(file.path.resolve()), file.path.stat()
    state = [stat.st_size, stat.st_mtime_ns]
    known = recall(directory / _HASHES, "the hashes of model files")
    entry = known.pop(name, None)
    if isinstance(entry, list) and entry[:2] == state and len(entry) == 3:
        return str(entry[2])
    digest = file.sha256()
    known[name] = [*state, digest]
    remember(directory / _HASHES, dict(list(known.items())[-_MOST_HASHES:]))
    return digest
