"""Searching a graph of neighbours with several groups of candidates under way (Falcon; Jiang's thesis, chapter 7).

Best-first search evaluates one candidate after the other, and sorts its queue in between. Delayed synchronisation
launches up to `groups` groups of up to `candidates` candidates, and processes only the results of the earliest group
before it launches the next one. This saves time if evaluating a group takes long and several can be under way. With a
queue of the same length, it visits at least as many vertices and finds about as many of the nearest or more.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from edge.errors import RangeError

Evaluated = tuple[Sequence[float], Sequence[Sequence[int]]]
"""The distances of some vertices, and their lists of neighbours. Valid until the next group is launched."""

Launch = Callable[[Sequence[int]], Callable[[], Evaluated]]
"""Begins to evaluate some vertices; the function that it returns waits for the result."""

STALE = 4
"""Candidates too far away are removed once there are more than this many for each result."""

BITS = 1 << 18
"""Bits of the Bloom filter in the source. With 3 hashes and 1,000 visited vertices it mistakes one new vertex in
600,000 for a visited one."""

_FIRST, _SECOND = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9)
_HALF, _ODD = np.uint64(32), np.uint64(1)


@dataclass(frozen=True, slots=True)
class Traversal:
    """The results and the work of one search: the nearest vertices, nearest first and the smaller number first among
    equals; the number of candidates whose neighbours were evaluated; and the number of vertices of each launched group.
    """

    labels: tuple[int, ...]
    hops: int
    launches: tuple[int, ...]
    distances: tuple[float, ...] = ()


def at_once(neighbours: Sequence[Sequence[int]], distances: Callable[[Sequence[int]], Sequence[float]]) -> Launch:
    """Evaluates a group when it is launched, from lists and a function of distances in memory."""

    def launch(vertices: Sequence[int]) -> Callable[[], Evaluated]:
        found = [float(distance) for distance in distances(vertices)], [neighbours[vertex] for vertex in vertices]
        return lambda: found

    return launch


def check_sizes(k: int, length: int, groups: int, candidates: int) -> None:
    if not 1 <= k <= length or min(groups, candidates) < 1:
        raise RangeError(f"{k} results of a queue of {length}, {groups} groups of {candidates} candidates")


def traverse(
    launch: Launch,
    entry: int,
    *,
    k: int,
    length: int,
    groups: int = 1,
    candidates: int = 1,
    visited: Visited | None = None,
) -> Traversal:
    """The `k` vertices nearest to a query, by delayed-synchronisation traversal (algorithm 2) from the vertex `entry`
    with a queue of `length` results. One group of one candidate is best-first search.

    The printed algorithm does not end if no candidate qualifies while groups may still be launched, and does not
    shorten its results to `length`. Both faults are corrected here.
    """
    check_sizes(k, length, groups, candidates)
    seen = ExactSet() if visited is None else visited
    waiting: list[tuple[float, int, Sequence[int]]] = []
    results: list[tuple[float, int]] = []

    def take(vertices: Sequence[int], evaluated: Evaluated) -> None:
        nonlocal waiting
        distances, lists = evaluated
        for place, (distance, vertex) in enumerate(zip(distances, vertices, strict=True)):
            if len(results) == length:
                if (distance, vertex) >= results[-1]:
                    continue
                results.pop()
            insort(results, (distance, vertex))
            heapq.heappush(waiting, (distance, vertex, lists[place]))
        if len(waiting) > STALE * length:
            waiting = [candidate for candidate in waiting if candidate[:2] <= results[-1]]
            heapq.heapify(waiting)

    start = seen.fresh([[entry]])
    take(start, launch(start)())
    flying: deque[tuple[list[int], Callable[[], Evaluated]]] = deque()
    launches: list[int] = []
    hops = 0
    while True:
        while len(flying) < groups:
            group: list[Sequence[int]] = []
            while waiting and len(group) < candidates and waiting[0][:2] <= results[-1]:
                group.append(heapq.heappop(waiting)[2])
            if not group:
                break
            hops += len(group)
            fresh = seen.fresh(group)
            flying.append((fresh, launch(fresh) if fresh else _nothing))
            launches.append(len(fresh))
        if not flying:
            break
        vertices, finish = flying.popleft()
        take(vertices, finish())
    nearest = results[:k]
    return Traversal(
        tuple(vertex for _, vertex in nearest), hops, tuple(launches), tuple(distance for distance, _ in nearest)
    )


def _nothing() -> Evaluated:
    return (), ()


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
    """A set of a power of two `bits` that may report vertices that were never added; these are not visited. Each bit
    takes a byte, because single bits cannot be gathered quickly."""

    def __init__(self, bits: int = BITS, hashes: int = 3) -> None:
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
        self._bits[:] = False

    def _places(self, items: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Numbers of the bits of each item, [hashes, n], by double hashing."""
        mixed = items.astype(np.uint64) * _FIRST
        mixed ^= mixed >> _HALF  # without this step, consecutive numbers would spread too evenly
        mixed *= _SECOND
        places: npt.NDArray[np.uint64] = ((mixed >> _HALF) + self._steps * (mixed | _ODD)) & self._mask
        return places.view(np.int64)
