"""Attention of packed sequences: each token attends to its own sequence and to a shared prefix."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from edge.models.spec import LayerSpec


@dataclass(frozen=True, slots=True)
class Group:
    """Neighbouring sequences for which attention is computed together.

    Attributes:
        first, last: the group's tokens in the chunk, [first, last).
        lengths: number of tokens of each sequence.
        starts, key_starts: int32 [n + 1] on the device: the start of each sequence among the group's queries and keys.
        keys: the rows of the group's keys; the prefix's rows come before those of the chunk. None without a prefix.
        longest, longest_keys: largest number of queries and of keys in a sequence of the group.
    """

    first: int
    last: int
    lengths: tuple[int, ...]
    starts: Any
    key_starts: Any
    keys: Any
    longest: int
    longest_keys: int


@dataclass(frozen=True, slots=True)
class Layout:
    """The places of a chunk's sequences.

    Attributes:
        positions: int64 [tokens] on the device: the place of each token in its sequence, prefix included.
        longest: number of tokens in the longest sequence, prefix included.
    """

    groups: tuple[Group, ...]
    positions: Any
    longest: int


def layout(torch: Any, device: Any, lengths: Sequence[int], prefix: int) -> Layout:
    """The layout of sequences of `lengths` tokens after a prefix of `prefix` tokens.

    A group takes further sequences as long as it has no more keys than the chunk has tokens. With a prefix, keys and
    values are copied to be contiguous, and this limits the size of the copy.
    """
    own = np.asarray(lengths, np.int64)
    ends = np.cumsum(own)
    positions = np.arange(int(ends[-1])) - np.repeat(ends - own, own) + prefix

    def on_device(values: Any, dtype: Any) -> Any:
        return torch.from_numpy(np.ascontiguousarray(values, dtype)).to(device, non_blocking=True)

    groups = []
    for low, high in _cuts(own, prefix, int(ends[-1])):
        part = own[low:high]
        first = int(ends[low] - own[low])
        starts = np.concatenate(([0], np.cumsum(part)))
        key_starts = np.concatenate(([0], np.cumsum(part + prefix)))
        keys = None
        if prefix:
            rows = [
                np.concatenate((np.arange(prefix), prefix + first + np.arange(a, b)))
                for a, b in pairwise(starts.tolist())
            ]
            keys = on_device(np.concatenate(rows), np.int64)
        place = first, first + int(starts[-1]), tuple(part.tolist())
        bounds = on_device(starts, np.int32), on_device(key_starts, np.int32), keys
        groups.append(Group(*place, *bounds, int(part.max()), int(part.max()) + prefix))
    return Layout(tuple(groups), on_device(positions, np.int64), int(own.max()) + prefix)


def attend(torch: Any, spec: LayerSpec, group: Group, q: Any, k: Any, v: Any) -> Any:
    """Attention of a group's queries [queries, heads, head_size] to its keys and values [keys, kv_heads, head_size].

    In half precision on a GPU this is one kernel for all lengths (FlashAttention, Dao 2023). Its causal mask is aligned
    to the last key of each sequence, so that every token attends to the whole prefix. The kernel does not support
    single precision or a CPU. In these cases sequences of equal length are computed together.
    """
    if q.is_cuda and q.dtype != torch.float32:
        return torch.ops.aten._flash_attention_forward(
            q, k, v, group.starts, group.key_starts, group.longest, group.longest_keys, 0.0, spec.causal, False,
            scale=1 / math.sqrt(spec.head_size),
        )[0]  # fmt: skip
    prefix = group.longest_keys - group.longest
    context = torch.empty_like(q)
    done = key = 0
    for count, length in _runs(group.lengths):
        rows, keys = count * length, count * (length + prefix)
        parts = ((q, done, rows), (k, key, keys), (v, key, keys))
        mine, theirs, values = (
            x[at : at + n].view(count, n // count, *x.shape[1:]).transpose(1, 2) for x, at, n in parts
        )
        mask = None
        if spec.causal and length > 1:
            mask = torch.ones(length, length + prefix, dtype=torch.bool, device=q.device).tril(prefix)
        found = torch.nn.functional.scaled_dot_product_attention(
            mine, theirs, values, attn_mask=mask, enable_gqa=spec.heads != spec.kv_heads
        )
        context[done : done + rows] = found.transpose(1, 2).reshape(rows, *q.shape[1:])
        done, key = done + rows, key + keys
    return context


def _cuts(lengths: Any, prefix: int, most: int) -> Iterator[tuple[int, int]]:
    if not prefix:
        yield 0, len(lengths)
        return
    start = keys = 0
    for number, length in enumerate(lengths.tolist()):
        if number > start and keys + length + prefix > most:
            yield start, number
            start, keys = number, 0
        keys += length + prefix
    yield start, len(lengths)


def _runs(lengths: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Runs of neighbouring sequences of equal length, as (count, length)."""
    start = 0
    for number in range(1, len(lengths) + 1):
        if number == len(lengths) or lengths[number] != lengths[start]:
            yield number - start, lengths[start]
            start = number
