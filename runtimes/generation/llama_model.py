"""`LlamaModel`: weights and vocabulary of a GGUF file, loaded by llama.cpp."""

from __future__ import annotations

import ctypes
import os
import re
import threading
from collections.abc import Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from functools import cache
from queue import SimpleQueue
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from edge.errors import CapabilityError, InputError, ModelError
from edge.models.gguf_file import GGUFFile

Load = Literal["read", "map", "none"]
"""Weights are read into memory, mapped from the file, or not loaded (for sizes and vocabulary only)."""

_LONGEST_PIECE = 256


class LlamaModel:
    """A loaded model. Its contexts must be closed before the model."""

    def __init__(self, library: LlamaLibrary, file: GGUFFile, *, load: Load, gpu_layers: int = 0) -> None:
        self.library = library
        self.file = file
        self._api: Any = library.api
        params = self._api.llama_model_default_params()
        params.n_gpu_layers = gpu_layers
        params.load_mode = self._api.LLAMA_LOAD_MODE_MMAP if load == "map" else self._api.LLAMA_LOAD_MODE_NONE
        # llama.cpp can copy weights to other layouts. The copies are larger by an amount that is not known in advance,
        # and weights would no longer be mapped. The layout for Intel's matrix units ends the process with a
        # segmentation fault (seen with version 0.3.36 and 8- and 4-bit weights).
        params.use_extra_bufts = False
        params.no_alloc = load == "none"
        with library.listening() as said:
            pointer = self._api.llama_model_load_from_file(os.fsencode(file.path), params)
        if not pointer:
            raise ModelError(f"{file.path} cannot be used ({file.architecture}): {said.reason}")
        self.pointer: Any = pointer
        self.said: Said = said
        self._vocab = self._api.llama_model_get_vocab(pointer)
        self.vocabulary = int(self._api.llama_vocab_n_tokens(self._vocab))
        # A vocabulary of this kind puts a space before every text, even in the middle of a prompt.
        self._spaced = self._api.llama_vocab_type(self._vocab) == self._api.LLAMA_VOCAB_TYPE_SPM
        self._line = self._tokens("\n", control=False) if self._spaced else []

    @property
    def first_token(self) -> int | None:
        """The token at the beginning of every sequence; None if there is no such token."""
        return int(self._api.llama_vocab_bos(self._vocab)) if self._api.llama_vocab_get_add_bos(self._vocab) else None

    @property
    def bos(self) -> str:
        return self._text(self._api.llama_vocab_bos(self._vocab))

    @property
    def eos(self) -> str:
        """Text of the token that ends a sequence; empty if there is none."""
        return self._text(self._api.llama_vocab_eos(self._vocab))

    @property
    def reusable(self) -> bool:
        """Whether a document's states can be cut out: not those of recurrent or sliding-window models."""
        api, pointer = self._api, self.pointer
        windowed = api.llama_model_n_swa(pointer) > 0
        return not (windowed or api.llama_model_is_recurrent(pointer) or api.llama_model_is_hybrid(pointer))

    def check_generates(self) -> None:
        """Refuses models that do not write text."""
        api, pointer = self._api, self.pointer
        unfit = (
            "encodes, and writes no text"
            if api.llama_model_has_encoder(pointer) or not api.llama_model_has_decoder(pointer)
            else "writes all of a text at once, which this program cannot follow"
            if api.llama_model_is_diffusion(pointer)
            else "has no vocabulary"
            if self.vocabulary == 0
            else ""
        )
        if unfit:
            raise ModelError(f"{self.file.path} ({self.file.architecture}) {unfit}; take a model that generates")

    def tokenize(self, text: str, *, control: bool = False, continues: bool = True) -> list[int]:
        """Tokens of a text. With `control`, names of control tokens become these. If it `continues` other text, the
        space before a beginning is omitted."""
        if self._spaced and continues:
            tokens = self._tokens("\n" + text, control=control)
            if tokens[: len(self._line)] == self._line:
                return tokens[len(self._line) :]
        return self._tokens(text, control=control)

    def piece(self, token: int) -> bytes:
        """A token's bytes in an answer; empty for a control token."""
        return self._piece(token, special=False)

    def ends(self, token: int) -> bool:
        return bool(self._api.llama_vocab_is_eog(self._vocab, token))

    def close(self) -> None:
        """Frees the model. A second call does nothing."""
        pointer, self.pointer = self.pointer, None
        if pointer:
            self._api.llama_model_free(pointer)

    def _text(self, token: int) -> str:
        return self._piece(token, special=True).decode("utf-8", errors="replace") if token >= 0 else ""

    def _piece(self, token: int, special: bool) -> bytes:
        buffer = ctypes.create_string_buffer(_LONGEST_PIECE)
        count = self._api.llama_token_to_piece(self._vocab, token, buffer, len(buffer), 0, special)
        if count < 0:  # a negative count is the size that the text needs
            buffer = ctypes.create_string_buffer(-count)
            count = self._api.llama_token_to_piece(self._vocab, token, buffer, len(buffer), 0, special)
        return buffer.raw[:count]

    def _tokens(self, text: str, *, control: bool) -> list[int]:
        try:
            data = text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InputError(f"a text is not valid Unicode: {error.reason} at character {error.start}") from error
        room = len(data) + 8
        while True:
            tokens: npt.NDArray[np.int32] = np.empty(room, np.int32)
            place = tokens.ctypes.data_as(ctypes.POINTER(ctypes.c_int32))
            count = self._api.llama_tokenize(self._vocab, data, len(data), place, room, False, control)
            if count >= 0:
                return [int(token) for token in tokens[:count]]
            room = -count


_SIZES = (
    re.compile(r"\s(model|compute|output) buffer size =\s*([0-9.]+) MiB"),
    # A model that was opened without loading allocates no cache, but logs the cache's size.
    re.compile(r"^llama_(kv_cache|memory_recurrent)\w*: size =\s*([0-9.]+) MiB"),
)
TESTED = "0.3.36"
"""The version of llama-cpp-python that was tested. Older versions lack some of the functions."""

_ERROR_LEVEL = 4  # GGML_LOG_LEVEL_ERROR
_MOST_ERRORS = 16
_PRINTED = 10**4
"""Largest rounding error of a buffer size, in bytes. Sizes are printed in MiB with two digits after the point."""


class Said:
    """The messages that llama.cpp logged during an operation."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        self._sizes: dict[str, int] = {}

    def add(self, level: int, text: str) -> None:
        if level == _ERROR_LEVEL and text.strip() and len(self.errors) < _MOST_ERRORS:
            self.errors.append(text.strip())
        for pattern in _SIZES:
            if found := pattern.search(text):
                self._sizes[found[1]] = self._sizes.get(found[1], 0) + int(float(found[2]) * 2**20) + _PRINTED

    def nbytes(self, *kinds: str) -> int:
        """Bytes of all buffers of these kinds: `model`, `compute`, `output`, `kv_cache`, `memory_recurrent`."""
        sizes = [self._sizes[kind] for kind in kinds if kind in self._sizes]
        if not sizes:
            raise CapabilityError(
                f"this llama.cpp does not say how large its buffers are ({', '.join(kinds)}), so memory cannot be "
                f'accounted for: pip install "llama-cpp-python=={TESTED}"'
            )
        return sum(sizes)

    @property
    def reason(self) -> str:
        """The first error, without the name of the function that reported it. Later errors are less specific."""
        return re.sub(r"^\w+: ", "", self.errors[0]) if self.errors else "llama.cpp gives no reason"


class LlamaLibrary:
    """The library, loaded once per process, because it has a single log per process."""

    def __init__(self) -> None:
        try:
            from llama_cpp import llama_cpp as api
        except ImportError as error:
            raise CapabilityError(
                'generating with a GGUF model needs llama.cpp: pip install "edge-rag[llm]"'
            ) from error
        except (OSError, RuntimeError) as error:  # the package's shared library is missing, or not for this CPU
            raise CapabilityError(f"llama.cpp cannot be loaded: {error}; install llama-cpp-python anew") from error
        fields = {field[0] for field in api.llama_context_params._fields_}
        if "n_outputs_max" not in fields:
            raise CapabilityError(f'this llama-cpp-python is too old: pip install "llama-cpp-python>={TESTED}"')
        # The type is Any, because an optional package makes the functions at its import.
        self.api: Any = api
        self._said = Said()
        self._lock = threading.Lock()
        # The callback must live as long as the library.
        self._callback = api.llama_log_callback(self._log)
        api.llama_log_set(self._callback, ctypes.c_void_p(0))
        api.llama_backend_init()
        # Each thread that computes keeps a team of OpenMP's threads. As soon as the teams have more threads than there
        # are cores, all of them sleep at each barrier, and a token takes twice as long. So one thread computes. No
        # process waits for its end.
        self._batches: SimpleQueue[tuple[Future[int], Any, Any]] = SimpleQueue()
        threading.Thread(target=self._compute, name="edge-llama", daemon=True).start()

    @property
    def version(self) -> str:
        """Version of llama-cpp-python, which determines the version of llama.cpp."""
        import llama_cpp

        return str(llama_cpp.__version__)

    def decode(self, context: Any, batch: Any) -> int:
        """Computes a batch, behind those of other models; returns llama.cpp's code."""
        computed: Future[int] = Future()
        self._batches.put((computed, context, batch))
        try:
            return computed.result()
        finally:
            wait([computed])  # after Ctrl-C, too: what it writes to must not be freed meanwhile

    def _compute(self) -> None:
        while True:
            computed, context, batch = self._batches.get()
            try:
                computed.set_result(int(self.api.llama_decode(context, batch)))
            except BaseException as error:
                computed.set_exception(error)

    @contextmanager
    def listening(self) -> Iterator[Said]:
        """Collects the messages that are logged inside the `with` block, for one thread at a time."""
        with self._lock:
            self._said = Said()
            yield self._said

    def _log(self, level: int, text: bytes, _: object) -> None:
        self._said.add(level, text.decode("utf-8", errors="replace"))


@cache
def llama_library() -> LlamaLibrary:
    """The library of this process, loaded at the first call."""
    return LlamaLibrary()
