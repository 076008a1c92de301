"""The compiled code of this folder, what this processor can run of it, and its functions for packed sequences: layer
0's input and means (`sequences.h`), numpy's results to the last bit."""

from __future__ import annotations

import ctypes
import importlib.machinery
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.errors import CapabilityError


def compiled_file() -> Path | None:
    """The compiled code's file. It uses nothing of Python, so one wheel serves all versions."""
    folder = Path(__file__).parent
    own = [folder / f"layer{suffix}" for suffix in importlib.machinery.EXTENSION_SUFFIXES]
    return next((file for file in [*own, *sorted(folder.glob("layer.*.so"))] if file.exists()), None)


INTERFACE = 1
"""`INTERFACE` of layer.h. It changes with the functions, their arguments and structs."""


@cache
def library() -> ctypes.CDLL | None:
    """The compiled code, or None if it was not built, or has another interface."""
    file = compiled_file()
    if file is None:
        return None
    code = ctypes.CDLL(str(file))
    code.edge_level.restype = ctypes.c_int
    if code.edge_level() > 0 and (not hasattr(code, "edge_interface") or code.edge_interface() != INTERFACE):
        return None
    if code.edge_level() > 0:
        size, pointer = ctypes.c_long, ctypes.c_void_p
        code.edge_pool_open.argtypes, code.edge_pool_open.restype = (ctypes.c_int, ctypes.c_int), pointer
        code.edge_pool_close.argtypes, code.edge_pool_close.restype = (pointer,), None
        code.edge_level_name.argtypes, code.edge_level_name.restype = (ctypes.c_int,), ctypes.c_char_p
        code.edge_layer_memory.argtypes = (pointer, pointer, size, size)
        code.edge_layer_memory.restype = ctypes.c_size_t
        code.edge_layer_packed.argtypes, code.edge_layer_packed.restype = (pointer,), ctypes.c_size_t
        code.edge_layer_pack.argtypes, code.edge_layer_pack.restype = (pointer,) * 4, None
        code.edge_layer_run.argtypes = (*(pointer,) * 7, size, size, pointer, pointer)
        code.edge_layer_run.restype = None
        code.edge_mean_rows.argtypes = (ctypes.c_int, pointer, ctypes.c_int, pointer, size, size, pointer)
        code.edge_mean_rows.restype = None
        code.edge_embed_rows.argtypes = (ctypes.c_int, *(pointer,) * 5, size, pointer)
        code.edge_embed_rows.restype = None
    return code


def processor_level() -> int:
    """The best instructions that the compiled code can use on this processor: a level of `cpu.h`, 0 for none."""
    code = library()
    return 0 if code is None else int(code.edge_level())


def native_state() -> str:
    """The instructions that the native runtime uses here, or the reason why it cannot be used."""
    code, level = library(), processor_level()
    if code is None and compiled_file() is not None:
        return "another version of edge-rag has compiled it: install edge-rag again"
    if code is None:
        return (
            "it was not compiled when edge-rag was installed (that takes Linux or an Apple processor, and a C compiler)"
        )
    if not level:
        return "it needs AVX2 on Linux, or an ARM processor"
    return str(code.edge_level_name(level).decode())


Floats = npt.NDArray[np.float32]

_WIDEST = 4096
"""`WIDEST` of sequences.h."""


def usable() -> ctypes.CDLL:
    """The compiled code. Raises `CapabilityError` without it."""
    code = library()
    if code is None or not processor_level():
        raise CapabilityError(f"the compiled code cannot be used: {native_state()}")
    return code


def check_array(what: str, array: npt.NDArray[Any], dtype: npt.DTypeLike, *shape: int) -> None:
    """Compares an array with what compiled code reads or writes; ValueError for another type or shape, or gaps."""
    if array.dtype != dtype or array.shape != shape or not array.flags.c_contiguous:
        raise ValueError(f"{what} must be {np.dtype(dtype)} {shape} without gaps, not {array.dtype} {array.shape}")


def checked_lengths(lengths: npt.NDArray[Any], tokens: int) -> npt.NDArray[np.int32]:
    """The lengths of sequences that have `tokens` tokens together; ValueError if they do not."""
    if lengths.ndim != 1 or lengths.dtype.kind != "i" or (lengths < 1).any() or lengths.sum(dtype=np.int64) != tokens:
        raise ValueError(f"the lengths of sequences must be at least 1 and sum to {tokens}")
    return np.ascontiguousarray(lengths, np.int32)


@cache
def compiled() -> bool:
    """Whether the functions of this module can be used here."""
    return processor_level() > 0


def mean_rows(states: npt.NDArray[Any], lengths: npt.NDArray[np.int32]) -> Floats:
    """The mean [sequences, hidden] over each sequence's rows of `states` [tokens, hidden], fp16 or fp32."""
    code, half = usable(), _half(states.dtype)
    lengths = checked_lengths(lengths, len(states))
    check_array("states", states, states.dtype, len(states), states.shape[-1])
    means = np.empty((len(lengths), states.shape[1]), np.float32)
    code.edge_mean_rows(
        processor_level(), states.ctypes.data, int(half), lengths.ctypes.data, *means.shape, means.ctypes.data
    )
    return means


class _Embedding(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("hidden", "half")),
        ("eps", ctypes.c_double),
        *((name, ctypes.c_void_p) for name in ("scales", "positions", "types", "norm_weight", "norm_bias")),
    )


@dataclass(frozen=True, slots=True)
class EmbeddingTables:
    """The fp32 tensors of layer 0's input beside the token rows: `scales` of int8 rows [vocabulary], `positions`
    [longest, hidden], `types` [kinds, hidden], norm [hidden]."""

    scales: Floats
    positions: Floats
    types: Floats
    norm_weight: Floats
    norm_bias: Floats
    eps: float

    def __post_init__(self) -> None:
        hidden = self.positions.shape[-1]
        if hidden > _WIDEST:
            raise ValueError(f"rows have at most {_WIDEST:,} values, not {hidden:,}")
        check_array("scales", self.scales, np.float32, len(self.scales))
        check_array("positions", self.positions, np.float32, len(self.positions), hidden)
        check_array("types", self.types, np.float32, len(self.types), hidden)
        check_array("norm.weight", self.norm_weight, np.float32, hidden)
        check_array("norm.bias", self.norm_bias, np.float32, hidden)

    def embed(
        self,
        rows: npt.NDArray[np.int8],
        ids: npt.NDArray[np.int32],
        lengths: npt.NDArray[np.int32],
        types: npt.NDArray[np.uint8] | None,
        into: npt.NDArray[Any],
    ) -> None:
        """Computes layer 0's input of packed sequences `into` [tokens, hidden], float16 or float32, from `rows`
        [tokens, hidden] of the tokens `ids`. `types` of None means type 0. IndexError outside a table, ValueError for
        other arrays."""
        code, half = usable(), _half(into.dtype)
        tokens, hidden = len(rows), self.positions.shape[1]
        check_array("rows", rows, np.int8, tokens, hidden)
        check_array("the result", into, into.dtype, tokens, hidden)
        if ids.shape != (tokens,) or not into.flags.writeable or (types is not None and types.shape != ids.shape):
            raise ValueError(f"ids and types must be of {tokens} tokens, and the result writeable")
        lengths = checked_lengths(lengths, tokens)
        if tokens and not 0 <= int(ids.min()) <= int(ids.max()) < len(self.scales):
            raise IndexError(f"a token is not among the table's {len(self.scales)}")
        if len(lengths) and int(lengths.max()) > len(self.positions):
            raise IndexError(f"a sequence has {int(lengths.max())} tokens, more than {len(self.positions)} positions")
        if types is not None and len(types) and not 0 <= int(types.min()) <= int(types.max()) < len(self.types):
            raise IndexError(f"token type {int(types.max())} is not among the table's {len(self.types)}")
        ids = np.ascontiguousarray(ids, np.int32)
        types = np.zeros(tokens, np.uint8) if types is None else np.ascontiguousarray(types, np.uint8)
        tables = (self.scales, self.positions, self.types, self.norm_weight, self.norm_bias)
        shape = _Embedding(hidden, int(half), self.eps, *(table.ctypes.data for table in tables))
        code.edge_embed_rows(
            processor_level(), ctypes.byref(shape), rows.ctypes.data, ids.ctypes.data, lengths.ctypes.data,
            types.ctypes.data, len(lengths), into.ctypes.data,
        )  # fmt: skip


def embedding_tables(
    scales: Floats | None, positions: Floats, small: dict[str, npt.NDArray[Any]], eps: float
) -> EmbeddingTables | None:
    """The tables of an int8 model with positions, types and a norm, if the compiled code can be used for them."""
    names = ("types", "norm.weight", "norm.bias")
    if scales is None or not compiled() or positions.shape[1] > _WIDEST or any(name not in small for name in names):
        return None
    types, weight, bias = (small[name] for name in names)
    if any(table.dtype != np.float32 or not table.flags.c_contiguous for table in (scales, positions, *small.values())):
        return None
    return EmbeddingTables(scales, positions, types, weight, bias, eps)


def _half(dtype: np.dtype[Any]) -> bool:
    if dtype not in (np.float16, np.float32):
        raise TypeError(f"states are float16 or float32, not {dtype}")
    return dtype == np.float16
