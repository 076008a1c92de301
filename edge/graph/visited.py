"""The set of vertices that a search has visited: exact, or a Bloom filter of fixed size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from edge.errors import RangeError

BITS = 1 << 18
"""Of the Bloom filter of the source. It takes one visited vertex of 600,000 for another one after 1,000 (3 hashes)."""

_FIRST, _SECOND = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9)
_HALF, _ODD = np.uint64(32), np.uint64(1)


class Visited(Protocol):
    """A set of visited vertices."""

    def fresh(self, lists: Sequence[Sequence[int]]) -> list[int]:
        """Adds the vertices of some lists; returns those that are new, each once, as far as the set can tell."""


class ExactSet:
    """A set without errors. It grows with the number of visited vertices."""

    def __init__(self) -> None:
        self._seen: set[int] = set()

    def fresh(self, lists: Sequence[Sequence[int]]) -> list[int]:
        """Adds the vertices of some lists; returns those that are new, in their order."""
        found = [vertex for row in lists for vertex in row]
        new = list(dict.fromkeys(vertex for vertex in found if vertex not in self._seen))
        self._seen.update(new)
        return new


class BloomFilter:
    """A set of fixed size that may report items that were never added.

    A vertex that is wrongly reported is not visited. Nothing else is lost, since several paths lead to most vertices.

    Attributes:
        nbytes: bytes of the filter; each bit takes a byte, because single bits cannot be gathered quickly.
    """

    def __init__(self, bits: int = BITS, hashes: int = 3) -> None:
        """
        Args:
            bits: number of bits, a power of two.
        """
        if bits < 8 or bits & (bits - 1) or hashes < 1:
            raise RangeError(f"a Bloom filter has a power of two of bits and at least one hash, not {bits}, {hashes}")
        self._bits = np.zeros(bits, bool)
        self._steps = np.arange(hashes, dtype=np.uint64)[:, None]
        self._mask = np.uint64(bits - 1)
        self.nbytes = bits

    def fresh(self, lists: Sequence[Sequence[int]]) -> list[int]:
        """Adds the vertices of some lists; returns those that are new, as far as the filter can tell, in their order.

        All of them are looked up before the first is added. So no vertex hides another one of the same call.
        """
        items = np.concatenate(lists) if len(lists) else np.empty(0, np.int64)
        places = self._places(items)
        new = ~self._bits[places].all(axis=0)
        self._bits[places] = True
        return list(dict.fromkeys(items[new].tolist()))

    def clear(self) -> None:
        """Removes all items."""
        self._bits[:] = False

    def _places(self, items: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Numbers of the bits of each item, [hashes, n], by double hashing."""
        mixed = items.astype(np.uint64) * _FIRST
        mixed ^= mixed >> _HALF  # without this step, consecutive numbers would spread too evenly
        mixed *= _SECOND
        places: npt.NDArray[np.uint64] = ((mixed >> _HALF) + self._steps * (mixed | _ODD)) & self._mask
        return places.view(np.int64)


def false_positive_rate(bits: int, items: int, hashes: int) -> float:
    """The probability that a Bloom filter with `items` items reports a new one as present."""
    return float((1 - math.exp(-hashes * items / bits)) ** hashes)
