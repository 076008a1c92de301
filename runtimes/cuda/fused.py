"""`FusedLayer`: a layer by the kernels of `edge.runtimes.cuda.kernels`, where Triton is installed."""

from __future__ import annotations

import importlib
import math
from typing import Any

from edge.models.spec import LayerSpec

QUERIES = 64
"""Tokens of one sequence whose attention is computed together."""

_ROWS, _COLUMNS, _STEP, _TOGETHER = 128, 128, 64, 8
"""Blocks of a product of bytes: its results, and the inputs that are summed at a time. They take 64 KB of a
processor's memory, which every GPU since 2017 has."""

_FEW_ROWS = 16
_KEYS, _FEW_KEYS = 64, 16
"""Keys of a block, and those of wide heads and of single precision, for which a GPU has too few registers."""


def kernels(card: Any, spec: LayerSpec) -> Any:
    """The module of kernels for such layers, or None."""
    usable = card.has_triton and not (spec.qk_norm and spec.head_size % 2)
    return importlib.import_module("edge.runtimes.cuda.kernels") if usable else None


_WIDEST = 512
"""The width of a head times the square of its values' bytes, at most, with many keys of a block."""


class FusedLayer:
    """Eight launches for a layer of an encoder in half precision, ten in int8, two and one more for a decoder. In int8
    a product's factors and bias, and otherwise the bias, go into the kernel behind it."""

    def __init__(self, card: Any, spec: LayerSpec, compute: Any, residual: Any, module: Any) -> None:
        self._torch, self._device, self._spec = card.torch, card.device, spec
        self._compute, self._residual = compute, residual
        self._kernels = module
        self._int8 = spec.precision == "int8"

    def advance(self, states: Any, w: Any, tiles: Any, place: Any, prefix: Any, found: Any) -> None:
        """Replaces the states [tokens, hidden] of a chunk. `tiles`: see `kernels.attend`; `place` are the positions and
        the tables of rotation (None without it); `found` gets keys and values."""
        spec, first = self._spec, self._spec.norm_first
        x, given = self._rows(states, w, norm="norm1" if first else "")
        qkv = self._product(given, w, "qkv", self._compute, biased=True)
        heads = spec.heads + spec.kv_heads
        if spec.qk_norm or place is not None:
            positions, cosines, sines = (qkv, qkv, qkv) if place is None else place
            norms = [w[f"{name}.weight"] if spec.qk_norm else qkv for name in ("q_norm", "k_norm")]
            half = spec.head_size // 2
            self._kernels.turn[(len(qkv), heads)](
                qkv, positions, cosines, sines, *norms, qkv.shape[1], spec.norm_eps,
                HEADS=spec.heads, HALF=half, BLOCK=_power(half), NORM=spec.qk_norm, ROTATED=place is not None,
                num_warps=1,
            )  # fmt: skip
        if found is not None:
            parts = qkv.view(len(qkv), -1, spec.head_size)
            found.keys, found.values = parts[:, spec.heads : heads].contiguous(), parts[:, heads:].contiguous()
        context = self._empty(self._compute, len(qkv), spec.heads * spec.head_size)
        width = max(16, _power(spec.head_size))
        keys = _KEYS if width * self._compute.itemsize**2 <= _WIDEST else _FEW_KEYS
        shared = (qkv, qkv) if prefix is None else (prefix.keys, prefix.values)
        self._kernels.attend[(len(tiles), spec.heads)](
            qkv, *shared, context, tiles, 0 if prefix is None else prefix.tokens, spec.scale * math.log2(math.e),
            HEADS=spec.heads, KV_HEADS=spec.kv_heads, HEAD=spec.head_size, WIDTH=width,
            QUERIES=QUERIES, KEYS=keys, CAUSAL=spec.causal, PREFIX=prefix is not None, num_warps=4,
        )  # fmt: skip
        if self._int8:
            _, context = self._rows(context, w)
        attended = self._product(context, w, "out", self._residual)
        del qkv, context, given
        x, given = self._rows(x, w, attended, "out", norm="norm2" if first else "norm1")
        inner = self._activated(self._product(given, w, "up", self._compute), w)
        down = self._product(inner, w, "down", self._residual)
        self._rows(x, w, down, "down", norm="" if first else "norm2", into=states)

    def _rows(
        self, x: Any, w: Any, added: Any = None, bias: str = "", *, norm: str = "", into: Any = None
    ) -> tuple[Any, Any]:
        """Adds rows, norms them, and prepares them for a product. Returns what later rows are added to, and the input
        of the product; `into` gets the result instead, and no product follows."""
        spec, kind, last = self._spec, self._spec.norm if norm else "", into is not None
        summed = self._empty(self._residual, *x.shape) if added is not None and spec.norm_first and not last else None
        normed, whole, scales = into, x, x
        if self._int8 and not last:
            whole, scales = self._bytes(*x.shape)
        keeps = added is not None and not spec.norm_first
        if not last and (keeps or not self._int8):
            if not norm and x.dtype == self._compute:
                return x, x
            normed = self._empty(self._compute, *x.shape)
        biased, block = bool(bias) and spec.bias and not self._int8, _power(x.shape[1])
        self._kernels.rows[(len(x),)](
            x, x if added is None else added, w[f"{bias}.bias"] if biased else x,
            w[f"{norm}.weight"] if norm else x, w[f"{norm}.bias"] if kind == "layer" else x,
            x if summed is None else summed, x if normed is None else normed, whole, scales, x.shape[1], spec.norm_eps,
            BLOCK=block, ADDED=added is not None, BIAS=biased, TOTAL=summed is not None, NORM=kind,
            NORMED=normed is not None, QUANTIZED=scales is not x, num_warps=_warps(block),
        )  # fmt: skip
        kept = summed if summed is not None else normed if keeps else x
        return kept, normed if scales is x else (whole, scales)

    def _activated(self, up: Any, w: Any) -> Any:
        spec, biased = self._spec, self._spec.bias and not self._int8
        inner = up if self._int8 else self._empty(self._compute, len(up), spec.ffn)
        whole, scales = self._bytes(len(up), spec.ffn) if self._int8 else (up, up)
        self._kernels.activate[(len(up),)](
            up, w["up.bias"] if biased else up, inner, whole, scales, spec.ffn, BLOCK=_power(spec.ffn),
            ACTIVATION=spec.activation, GATED=spec.gated, BIAS=biased, QUANTIZED=self._int8,
            num_warps=_warps(_power(spec.ffn)),
        )  # fmt: skip
        return (whole, scales) if self._int8 else inner

    def _product(self, x: Any, w: Any, name: str, dtype: Any, *, biased: bool = False) -> Any:
        """x times a matrix. In half precision the bias is left to the next kernel, unless this product is `biased`."""
        torch, spec, weight = self._torch, self._spec, w[f"{name}.weight"]
        if not self._int8:
            if biased and spec.bias:
                return torch.addmm(w[f"{name}.bias"], x, weight)
            if dtype != x.dtype:  # the residual stream is summed in a higher precision than that of the product
                return torch.mm(x, weight, out_dtype=dtype) if x.is_cuda else (x @ weight).to(dtype)
            return x @ weight
        whole, scales = x
        inputs, width = spec.matrices()[name]
        result = self._empty(dtype, len(whole), width)
        rows = _ROWS if len(whole) > _FEW_ROWS else _FEW_ROWS
        self._kernels.product[(-(-len(whole) // rows) * -(-width // _COLUMNS),)](
            whole, weight, scales, w[f"{name}.scale"], w[f"{name}.bias"] if spec.bias else scales, result,
            len(whole), width, inputs, ROWS=rows, COLUMNS=_COLUMNS, STEP=_STEP, TOGETHER=_TOGETHER, BIAS=spec.bias,
            num_warps=8 if rows == _ROWS else 4, num_stages=4,
        )  # fmt: skip
        return result

    def _bytes(self, count: int, width: int) -> tuple[Any, Any]:
        return self._empty(self._torch.int8, count, width), self._empty(self._torch.float32, count)

    def _empty(self, dtype: Any, *shape: int) -> Any:
        return self._torch.empty(shape, dtype=dtype, device=self._device)


def _warps(block: int) -> int:
    return max(1, min(8, block // 512))


def _power(size: int) -> int:
    return 1 << (size - 1).bit_length()
