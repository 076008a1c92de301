"""SQLite's checksum: two sums over 32-bit words, each added to the other in turn. Logs and the `cksumvfs` shim use it.

The sums are linear modulo 2^32. So the sums of many blocks are one matrix product with fixed weights.

Source: https://sqlite.org/fileformat2.html#checksum_algorithm
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

Sums = tuple[int, int]

_MODULUS = 1 << 32


def sums(words: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """The two sums of each block of words [n, words], computed from a start of zero: [n, 2]."""
    return np.asarray(words @ _weights(words.shape[1]))


def continued(before: Sums, own: Sums, words: int) -> Sums:
    """The two sums of a block that continues earlier sums.

    Args:
        before: the sums before the block.
        own: the sums of the block from a start of zero, as `sums` returns them.
        words: length of the block.
    """
    (a, b), (c, d) = _carried(words)
    return (before[0] * a + before[1] * c + own[0]) % _MODULUS, (before[0] * b + before[1] * d + own[1]) % _MODULUS


@cache
def _weights(count: int) -> npt.NDArray[np.uint32]:
    """The weight of each word of a block in each of the two sums, [words, 2]."""
    weights = np.empty((count, 2), np.uint32)
    first, second = (1, 1), (0, 1)  # weights of the last pair of words
    for at in range(count - 2, -1, -2):
        weights[at], weights[at + 1] = first, second
        first, second = _stepped(first), _stepped(second)
    return weights


@cache
def _carried(count: int) -> tuple[Sums, Sums]:
    """The weight of each sum before a block in each sum after the block."""
    first, second = (1, 0), (0, 1)
    for _ in range(count // 2):
        first, second = _stepped(first), _stepped(second)
    return first, second


def _stepped(before: Sums) -> Sums:
    """The sums after a pair of zero words."""
    one = (before[0] + before[1]) % _MODULUS
    return one, (before[1] + one) % _MODULUS
