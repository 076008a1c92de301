"""Kernels of a layer in Triton: what lies between products, products of bytes, and attention of all lengths at once."""

# Triton compiles these functions: types of their arguments are for it, and loops are over blocks.
# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def _quantize(x, live, quantized, scales, row, width, columns):
    """Writes a row as bytes and their factor, as every runtime quantizes rows."""
    scale = tl.div_rn(tl.maximum(tl.max(tl.where(live, tl.abs(x), 0.0)), 1e-30), 127.0)
    # Adding and subtracting 1.5 * 2 ** 23 rounds to a whole number, halves to the even one.
    whole = (tl.div_rn(x, scale) + 12582912.0) - 12582912.0
    tl.store(quantized + row * width + columns, whole.to(tl.int8), mask=live)
    tl.store(scales + row, scale)


@triton.jit
def rows(
    x, added, bias, weight, shift, total, normed, quantized, scales, width, epsilon,
    BLOCK: tl.constexpr, ADDED: tl.constexpr, BIAS: tl.constexpr, TOTAL: tl.constexpr, NORM: tl.constexpr,
    NORMED: tl.constexpr, QUANTIZED: tl.constexpr,
):  # fmt: skip
    """One row: x, plus `added` and a bias; the sum, its norm (`layer`, `rms` or none), and that as bytes."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    live = columns < width
    value = tl.load(x + row * width + columns, mask=live, other=0.0).to(tl.float32)
    if ADDED:
        value += tl.load(added + row * width + columns, mask=live, other=0.0).to(tl.float32)
    if BIAS:
        value += tl.load(bias + columns, mask=live, other=0.0).to(tl.float32)
    if TOTAL:
        tl.store(total + row * width + columns, value.to(total.dtype.element_ty), mask=live)
    if NORM == "layer":
        value = tl.where(live, value - tl.sum(value) / width, 0.0)
    if NORM != "":
        value *= tl.rsqrt(tl.sum(value * value) / width + epsilon)
        value *= tl.load(weight + columns, mask=live, other=0.0).to(tl.float32)
        if NORM == "layer":
            value += tl.load(shift + columns, mask=live, other=0.0).to(tl.float32)
    if NORMED:
        tl.store(normed + row * width + columns, value.to(normed.dtype.element_ty), mask=live)
    if QUANTIZED:
        _quantize(value, live, quantized, scales, row, width, columns)


@triton.jit
def activate(
    up, bias, inner, quantized, scales, width,
    BLOCK: tl.constexpr, ACTIVATION: tl.constexpr, GATED: tl.constexpr, BIAS: tl.constexpr, QUANTIZED: tl.constexpr,
):  # fmt: skip
    """One row of the feed-forward part: the activation of its first half times the second, or of all of it."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    live = columns < width
    start = row * width * 2 if GATED else row * width
    x = tl.load(up + start + columns, mask=live, other=0.0).to(tl.float32)
    if BIAS:
        x += tl.load(bias + columns, mask=live, other=0.0).to(tl.float32)
    if ACTIVATION == "gelu":
        x = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    elif ACTIVATION == "gelu_tanh":
        x = x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    elif ACTIVATION == "silu":
        x = x * tl.sigmoid(x)
    else:
        x = tl.maximum(x, 0.0)
    if GATED:
        gated = tl.load(up + start + width + columns, mask=live, other=0.0).to(tl.float32)
        if BIAS:
            gated += tl.load(bias + width + columns, mask=live, other=0.0).to(tl.float32)
        x *= gated
    if QUANTIZED:
        _quantize(x, live, quantized, scales, row, width, columns)
    else:
        tl.store(inner + row * width + columns, x.to(inner.dtype.element_ty), mask=live)


@triton.jit(do_not_specialize=["count"])
def product(
    x, weight, row_scales, scales, bias, result, count, width, inputs,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr, TOGETHER: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """Bytes [count, inputs] times bytes [inputs, width], of which columns are contiguous, as integers; then the factors
    and the bias. Blocks of `TOGETHER` rows of blocks run side by side, so that they find the weights in the cache."""
    number = tl.program_id(0)
    down, across = tl.cdiv(count, ROWS), tl.cdiv(width, COLUMNS)
    first = number // (TOGETHER * across) * TOGETHER
    high = tl.minimum(down - first, TOGETHER)
    own = (first + number % (TOGETHER * across) % high) * ROWS + tl.arange(0, ROWS)
    columns = number % (TOGETHER * across) // high * COLUMNS + tl.arange(0, COLUMNS)
    steps = tl.arange(0, STEP)
    left = x + own.to(tl.int64)[:, None] * inputs + steps[None, :]
    right = weight + columns.to(tl.int64)[None, :] * inputs + steps[:, None]
    total = tl.zeros((ROWS, COLUMNS), tl.int32)
    for low in range(0, inputs, STEP):
        inside = low + steps < inputs
        a = tl.load(left + low, mask=(own < count)[:, None] & inside[None, :], other=0)
        b = tl.load(right + low, mask=(columns < width)[None, :] & inside[:, None], other=0)
        total = tl.dot(a, b, total, out_dtype=tl.int32)
    value = total.to(tl.float32) * tl.load(scales + columns, mask=columns < width, other=0.0)[None, :]
    value *= tl.load(row_scales + own, mask=own < count, other=0.0)[:, None]
    if BIAS:
        value += tl.load(bias + columns, mask=columns < width, other=0.0)[None, :]
    into = result + own.to(tl.int64)[:, None] * width + columns[None, :]
    tl.store(into, value.to(result.dtype.element_ty), mask=(own < count)[:, None] & (columns < width)[None, :])


@triton.jit
def turn(
    qkv, positions, cosines, sines, q_norm, k_norm, stride, epsilon,
    HEADS: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr, NORM: tl.constexpr, ROTATED: tl.constexpr,
):  # fmt: skip
    """Norms one head of a token's queries and keys (`HEADS` are those of queries) and rotates it, in place."""
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    columns = tl.arange(0, BLOCK)
    live = columns < HALF
    place = qkv + token * stride + head * 2 * HALF + columns
    low = tl.load(place, mask=live, other=0.0).to(tl.float32)
    high = tl.load(place + HALF, mask=live, other=0.0).to(tl.float32)
    if NORM:
        factor = tl.rsqrt((tl.sum(low * low) + tl.sum(high * high)) / (2 * HALF) + epsilon)
        weight = q_norm if head < HEADS else k_norm
        low *= factor * tl.load(weight + columns, mask=live, other=0.0).to(tl.float32)
        high *= factor * tl.load(weight + HALF + columns, mask=live, other=0.0).to(tl.float32)
    if ROTATED:
        angle = tl.load(positions + token) * HALF + columns
        cosine = tl.load(cosines + angle, mask=live, other=0.0)
        sine = tl.load(sines + angle, mask=live, other=0.0)
        low, high = low * cosine - high * sine, high * cosine + low * sine
    tl.store(place, low.to(qkv.dtype.element_ty), mask=live)
    tl.store(place + HALF, high.to(qkv.dtype.element_ty), mask=live)


@triton.jit
def _attended(q, k, v, inside, best, total, context, scale):
    """The running maximum, sum and context after one more block of keys (FlashAttention, Dao 2023)."""
    scores = tl.where(inside, tl.dot(q, tl.trans(k), input_precision="ieee") * scale, -1e30)
    higher = tl.maximum(best, tl.max(scores, 1))
    weights = tl.where(inside, tl.exp2(scores - higher[:, None]), 0.0)
    old = tl.exp2(best - higher)
    context = context * old[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
    return higher, total * old + tl.sum(weights, 1), context


@triton.jit(do_not_specialize=["prefix"])
def attend(
    qkv, prefix_keys, prefix_values, context_of, tiles, prefix, scale,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD: tl.constexpr, WIDTH: tl.constexpr, QUERIES: tl.constexpr,
    KEYS: tl.constexpr, CAUSAL: tl.constexpr, PREFIX: tl.constexpr,
):  # fmt: skip
    """Attention of one head for a tile of one sequence: first token, number, and the sequence's first token and end.
    `scale` is for powers of two. Keys are those of the prefix, then the sequence's."""
    tile, head = tl.program_id(0), tl.program_id(1)
    first, count = tl.load(tiles + tile * 4), tl.load(tiles + tile * 4 + 1)
    start, end = tl.load(tiles + tile * 4 + 2), tl.load(tiles + tile * 4 + 3)
    stride = (HEADS + 2 * KV_HEADS) * HEAD
    shared = head // (HEADS // KV_HEADS)
    own, columns, steps = tl.arange(0, QUERIES), tl.arange(0, WIDTH), tl.arange(0, KEYS)
    wide = (columns < HEAD)[None, :]
    tokens = (first + own).to(tl.int64)
    live = (own < count)[:, None] & wide
    q = tl.load(qkv + tokens[:, None] * stride + head * HEAD + columns[None, :], mask=live, other=0.0)
    best = tl.full((QUERIES,), -1e30, tl.float32)
    total = tl.zeros((QUERIES,), tl.float32)
    context = tl.zeros((QUERIES, WIDTH), tl.float32)
    if PREFIX:
        for low in range(0, prefix, KEYS):
            place = (low + steps)[:, None] * (KV_HEADS * HEAD) + shared * HEAD + columns[None, :]
            there = (low + steps < prefix)[:, None] & wide
            k = tl.load(prefix_keys + place, mask=there, other=0.0)
            v = tl.load(prefix_values + place, mask=there, other=0.0)
            inside = (low + steps < prefix)[None, :] & (own < count)[:, None]
            best, total, context = _attended(q, k, v, inside, best, total, context, scale)
    stop = tl.minimum(end, first + count) if CAUSAL else end
    for low in range(start, stop, KEYS):
        place = (low + steps).to(tl.int64)[:, None] * stride + (HEADS + shared) * HEAD + columns[None, :]
        there = (low + steps < stop)[:, None] & wide
        k = tl.load(qkv + place, mask=there, other=0.0)
        v = tl.load(qkv + place + KV_HEADS * HEAD, mask=there, other=0.0)
        inside = (low + steps < stop)[None, :] & (own < count)[:, None]
        if CAUSAL:
            inside &= (low + steps)[None, :] <= (first + own)[:, None]
        best, total, context = _attended(q, k, v, inside, best, total, context, scale)
    into = context_of + tokens[:, None] * (HEADS * HEAD) + head * HEAD + columns[None, :]
    context = context / tl.where(total > 0, total, 1.0)[:, None]
    tl.store(into, context.to(context_of.dtype.element_ty), mask=live)
