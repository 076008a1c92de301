"""Lookahead: fetches blocks that a prediction names while other work keeps the caller busy (TeleRAG, section 4.1). It
changes only when bytes arrive, never a result.

Whether it pays is the difference from `DemandShadow`, a simulated world without it: a block is saved if only the real
world has it, and lost if only the simulated one does. The loss is reported to the prediction that displaced the
block."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from typing import Any

from edge.blocks import BlockFile, BlockId
from edge.cache.cached_block import Bytes, Fetch, Policy
from edge.cache.residency import Residency
from edge.errors import InputError
from edge.link import Lane, Ticket

_DEPTH = 8
"""Transfers requested at a time: enough to keep a disk busy, few enough to be withdrawn quickly."""

_PRIORITY = 1.0
"""Lower than the priority of blocks that are needed now."""

_REFUSALS = 4
"""Fetching stops when no room could be made for this many predicted groups in a row."""

_POLL_S = 0.05
"""Interval of checking for transfers that other code has withdrawn, since they end without a notification."""


@dataclass(frozen=True, slots=True)
class Predicted:
    """A block that may be needed. `beside` is a range of the file (offset, nbytes) that is announced to the system's
    page cache. `filling` gives the work that fills a buffer instead of `source`."""

    key: tuple[str, int]
    source: BlockFile
    block: BlockId
    nbytes: int
    beside: tuple[int, int] | None = None
    filling: Callable[[Any], Callable[[], int]] | None = None


Order = Iterator[Sequence[Predicted]]
"""Groups of blocks (the parts of one list), likeliest first. A group is fetched whole or not at all."""


@dataclass(frozen=True, slots=True)
class LookaheadOutcome:
    """The result of one prediction: seconds that searches did not wait, and those beyond what the prediction it
    followed would have saved with as many bytes; None if it followed none."""

    saved_s: float
    added_s: float | None = None


class Lookahead:
    """Fetches predicted blocks into a residency, split equally over the predictions of a batch. A context manager. At
    most `nbytes` are asked for; `asked` and `fetched` count."""

    def __init__(
        self,
        residency: Residency,
        lane: Lane,
        orders: Sequence[Order],
        *,
        nbytes: int,
        seconds: float | None = None,
        overrun: float = 0.0,
        misses: MissCurve | None = None,
        spared: Iterable[Hashable] = (),
        displacement: Displacement | None = None,
        joined: int = 0,
    ) -> None:
        """`seconds` is the length of the window, and `overrun` what is worth waiting after it (see `bytes_to_fetch`).
        `spared` blocks are not evicted for this prediction; `displacement` receives the keys of those that are.
        `joined` bytes cross the lane together; twice as many may wait for it."""
        self.nbytes = nbytes
        self.residency = residency
        self._lane = lane
        self._orders = orders
        self._share = nbytes // max(1, len(orders))
        self._joined = joined
        self._overrun = overrun
        self._deadline = math.inf if seconds is None else time.perf_counter() + seconds + overrun
        self._misses = misses
        self._displaced: set[Hashable] = set() if displacement is None else displacement.keys
        self._guarded: list[Hashable] = residency.guard(self, spared)
        self._position: dict[Hashable, float] = {}
        self._needed: set[Hashable] | None = None
        self._unread: set[Hashable] = set()
        self._earlier: tuple[Lookahead, ...] = ()
        self._base: Lookahead | None = None
        self._skipped: list[Sequence[Predicted]] = []
        self._going_on = self._rest()
        self._moved_blocks: dict[tuple[str, int], tuple[int, _Transfer]] = {}
        self._sent: dict[tuple[str, int], _Transfer] = {}
        self.fetched = 0
        self.asked = 0
        self._transfers: list[_Transfer] = []
        self._moved = threading.Condition()
        self._stopped = False
        self._thread = threading.Thread(target=self._feed, name="edge-lookahead", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        self._thread.join()

    def supersede(self, earlier: Lookahead, *, follows: bool) -> None:
        """Ends an earlier prediction for this search, and keeps common blocks. `follows`: the same with more text."""
        earlier._give_up()
        self._earlier = (*earlier._earlier, earlier)
        earlier._earlier = ()
        self._base = (earlier._base or earlier) if follows else None

    def finish(self) -> None:
        """Ends the window after the overrun, and withdraws the transfers that have not begun."""
        if self._overrun:
            self._thread.join(self._overrun)
        self._end()

    def _end(self) -> None:
        with self._moved:
            self._stopped = True
            self._moved.notify()
        self._thread.join()
        self.residency.withdraw(self, self._guarded)

    def search_needs(self, keys: Collection[Hashable], unread: Collection[Hashable]) -> None:
        """Reports blocks that a search needs, and those to be read if nothing had been fetched ahead."""
        self._needed = {*(self._needed or ()), *keys}
        self._unread |= {*unread}

    def cancel(self) -> list[LookaheadOutcome]:
        """Ends the prediction and the protection of its blocks, and drops those that no search needed. Returns the
        outcome of each prediction for that search, superseded ones first. Calling it twice is harmless."""
        self._give_up()
        needed, self._needed = self._needed, None
        self._drop_all_but(needed or ())
        if needed is None:
            return []
        if self._misses is not None:
            self._misses.observe([self._position.get(key, math.inf) for key in needed])
        windows = (*self._earlier, self)
        moved = [nbytes for window in windows for nbytes, _ in window._moved_blocks.values()]
        bandwidth = self._lane.rate.throughput(sum(moved) // len(moved)) if moved else 0.0
        if not bandwidth:
            return [LookaheadOutcome(0.0) for _ in windows]
        outcomes = []
        for window in windows:
            used = window._used(self._unread)
            added = None if window._base is None else used - window._base._would_use(window.asked, self._unread)
            outcomes.append(LookaheadOutcome(used / bandwidth, None if added is None else added / bandwidth))
        return outcomes

    def _give_up(self) -> None:
        self._end()
        guarded, self._guarded = self._guarded, []
        self.residency.unguard(self, guarded)

    def _drop_all_but(self, keys: Collection[Hashable]) -> None:
        """Drops what this prediction and the superseded ones have fetched, except `keys`."""
        fetched = [key for window in (*self._earlier, self) for key in window._moved_blocks]
        self.residency.discard(key for key in fetched if key not in keys)

    def _used(self, needed: set[Hashable]) -> int:
        return sum(n for key, (n, transfer) in self._moved_blocks.items() if key in needed and transfer.arrived)

    def _would_use(self, nbytes: int, needed: set[Hashable]) -> int:
        """Bytes needed among the next `nbytes` bytes of this prediction. The next call goes on where this one ended."""
        used = 0
        while nbytes > 0 and (block := next(self._going_on, None)) is not None:
            key, size = block
            nbytes -= size
            used += size if nbytes >= 0 and key in needed else 0
        return used

    def _rest(self) -> Iterator[tuple[Hashable, int]]:
        """Keys and sizes of the blocks that would have been fetched next."""
        yield from [(key, nbytes) for key, (nbytes, transfer) in self._moved_blocks.items() if not transfer.arrived]
        for group in chain(self._skipped, *zip_longest(*self._orders, fillvalue=())):
            yield from [(block.key, block.nbytes) for block in group if block.key not in self._moved_blocks]

    def __enter__(self) -> Lookahead:
        return self

    def __exit__(self, *error: object) -> None:
        self.cancel()

    def _feed(self) -> None:
        orders = list(self._orders)
        left = [self._share] * len(orders)
        refused = 0
        while orders and refused < _REFUSALS:
            for i in reversed(range(len(orders))):  # in turn, so that the likeliest groups of all come first
                group = next(orders[i], None)
                if group is None:
                    del orders[i], left[i]
                    continue
                absent = set(self.residency.absent(predicted.key for predicted in group))
                missing = [predicted for predicted in group if predicted.key in absent]
                if sum(predicted.nbytes for predicted in missing) > left[i]:
                    self._skipped.append(missing)
                    continue  # a list that does not fit is skipped whole
                if self._stopped or (missing and not self._wait_until(_DEPTH - 1)):
                    return
                for predicted in missing:
                    extent = predicted.source.extents[predicted.block]
                    predicted.source.announce([(extent.offset, extent.nbytes)])
                for predicted in group:
                    if predicted.beside is not None:
                        predicted.source.announce([predicted.beside])
                blocks = [(predicted.key, predicted.nbytes, self._reader(predicted)) for predicted in group]
                admitted = self.residency.prefetch(self, blocks, left[i])
                if admitted is None:
                    refused += 1
                    continue
                refused = 0
                asked = admitted.asked
                self._displaced.update(admitted.displaced)
                left[i] -= asked
                self.asked += asked
                for predicted in group:
                    self._guarded.append(predicted.key)
                    if predicted.key in absent and predicted.key in self._sent:
                        self._moved_blocks[predicted.key] = predicted.nbytes, self._sent[predicted.key]
                    self._position.setdefault(predicted.key, self.asked)
        self._wait_until(0)

    def _reader(self, predicted: Predicted) -> Fetch:
        def fetch(buffer: Bytes) -> Ticket:
            transfer = _Transfer()
            work = None if predicted.filling is None else predicted.filling(buffer)

            def read() -> int:
                try:
                    if work is None:
                        predicted.source.read(predicted.block, buffer.data)
                    else:
                        work()
                    self.fetched += predicted.nbytes
                    transfer.arrived = True
                finally:
                    with self._moved:
                        transfer.ended = True
                        self._moved.notify()
                return predicted.nbytes

            label = str(predicted.block)
            transfer.ticket = self._lane.submit(
                label, read, predicted.nbytes, priority=_PRIORITY, deadline=self._deadline
            )
            self._transfers.append(transfer)
            self._sent[predicted.key] = transfer
            return transfer.ticket

        return fetch

    def _wait_until(self, most: int) -> bool:
        """Waits until at most `most` transfers are running, or few bytes; False if the window ends before."""
        with self._moved:
            while not self._stopped and time.perf_counter() < self._deadline:
                self._transfers = [transfer for transfer in self._transfers if not transfer.over]
                asked = sum(transfer.ticket.nbytes for transfer in self._transfers if transfer.ticket is not None)
                if len(self._transfers) <= most or (most and asked < 2 * self._joined):
                    return True
                self._moved.wait(min(_POLL_S, max(0.0, self._deadline - time.perf_counter())))
        return False


@dataclass(slots=True)
class _Transfer:
    ticket: Ticket | None = None
    ended: bool = False
    arrived: bool = False

    @property
    def over(self) -> bool:
        return self.ended or (self.ticket is not None and self.ticket.done)


_SAMPLES = 4096


class MissCurve:
    """Share of needed blocks that a prediction misses, by the bytes fetched. Thread-safe."""

    def __init__(self) -> None:
        self._needed: list[float] = []
        self._lock = threading.Lock()

    def observe(self, positions: Sequence[float]) -> None:
        """Learns for each needed block the bytes to be fetched until it is there; infinity if it was not predicted."""
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
    """Bytes to fetch for the smallest total time of fetching and searching (TeleRAG, appendix B): t1 + t2 with t1 =
    max(window, b / bandwidth) and t2 = miss(b) * slow_seconds, smallest at b = bandwidth * seconds or at a later step
    of `misses` (see `MissCurve.points`)."""
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
    """The blocks that one prediction displaced. `lost` gets the seconds that searches wait for them because of it."""

    lost: Callable[[float], object] | None = None
    keys: set[Hashable] = field(default_factory=set)


class DemandShadow:
    """Names and sizes of the blocks that reading on demand would hold. Thread-safe."""

    def __init__(self, held: Mapping[Hashable, int], policy: Policy) -> None:
        """Begins with these blocks and their bytes, and an eviction policy of its own that knows them."""
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
        """Simulates a search that needs `blocks` (with their bytes, in reading order), of which it really must read
        `absent`, and tells predictions their losses. Returns the blocks to be read if nothing had been fetched
        ahead."""
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
        """The `lost` of the last prediction that displaced a block; None where the simulation is not exact."""
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
