"""The sizes of blocks in a layer of `OnnxRuntime`, and upper bounds on its work memory."""

from __future__ import annotations

import numpy as np

from edge.models.spec import LayerSpec
from edge.runtimes.base import HiddenDtype

BLOCK_VALUES = 5 * 2**19
"""Largest number of outputs of the widest matrix per block of tokens: 10 MiB, 640 tokens for a feed-forward width of
4096. Measured on two Zen 4 cores: blocks of 250 tokens of that width are 3 % slower than blocks of 500; blocks of 1000
tokens and more are slower again."""

QUERIES = 128
"""Largest number of query tokens in a block of attention. A causal block skips the keys after its end."""

SCORES = 2**21
"""Approximate number of attention scores in such a block: 8 MiB. So long sequences get blocks of fewer queries."""

THREAD_SCRATCH = 3 * 2**20
"""Upper bound on onnxruntime's bytes per thread, for packed pieces of matrices and tiles of flash attention."""

MARGIN = 11, 10
"""Safety factor above the sum of the parts. Processors pack matrices differently and the allocator rounds up: the sum
was 1 % too low on one machine and 5 % too high on another."""


def workspace(
    spec: LayerSpec,
    hidden_dtype: HiddenDtype,
    threads: int,
    tokens: int,
    longest: int,
    prefix: int,
    *,
    token_bytes: int,
    fixed_bytes: int,
    fused: bool,
) -> int:
    """See `LayerKernel.workspace`. `token_bytes` and `fixed_bytes` are those of a `Stage`."""
    queries, keys = spec.heads * spec.head_size, spec.kv_heads * spec.head_size
    row = spec.hidden * np.dtype(hidden_dtype).itemsize
    group = min(tokens, max(longest, block_tokens(spec)))
    total = prefix + longest
    held = tokens * row + 4 * group * 2 * (queries + keys)
    held += scratch_bytes(spec, group, total, token_bytes, fixed_bytes, fused)
    if fused:
        attend = 4 * group * 3 * queries
    else:
        rows = min(longest, query_tokens(spec, total))
        attend = 4 * rows * (3 * queries + total) + 8 * keys * total * bool(prefix)
    if spec.rope_theta is not None:
        held += 16 * total * spec.head_size
    return (held + attend + threads * THREAD_SCRATCH) * MARGIN[0] // MARGIN[1]


def scratch_bytes(spec: LayerSpec, tokens: int, keys: int, token_bytes: int, fixed_bytes: int, fused: bool) -> int:
    """Bytes of a run's scratch memory, see `OnnxLayerKernel`."""
    scores = 0 if fused else min(QUERIES * spec.heads * keys, max(SCORES, 16 * spec.heads * keys))
    return max(min(tokens, block_tokens(spec)) * token_bytes + fixed_bytes, 4 * scores)


def scratch_bound(spec: LayerSpec) -> tuple[int, int]:
    """Upper bounds on `token_bytes` and `fixed_bytes` of the layer's stages, without building their graphs.

    `finish` holds the feed-forward part's values twice, three rows of the hidden width, and either a fourth row or the
    quantized values. `project` holds the three projections up to three times, because of norms and rotation. fp16
    weights are converted to fp32 one matrix at a time.
    """
    matrices = spec.matrices()
    (_, qkv), (_, up) = matrices["qkv"], matrices["up"]
    rows = 3 * 4 * spec.hidden + max(4 * spec.hidden, up)
    widened = max(rows * columns for rows, columns in matrices.values()) if spec.precision == "fp16" else 0
    return max(2 * 4 * up, 3 * 4 * qkv) + rows + 256, 4 * widened


def block_tokens(spec: LayerSpec) -> int:
    """Number of tokens in a block of `project` and `finish`."""
    return max(256, BLOCK_VALUES // max(columns for _, columns in spec.matrices().values()))


def query_tokens(spec: LayerSpec, keys: int) -> int:
    """Number of query tokens in a block of attention to `keys` keys."""
    return max(16, min(QUERIES, SCORES // (spec.heads * keys)))
