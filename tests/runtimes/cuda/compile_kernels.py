"""Compiles every kernel for a GPU of compute capability 8.0, and prints its name. `test_fused.py` runs it in a process
of its own, in which Triton is not interpreted."""

import runpy
from pathlib import Path

runpy.run_path(str(Path(__file__).parents[2] / "packages.py"))["load"]()

import triton  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from edge.devices.cuda import kernels as searching  # noqa: E402
from edge.runtimes.cuda import kernels  # noqa: E402

HALF, SINGLE, BYTES, WHOLE = "*fp16", "*fp32", "*i8", "i32"
GIVEN = {
    "rows": (
        [HALF] * 7 + [BYTES, SINGLE, WHOLE, "fp32"],
        {"BLOCK": 64, "ADDED": True, "BIAS": True, "TOTAL": True, "NORM": "layer", "NORMED": True, "QUANTIZED": True},
    ),
    "activate": (
        [HALF, HALF, HALF, BYTES, SINGLE, WHOLE],
        {"BLOCK": 64, "ACTIVATION": "gelu", "GATED": True, "BIAS": True, "QUANTIZED": False},
    ),
    "product": (
        [BYTES, BYTES, SINGLE, SINGLE, SINGLE, HALF, WHOLE, WHOLE, WHOLE],
        {"ROWS": 16, "COLUMNS": 32, "STEP": 64, "TOGETHER": 8, "BIAS": True},
    ),
    "turn": (
        [HALF, "*i64", SINGLE, SINGLE, SINGLE, SINGLE, WHOLE, "fp32"],
        {"HEADS": 4, "HALF": 16, "BLOCK": 16, "NORM": True, "ROTATED": True},
    ),
    "attend": (
        [HALF, HALF, HALF, HALF, "*i32", WHOLE, "fp32"],
        {"HEADS": 4, "KV_HEADS": 2, "HEAD": 32, "WIDTH": 32, "QUERIES": 64, "KEYS": 16, "CAUSAL": True, "PREFIX": True},
    ),
    "scan": (
        ["*i64", SINGLE, SINGLE, SINGLE, WHOLE, WHOLE],
        {"KIND": "flat", "DIM": 384, "SIZE": 1536, "ROWS": 64, "STEP": 64},
    ),
    "gather": (
        ["*i64", "*i64", "*i64", SINGLE, "*i32", WHOLE, WHOLE],
        {"SIZE": 384, "ROWS": 64, "BLOCK": 512, "WORDS": 98},
    ),
}

for name, (types, constants) in GIVEN.items():
    kernel = getattr(kernels, name, None) or getattr(searching, name)
    names = kernel.arg_names
    signature = dict(zip(names, types + ["constexpr"] * len(constants), strict=True))
    source = ASTSource(kernel, signature, {(names.index(key),): value for key, value in constants.items()})
    triton.compile(source, target=GPUTarget("cuda", 80, 32))
    print(name)
