"""A cache of blocks by its definition, as a list of the held blocks; hotness round by round; and a policy whose order
is easy to foresee."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass

from edge.cache.cached_block import DECAY, DecayedHotness


@dataclass
class Held:
    nbytes: int
    used: int  # moment of the last use
    round: int  # and its round
    locks: int = 0
    guards: int = 0


class Lru:
    """Least recently used blocks within `capacity` bytes."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.held: dict[int, Held] = {}
        self._clock = 0

    @property
    def nbytes(self) -> int:
        return sum(block.nbytes for block in self.held.values())

    def use(self, key: int, now: int) -> bool:
        if key not in self.held:
            return False
        self._clock += 1
        self.held[key].used = self._clock
        self.held[key].round = max(now, self.held[key].round)
        self.held[key].locks += 1
        return True

    def admit(self, key: int, nbytes: int, now: int, evict: bool) -> bool:
        if not self._make_room(nbytes, now if evict else 0, ()):
            return False
        self._clock += 1
        self.held[key] = Held(nbytes, self._clock, now, locks=1)
        return True

    def prefetch(self, blocks: dict[int, int], limit: int, now: int) -> int | None:
        cold = {key: nbytes for key, nbytes in blocks.items() if key not in self.held}
        if sum(cold.values()) > limit or not self._make_room(sum(cold.values()), now + 1, blocks):
            return None
        for key, nbytes in cold.items():
            self._clock += 1
            self.held[key] = Held(nbytes, self._clock, now)
        for key in blocks:
            self.held[key].guards = 1
        return sum(cold.values())

    def shrink(self, nbytes: int) -> None:
        wanted = max(0, self.nbytes - nbytes)
        for guards in (0, 1):
            for key in self._coldest():
                if self.nbytes > wanted and not self.held[key].locks and self.held[key].guards <= guards:
                    del self.held[key]

    def _make_room(self, nbytes: int, before: int, spared: Collection[int]) -> bool:
        going = []
        for key in self._coldest():
            block = self.held[key]
            if self.nbytes - sum(self.held[k].nbytes for k in going) + nbytes <= self.capacity:
                break
            if not block.locks and not block.guards and block.round < before and key not in spared:
                going.append(key)
        if self.nbytes - sum(self.held[k].nbytes for k in going) + nbytes > self.capacity:
            return False
        for key in going:
            del self.held[key]
        return True

    def _coldest(self) -> list[int]:
        return sorted(self.held, key=lambda key: self.held[key].used)


class Hotness:
    """h <- h / decay + (used ? gain : 0), for every block in every round."""

    def __init__(self, decay: float, gain: float, initial: float) -> None:
        self.decay, self.gain, self.initial = decay, gain, initial
        self.value: dict[int, float] = {}
        self._fresh: set[int] = set()  # used in this round, or fetched in it

    def insert(self, key: int) -> None:
        self.value[key] = self.initial
        self._fresh.add(key)

    def touch(self, key: int) -> None:
        if key not in self._fresh:
            self.value[key] += self.gain
            self._fresh.add(key)

    def remove(self, key: int) -> None:
        del self.value[key]
        self._fresh.discard(key)

    def begin_round(self) -> None:
        self.value = {key: value / self.decay for key, value in self.value.items()}
        self._fresh.clear()


def hotness(policy: DecayedHotness, key: Hashable) -> float:
    """A block's present value."""
    return math.exp(policy._hot[key][0] - policy._round * math.log(DECAY))


class LeastRecent:
    """A policy (see `edge.cache.cached_block.Policy`): the block that was used longest ago goes first."""

    def __init__(self) -> None:
        self._order: OrderedDict[Hashable, None] = OrderedDict()

    def insert(self, key: Hashable) -> None:
        self._order[key] = None

    def touch(self, key: Hashable) -> None:
        self._order.move_to_end(key)

    def remove(self, key: Hashable) -> None:
        del self._order[key]

    def begin_round(self) -> None:
        pass

    def victim(self, evictable: Callable[[Hashable], bool]) -> Hashable | None:
        return next((key for key in self._order if evictable(key)), None)

    def copy(self) -> LeastRecent:
        made = LeastRecent()
        made._order.update(self._order)
        return made
