"""What fetching ahead gains: the number of bytes a prediction should fetch, and a simulation without lookahead.

`bytes_to_fetch` follows from a prediction's miss rate by bytes (TeleRAG, appendix B).

Whether lookahead pays is the difference between the real world and one without it. `DemandShadow` simulates that other
world: its searches need the same blocks, and it keeps them by the same policy. A block is saved if the real world has
it and the simulated one would have to read it. A block is lost if the real world must read it again and the simulated
one still has it. The loss is reported to the prediction that displaced the block, however many searches ago that was.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from edge.cache.block_cache import Policy
from edge.errors import InputError

_SAMPLES = 4096


class MissCurve:
    """Share of needed blocks that a prediction misses, as a function of the bytes fetched. Thread-safe.

    It is learned from the blocks that were needed after earlier predictions.
    """

    def __init__(self) -> None:
        self._needed: list[float] = []
        self._lock = threading.Lock()

    def observe(self, positions: Sequence[float]) -> None:
        """Learns from the blocks that were needed after a prediction.

        Args:
            positions: for each needed block, the bytes that must be fetched in the order of the prediction until the
                block is there; infinity for a block that was not predicted.
        """
        with self._lock:
            self._needed = [*self._needed, *positions][-_SAMPLES:]

    def points(self) -> list[tuple[float, float]]:
        """(bytes, miss rate): the steps of the curve, ascending in bytes, from (0, 1); empty before any observation."""
        with self._lock:
            needed = sorted(self._needed)
        if not needed:
            return []
        steps = [(0.0, 1.0)]
        for i, position in enumerate(needed, 1):
            if math.isfinite(position):
                steps.append((position, 1 - i / len(needed)))
        return steps


def bytes_to_fetch(
    bandwidth: float, seconds: float, misses: Sequence[tuple[float, float]], slow_seconds: float
) -> float:
    """Bytes to fetch for the smallest total time of fetching and searching (TeleRAG, appendix B).

    The total is t1 + t2 with t1 = max(window, b / bandwidth) and t2 = miss(b) * slow_seconds. It is smallest either at
    b = bandwidth * seconds, or at a later step of the miss curve, where t1 has grown less than t2 has fallen.

    Args:
        bandwidth: bytes per second of the link.
        seconds: length of the window.
        misses: (bytes, miss rate), ascending; see `MissCurve.points`.
        slow_seconds: time of a search that misses every block.

    Raises:
        InputError: the bandwidth or the window is negative.
    """
    if bandwidth < 0 or seconds < 0:
        raise InputError(f"a window has a bandwidth and a length of at least 0, not {bandwidth} and {seconds}")
    inside = bandwidth * seconds
    if not bandwidth or not misses:
        return inside
    reached = min((miss for nbytes, miss in misses if nbytes <= inside), default=1.0)
    choices = [(seconds + reached * slow_seconds, inside)]
    choices += [(b / bandwidth + miss * slow_seconds, b) for b, miss in misses if b > inside]
    return min(choices)[1]


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
