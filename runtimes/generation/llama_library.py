"""`LlamaLibrary`: llama.cpp's C functions from llama-cpp-python. Its log is read here and not printed."""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from edge.errors import CapabilityError

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
        """Adds one message."""
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

    @property
    def version(self) -> str:
        """Version of llama-cpp-python, which determines the version of llama.cpp."""
        import llama_cpp

        return str(llama_cpp.__version__)

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
