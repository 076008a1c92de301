"""`Compiling`: leases for what kernels take in this process once a driver has compiled them."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager

from edge.budget import Lease, MemoryBudget


class Compiling:
    """Kernels are compiled at their first use. What that takes cannot be computed, so it is measured."""

    def __init__(self, host: MemoryBudget, owner: str) -> None:
        self._host = host
        self._owner = owner
        self._known: set[Hashable] = set()
        self._leases: list[Lease] = []

    @contextmanager
    def __call__(self, kernels: Hashable) -> Iterator[None]:
        """Is held while kernels run that may be compiled first."""
        if kernels in self._known:
            yield
            return
        self._known.add(kernels)
        with self._host.charge(self._owner) as lease:
            self._leases.append(lease)
            yield

    def close(self) -> None:
        for lease in self._leases:
            lease.release()
