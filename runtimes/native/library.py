"""The compiled code of this folder, and what this processor can run of it."""

from __future__ import annotations

import ctypes
import importlib.machinery
import importlib.util
from functools import cache

_LEVELS = {1: "AVX-512 VNNI", 2: "AMX"}


@cache
def library() -> ctypes.CDLL | None:
    """The compiled code, or None if it was not built (no C compiler at installation, or not Linux on x86-64)."""
    found = importlib.util.find_spec("edge.runtimes.native.layer")
    if found is None or not isinstance(found.loader, importlib.machinery.ExtensionFileLoader):
        return None
    code = ctypes.CDLL(found.loader.path)
    code.edge_level.restype = ctypes.c_int
    if code.edge_level() > 0:
        size, pointer = ctypes.c_long, ctypes.c_void_p
        code.edge_pool_open.argtypes, code.edge_pool_open.restype = (ctypes.c_int, ctypes.c_int), pointer
        code.edge_pool_close.argtypes, code.edge_pool_close.restype = (pointer,), None
        code.edge_layer_memory.argtypes = (pointer, ctypes.c_int, size, size)
        code.edge_layer_memory.restype = ctypes.c_size_t
        code.edge_layer_packed.argtypes, code.edge_layer_packed.restype = (pointer,), ctypes.c_size_t
        code.edge_layer_pack.argtypes, code.edge_layer_pack.restype = (pointer,) * 4, None
        code.edge_layer_run.argtypes = (*(pointer,) * 7, size, size, pointer, pointer)
        code.edge_layer_run.restype = None
        code.edge_mean_rows.argtypes = (pointer, ctypes.c_int, pointer, size, size, pointer)
        code.edge_mean_rows.restype = None
        code.edge_embed_rows.argtypes, code.edge_embed_rows.restype = (*(pointer,) * 5, size, pointer), None
    return code


def processor_level() -> int:
    """The instructions that the compiled code can use on this processor: 0 none, 1 AVX-512 VNNI, 2 AMX as well."""
    code = library()
    return 0 if code is None else int(code.edge_level())


def native_state() -> str:
    """The instructions that the native runtime uses here, or the reason why it cannot be used."""
    if library() is None:
        return "it was not compiled when edge-rag was installed (that takes Linux on x86-64 and a C compiler)"
    return _LEVELS.get(processor_level(), "it needs Linux and a processor with AVX-512 VNNI")
