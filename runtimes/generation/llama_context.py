"""`LlamaContext`: one sequence of tokens and their KV states, continued by computing."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from edge.errors import InputError, ModelError
from edge.runtimes.generation.llama_library import Said
from edge.runtimes.generation.llama_model import LlamaModel

KVType = Literal["f16", "q8_0"]
KV_TYPES: Mapping[KVType, int] = {"f16": 1, "q8_0": 8}
"""How keys and values are held: half precision, or 8 bits at 53 % of its bytes."""

LIVE, ASIDE = 0, 1
"""Sequences of a context: the one that is read and written, and one for states on their way in or out."""

TILE = 64
"""Tokens from which on llama.cpp's flash attention multiplies tiles; with fewer it goes through the keys row by row."""

_TILE_WIDTH = 16
"""Keys and values are multiplied in tiles where their width is a multiple of this."""

LINEAR = 1500
"""Tokens to which one attends, in tiles, in the time that all else about it takes (measured on 0.1 B parameters)."""

ROW_BY_ROW = 6
"""How much longer a token takes to attend row by row than in a tile: measured 3.5 times on an AMD EPYC and 10 times on
a Xeon, both with AVX-512. With the value between them neither takes more than 1.7 times as long as with its own."""


@dataclass(frozen=True, slots=True)
class ContextShape:
    """What a context is made for.

    Attributes:
        tokens: prompt and answer together.
        batch: tokens computed at a time.
        kv_type: how keys and values are held.
        threads: compute threads.
    """

    tokens: int
    batch: int
    kv_type: KVType
    threads: int


class LlamaContext:
    """Tokens at positions 0 ... length-1.

    The states of position p lie in cell p of llama.cpp's cache, always: the live sequence is only continued at its end
    or cut there, so the next free cell is the next position. The order in which attention sums over cells is thus
    that of positions, and equal tokens computed in equal batches have states equal to the last bit, however they came.
    """

    def __init__(self, model: LlamaModel, shape: ContextShape) -> None:
        """Allocates caches and buffers.

        Raises:
            ModelError: llama.cpp cannot; the message has its reason.
        """
        self.model = model
        self.shape = shape
        self.length = 0
        self._api: Any = model.library.api
        with model.library.listening() as said:
            pointer = self._api.llama_init_from_model(model.pointer, self._params())
        if not pointer:
            raise ModelError(
                f"{model.file.path}: no context of {shape.tokens:,} tokens can be made ({shape.kv_type}): {said.reason}"
            )
        self.pointer: Any = pointer
        self.said: Said = said
        self.memory = self._api.llama_get_memory(pointer)
        # A small context has a smaller batch than was asked for.
        self.batch = int(self._api.llama_n_ubatch(pointer))
        # What stands in for tokens is taken away again, which needs states that can be parted; tiles are of f16.
        tiled = all(width and width % _TILE_WIDTH == 0 for width in model.file.head_widths)
        self._fills = tiled and shape.kv_type == "f16" and self.batch >= TILE and model.reusable
        self._tokens = np.zeros(shape.batch, np.int32)
        self._positions = np.zeros(shape.batch, np.int32)
        self._wanted = np.zeros(shape.batch, np.int8)
        self._batch = self._make_batch()

    @property
    def capacity(self) -> int:
        """Tokens it can hold."""
        return int(self._api.llama_n_ctx(self.pointer))

    def append(
        self, tokens: Sequence[int], *, cancelled: Callable[[], bool] | None = None, logits: bool = False
    ) -> int:
        """Computes the states of `tokens` after what is there, batch by batch.

        Args:
            cancelled: asked before each batch; once true, nothing more is computed.
            logits: those of the last token are wanted.

        Returns:
            How many of the tokens are in context now.

        Raises:
            InputError: they do not fit.
            ModelError: llama.cpp failed; the context is as before, or empty where it could not be restored.
        """
        if self.length + len(tokens) > self.capacity:
            raise InputError(
                f"{len(tokens):,} tokens after {self.length:,} do not fit the context of {self.capacity:,} tokens"
            )
        start = self.length
        for first in range(0, len(tokens), self.batch):
            if cancelled is not None and cancelled():
                break
            part = tokens[first : first + self.batch]
            last = first + len(part) == len(tokens)
            rows = self._rows(len(part))
            self._tokens[: len(part)] = part
            # Rows that fill a tile come after all others, which do not see them.
            self._tokens[len(part) : rows] = part[-1]
            self._positions[:rows] = np.arange(self.length, self.length + rows)
            self._wanted[:] = 0
            self._wanted[len(part) - 1] = logits and last
            self._batch.n_tokens = rows
            code = self._api.llama_decode(self.pointer, self._batch)
            if code != 0:
                self.truncate(start)
                raise ModelError(f"llama.cpp failed on {len(part)} tokens after {self.length:,}, with code {code}")
            self.length += rows
            self.truncate(self.length - rows + len(part))
        return self.length - start

    def logits(self) -> npt.NDArray[np.float32]:
        """What follows the last token, [vocabulary]; valid until the next `append`."""
        pointer = self._api.llama_get_logits_ith(self.pointer, -1)
        return np.ctypeslib.as_array(pointer, (self.model.vocabulary,))

    def truncate(self, length: int) -> None:
        """Forgets positions from `length` on; all of them where states cannot be parted (`LlamaModel.reusable`)."""
        if length >= self.length:
            return
        if length == 0 or not self._api.llama_memory_seq_rm(self.memory, LIVE, length, -1):
            self._api.llama_memory_clear(self.memory, False)
            length = 0
        self.length = length

    def close(self) -> None:
        """Frees everything. Closing twice is harmless."""
        pointer, self.pointer = self.pointer, None
        if pointer:
            self._api.llama_free(pointer)

    def _rows(self, tokens: int) -> int:
        """Rows to compute for so many tokens: as many, or a whole tile where that is faster. It depends on nothing but
        their number and position, so that equal tokens have equal states."""
        fits = self._fills and tokens < TILE and self.length + TILE <= self.capacity
        alone = tokens * (LINEAR + ROW_BY_ROW * self.length)
        return TILE if fits and TILE * (LINEAR + self.length) < alone else tokens

    def _params(self) -> Any:
        params = self._api.llama_context_default_params()
        params.n_ctx = self.shape.tokens
        params.n_batch = params.n_ubatch = self.shape.batch
        params.n_seq_max = params.n_outputs_max = len((LIVE, ASIDE))
        params.kv_unified = True
        params.offload_kqv = params.op_offload = False
        # Where a layer attends to the nearest tokens only, no others are kept.
        params.swa_full = False
        params.type_k = params.type_v = KV_TYPES[self.shape.kv_type]
        params.n_threads = params.n_threads_batch = self.shape.threads
        return params

    def _make_batch(self) -> Any:
        """A batch over arrays of ours: every token in the live sequence, at the position we say."""
        api, rows = self._api, self.shape.batch
        live = (api.llama_seq_id * 1)(LIVE)
        self._counts = (ctypes.c_int32 * rows)(*[1] * rows)
        self._sequences = (ctypes.POINTER(api.llama_seq_id) * rows)(
            *[ctypes.cast(live, ctypes.POINTER(api.llama_seq_id))] * rows
        )
        self._live = live
        batch = api.llama_batch()
        batch.token = self._tokens.ctypes.data_as(ctypes.POINTER(api.llama_token))
        batch.pos = self._positions.ctypes.data_as(ctypes.POINTER(api.llama_pos))
        batch.n_seq_id = ctypes.cast(self._counts, ctypes.POINTER(ctypes.c_int32))
        batch.seq_id = ctypes.cast(self._sequences, ctypes.POINTER(ctypes.POINTER(api.llama_seq_id)))
        batch.logits = self._wanted.ctypes.data_as(ctypes.POINTER(ctypes.c_int8))
        return batch
