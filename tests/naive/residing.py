"""A residency over a stand-in disk, with a budget counted in blocks."""

from __future__ import annotations

from edge.blocks import BlockId
from edge.budget import MemoryBudget
from edge.cache.cached_block import Bytes, Fetch, Policy, charge_of
from edge.cache.residency import Handle, Residency
from edge.link import Lane, Ticket
from naive.residency import LeastRecent
from naive.source import MemorySource, numbered_blocks

SIZE = 100
CHARGE = charge_of(SIZE)


class Rig:
    """Blocks of different sizes behind a lane, and a residency for `blocks` of the smallest."""

    def __init__(self, blocks: int = 3, *, capacity: int | None = None, policy: Policy | None = None) -> None:
        self.source = MemorySource(numbered_blocks([SIZE] * 12))
        self.lane = Lane()
        self.budget = MemoryBudget(blocks * CHARGE, baseline=0)
        self.residency = Residency(self.budget, policy=policy or LeastRecent(), capacity=capacity)
        self.now = self.residency.begin_round()

    def fetch(self, key: int, priority: float = 0.0) -> Fetch:
        def start(buffer: Bytes) -> Ticket:
            return self.lane.fetch(self.source, BlockId("layer", key), buffer.data, priority=priority)

        return start

    def claim(self, key: int) -> Handle | None:
        return self.residency.claim([(key, self.fetch(key))], self.now)[0]

    def admit(self, key: int, *, evict: bool = True) -> Handle | None:
        return self.residency.admit(key, SIZE, self.fetch(key), self.now, evict=evict)

    def load(self, *keys: int) -> None:
        for key in keys:
            handle = self.admit(key)
            assert handle is not None
            self.check(handle, key)
            handle.release()

    def check(self, handle: Handle, key: int) -> None:
        assert handle.wait().tobytes() == self.source.blocks[BlockId("layer", key)]

    def prefetch(self, *keys: int, owner: object = "p", limit: int = 1 << 30) -> int | None:
        """Bytes asked for; None if it was refused."""
        admitted = self.residency.prefetch(owner, ((k, SIZE, self.fetch(k, 1.0)) for k in keys), limit)
        return None if admitted is None else admitted.asked

    def next_round(self) -> None:
        self.now = self.residency.begin_round()

    def settle(self) -> None:
        self.lane.submit("last", lambda: 0, 0, priority=1e9).wait()

    def count(self, name: str) -> float:
        return self.residency.trace.snapshot().get(f"lists.{name}", 0)
