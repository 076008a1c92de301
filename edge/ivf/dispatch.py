"""Several devices: micro-batches of similar queries, and which device serves which (TeleRAG, section 4.2).

`group` is the paper's prefetching scheduler, and `Dispatch` its cache-aware scheduling. The paper assigns all
micro-batches before the first one runs, by the lists on each device then. Here a device that is free takes one of the
micro-batches that still wait, by its lists now, so that no device waits for a slower one.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from edge.ivf.base import Vectors
from edge.ivf.tiers import Tier


def group(queries: Vectors, size: int) -> list[npt.NDArray[np.int64]]:
    """Cuts a batch into micro-batches of at most `size` queries by greedy nearest neighbours (L2).

    Similar queries probe the same lists, so that each micro-batch shares the lists that are fetched for it.

    Args:
        queries: [q, dim].

    Returns:
        Numbers of queries, each in exactly one group. A group is the first query left and its nearest neighbours.
    """
    left = np.arange(len(queries))
    groups = []
    while len(left):
        difference = queries[left] - queries[left[0]]
        distance = np.einsum("ij,ij->i", difference, difference)
        distance[0] = -1.0  # the first query itself, even if it has a duplicate
        near = np.argsort(distance, kind="stable")[:size]
        groups.append(left[near])
        left = np.delete(left, near)
    return groups


T = TypeVar("T")

Keys = Collection[Hashable]
"""Keys of the list parts that a query or a micro-batch probes."""


class Dispatch:
    """Several devices, each with lists of its own. Thread-safe."""

    def __init__(self, tiers: Sequence[Tier]) -> None:
        self.tiers = list(tiers)
        self._searching: Counter[Tier] = Counter()
        self._lock = threading.Lock()

    @property
    def answering(self) -> list[Tier]:
        """The devices that have not been lost."""
        return [tier for tier in self.tiers if not tier.lost]

    def choose(self, keys: Keys, *, idle: bool = False) -> Tier | None:
        """The device that holds most of the parts; among equals the one that holds the fewest bytes. None if all
        devices are lost.

        Args:
            idle: choose only among the devices with the fewest running searches.
        """
        tiers = self.answering
        with self._lock:
            fewest = min((self._searching[tier] for tier in tiers), default=0)
            tiers = [tier for tier in tiers if not idle or self._searching[tier] == fewest]
        if len(tiers) < 2:
            return tiers[0] if tiers else None
        return max(tiers, key=lambda tier: (held(tier, keys), -tier.residency.nbytes))

    @contextmanager
    def searching(self, tier: Tier | None) -> Iterator[None]:
        """Counts a running search on a device."""
        if tier is None:
            yield
            return
        with self._lock:
            self._searching[tier] += 1
        try:
            yield
        finally:
            with self._lock:
                self._searching[tier] -= 1

    def take(self, waiting: Sequence[Keys], tier: Tier) -> int:
        """Number of the waiting micro-batch that has the most parts on a device; the first among equals."""
        return max(range(len(waiting)), key=lambda number: (held(tier, waiting[number]), -number))

    def run(self, batches: Sequence[tuple[Keys, T]], work: Callable[[Tier, T], None]) -> None:
        """Runs micro-batches on all devices in parallel, each with the parts that it probes. Returns when all are done.

        Args:
            work: called in a thread of the device, with the device and a micro-batch.

        Raises:
            The first error of `work`. No micro-batch begins after it.
        """
        waiting = list(batches)
        errors: list[BaseException] = []

        def serve(tier: Tier) -> None:
            while True:
                with self._lock:
                    if not waiting or errors:
                        return
                    _, batch = waiting.pop(self.take([keys for keys, _ in waiting], tier))
                try:
                    with self.searching(tier):
                        work(tier, batch)
                except BaseException as error:  # raised again in the caller's thread
                    errors.append(error)

        threads = [
            threading.Thread(target=serve, args=(tier,), name=f"edge-{tier.residency.name}", daemon=True)
            for tier in self.answering
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]


def held(tier: Tier, keys: Keys) -> int:
    """How many of the parts a device holds, or is about to hold."""
    return len(keys) - len(tier.residency.absent(keys))
