"""The compiled code of this folder, what this processor can run of it, and its functions for packed sequences.

The functions compute layer 0's input and the means over sequences (`sequences.h`). The results are those of numpy, to
the last bit. numpy takes four to six times as long, because it converts half precision slowly and writes every
intermediate array to memory.
"""

from __future__ import annotations

import ctypes
import importlib.machinery
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt


def compiled_file() -> Path | None:
    """The compiled code's file. It uses nothing of Python, so what another version has compiled serves as well, and
    one wheel serves all versions."""
    folder = Path(__file__).parent
    own = [folder / f"layer{suffix}" for suffix in importlib.machinery.EXTENSION_SUFFIXES]
    return next((file for file in [*own, *sorted(folder.glob("layer.*.so"))] if file.exists()), None)


@cache
def library() -> ctypes.CDLL | None:
    """The compiled code, or None if it was not built (no C compiler at installation, or another system)."""
    file = compiled_file()
    if file is None:
        return None
    code = ctypes.CDLL(str(file))
    code.edge_level.restype = ctypes.c_int
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


@cache
def compiled() -> bool:
    """Whether the functions of this module can be used here."""
    return processor_level() > 0


def mean_rows(states: npt.NDArray[Any], lengths: npt.NDArray[np.int32]) -> Floats:
    """The mean over the rows of each packed sequence.

    Args:
        states: [tokens, hidden] fp16 or fp32, C-contiguous.
        lengths: tokens of each sequence [sequences], each at least 1; they sum to `tokens`.

    Returns:
        [sequences, hidden].
    """
    code = library()
    assert code is not None
    assert states.flags.c_contiguous
    assert int(lengths.sum()) == len(states)
    means = np.empty((len(lengths), states.shape[1]), np.float32)
    lengths = np.ascontiguousarray(lengths, np.int32)
    code.edge_mean_rows(
        processor_level(), states.ctypes.data, int(_half(states.dtype)), lengths.ctypes.data, *means.shape,
        means.ctypes.data,
    )  # fmt: skip
    return means


class _Embedding(ctypes.Structure):
    """`struct embedding` of layer.h."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("hidden", "half")),
        ("eps", ctypes.c_double),
        *((name, ctypes.c_void_p) for name in ("scales", "positions", "types", "norm_weight", "norm_bias")),
    )


@dataclass(frozen=True, slots=True)
class EmbeddingTables:
    """The tensors of layer 0's input beside the token rows, all fp32 and C-contiguous.

    Attributes:
        scales: factor of each int8 row of the token table [vocabulary].
        positions: [longest, hidden]; a sequence has at most `longest` tokens.
        types: [kinds, hidden].
        norm_weight, norm_bias: [hidden].
        eps: added to the variance before its root.
    """

    scales: Floats
    positions: Floats
    types: Floats
    norm_weight: Floats
    norm_bias: Floats
    eps: float

    def embed(
        self,
        rows: npt.NDArray[np.int8],
        ids: npt.NDArray[np.int32],
        lengths: npt.NDArray[np.int32],
        types: npt.NDArray[np.uint8] | None,
        into: npt.NDArray[Any],
    ) -> None:
        """Computes layer 0's input of packed sequences.

        Args:
            rows: the tokens' rows of the token table [tokens, hidden].
            ids: the tokens [tokens].
            lengths: tokens of each sequence.
            types: type of each token [tokens]; None means type 0.
            into: the result [tokens, hidden], float16 or float32, C-contiguous.

        Raises:
            IndexError: a sequence is longer than the table of positions, or a type is not in its table.
        """
        code = library()
        tokens, hidden = rows.shape
        assert code is not None
        assert rows.flags.c_contiguous
        assert into.flags.c_contiguous
        assert into.shape == rows.shape
        assert int(lengths.sum()) == len(ids) == tokens
        if len(lengths) and int(lengths.max()) > len(self.positions):
            raise IndexError(f"a sequence has {int(lengths.max())} tokens, more than {len(self.positions)} positions")
        if types is not None and len(types) and int(types.max()) >= len(self.types):
            raise IndexError(f"token type {int(types.max())} is not among the table's {len(self.types)}")
        ids, lengths = np.ascontiguousarray(ids, np.int32), np.ascontiguousarray(lengths, np.int32)
        types = np.zeros(tokens, np.uint8) if types is None else np.ascontiguousarray(types, np.uint8)
        tables = (self.scales, self.positions, self.types, self.norm_weight, self.norm_bias)
        shape = _Embedding(hidden, int(_half(into.dtype)), self.eps, *(table.ctypes.data for table in tables))
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
