"""Triton's interpreter, which runs our kernels on the processor where there is no GPU."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

HERE = importlib.util.find_spec("triton") is not None
"""Whether Triton is installed. Tests that need it are not collected elsewhere, as CI takes a skip for a failure."""


@functools.cache
def load() -> None:
    """Loads Triton so that its own functions are interpreted, too; anew where an earlier folder of tests loaded it."""
    torch = importlib.import_module("torch") if HERE and importlib.util.find_spec("torch") else None
    if torch is not None and not torch.cuda.is_available():
        for name in [name for name in sys.modules if re.match(r"triton(?!\._C)\b", name)]:  # not the compiled part
            del sys.modules[name]
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TRITON_INTERPRET", "1")
            interpreter = importlib.import_module("triton.runtime.interpreter")
            importlib.import_module("triton.language")
        made = interpreter._patch_lang_tensor

        def patched(tensor: Any, scope: Any) -> None:
            made(tensor, scope)  # converts an array of one element to a number, which numpy refuses since 2.4
            scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

        interpreter._patch_lang_tensor = patched


@contextmanager
def interpreted(wanted: bool) -> Iterator[None]:
    """Kernels that are loaded inside are interpreted, or not used at all on the processor."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", str(int(wanted)))
        yield
    for name in [name for name in sys.modules if name.startswith("edge.") and name.endswith("cuda.kernels")]:
        del sys.modules[name]


class Launches:
    """Counts what a GPU would start a kernel or a transfer for, inside: torch's operations and our kernels."""

    STILL = ("view", "t", "transpose", "split", "slice", "select", "expand", "unsqueeze", "detach", "empty", "alias",
             "empty_like", "permute", "as_strided", "squeeze", "_unsafe_view", "chunk", "reshape",
             "lift_fresh", "detach_", "split_with_sizes", "resolve_conj", "resolve_neg")  # fmt: skip

    def __init__(self) -> None:
        self.count = 0
        self._inside = False

    def __enter__(self) -> Launches:
        from torch.utils._python_dispatch import TorchDispatchMode
        from triton.runtime.interpreter import InterpretedFunction
        from triton.runtime.jit import JITFunction

        launches = self

        class Mode(TorchDispatchMode):
            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                launches.count += not launches._inside and func.overloadpacket.__name__ not in launches.STILL
                return func(*args, **(kwargs or {}))

        def counted(made: Any) -> Any:
            def run(*args: Any, **kwargs: Any) -> Any:
                self.count, self._inside = self.count + 1, True
                try:
                    return made(*args, **kwargs)
                finally:
                    self._inside = False

            return run

        self._patch = pytest.MonkeyPatch()
        for kind in (InterpretedFunction, JITFunction):
            self._patch.setattr(kind, "run", counted(kind.run))
        self._mode = Mode()
        self._mode.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._mode.__exit__(*error)
        self._patch.undo()
