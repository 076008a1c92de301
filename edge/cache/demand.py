"""`DemandShadow`: simulates the blocks that memory would hold if nothing were fetched ahead of its use.

Whether lookahead pays is the difference between the real world and one without it. That other world is simulated: its
searches need the same blocks, and it keeps them by the same policy. A block is saved if the real world has it and
the simulated one would have to read it. A block is lost if the real world must read it again and the simulated one
still has it. The loss is reported to the prediction that displaced the block, however many searches ago that was.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, field

from edge.cache.eviction import Policy

_REMEMBERED = 64
"""Number of predictions that losses are attributed to. Blocks that older ones displaced would mostly be gone by now."""


@dataclass(frozen=True, slots=True)
class Displacement:
    """The blocks that one prediction displaced.

    Attributes:
        lost: called with the seconds that searches wait for these blocks, and would not have waited without the
            prediction.
        keys: the displaced blocks. The prediction adds to them.
    """

    lost: Callable[[float], object] | None = None
    keys: set[Hashable] = field(default_factory=set)


class DemandShadow:
    """Names and sizes of the blocks that reading on demand would hold. Thread-safe."""

    def __init__(self, held: Mapping[Hashable, int], policy: Policy) -> None:
        """
        Args:
            held: blocks and their bytes when the simulation starts.
            policy: an eviction policy that knows these blocks and that nobody else uses.
        """
        self._held = dict(held)
        self._policy = policy
        self._nbytes = sum(self._held.values())
        self._displacements: deque[Displacement] = deque(maxlen=_REMEMBERED)
        self._lock = threading.Lock()

    def displacement(self, lost: Callable[[float], object] | None) -> Displacement:
        """Registers a new prediction, which will be told of the losses it causes (see `Displacement`)."""
        with self._lock:
            self._displacements.append(Displacement(lost))
            return self._displacements[-1]

    def search(
        self,
        blocks: Mapping[Hashable, int],
        room: int,
        *,
        absent: Collection[Hashable],
        seconds: Callable[[int], float],
    ) -> set[Hashable]:
        """Simulates a search, and tells predictions the losses they caused for it.

        Args:
            blocks: all blocks that the search needs, with their bytes, in reading order.
            room: bytes that may be held.
            absent: those of the blocks that it really must read.
            seconds: returns the time of reading a number of bytes.

        Returns:
            The blocks that would have to be read if nothing had been fetched ahead.
        """
        with self._lock:
            unread = self._needed(blocks, room)
            losses = [(self._displacer(key), blocks[key]) for key in absent if key not in unread]
            for displacement in self._displacements:
                displacement.keys.difference_update(blocks)
        for lost, nbytes in losses:
            if lost is not None:
                lost(seconds(nbytes))
        return unread

    def _needed(self, blocks: Mapping[Hashable, int], room: int) -> set[Hashable]:
        self._policy.begin_round()
        self._make_room(room, ())
        absent = []
        for key in blocks:
            if key in self._held:
                self._policy.touch(key)
            else:
                absent.append(key)
        for key in absent:  # a search's missing blocks do not displace the blocks that it uses
            if self._make_room(room - blocks[key], blocks):
                self._held[key] = blocks[key]
                self._policy.insert(key)
                self._nbytes += blocks[key]
        return set(absent)

    def _displacer(self, key: Hashable) -> Callable[[float], object] | None:
        """The `lost` function of the last prediction that displaced a block.

        None if no prediction displaced it; it is then missing only because the simulation is not exact.
        """
        latest = reversed(self._displacements)
        return next((one.lost for one in latest if key in one.keys), None)

    def _make_room(self, most: int, spared: Collection[Hashable]) -> bool:
        """Drops the coldest blocks until at most `most` bytes are held; False if that needs `spared` ones."""
        while self._nbytes > most:
            coldest = self._policy.victim(lambda key: key not in spared)
            if coldest is None:
                return False
            self._policy.remove(coldest)
            self._nbytes -= self._held.pop(coldest)
        return True
