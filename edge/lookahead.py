"""Lookahead: blocks that a prediction names are fetched while something else keeps the caller busy (TeleRAG,
section 4.1).

It changes when bytes arrive and nothing else: whoever reads finds blocks in memory or does not.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from types import TracebackType
from typing import Any

from edge.blocks import BlockFile, BlockId
from edge.buffers import Bytes
from edge.lanes import Lane, Ticket
from edge.miss_curve import MissCurve, bytes_to_fetch
from edge.residency import Fetch, Residency
from edge.worth import NEVER, Worth

__all__ = ["Lookahead", "MissCurve", "Outcome", "Predicted", "bytes_to_fetch"]

_DEPTH = 8
"""Transfers asked for at a time: enough to keep a disk busy, few enough to be withdrawn at once."""

_PRIORITY = 1.0
"""Whatever is needed now goes first."""

_LEAST = 0.1
"""Probability below which a block is not worth the room that a search's misses could have."""

_EVEN = 0.5
"""A block that was used is given up only for one that is more likely needed by the next search than not."""

_REFUSALS = 4
"""So many predicted groups in a row for which no room could be made, and no more are tried."""

_POLL_S = 0.05
"""A transfer that somebody else withdraws ends without a sign."""


@dataclass(frozen=True, slots=True)
class Predicted:
    """A block that may be needed.

    Attributes:
        source, block, nbytes: where it is, and its size.
        key: the name it has in the residency.
        beside: a range of the file (offset, nbytes) of which single rows may be needed once the block was read. The
            system is told of it; it comes into the page cache, not into the residency.
        read: fills a buffer of the residency and returns the bytes that came over its link; without it the block is
            read from `source`.
    """

    key: tuple[str, int]
    source: BlockFile
    block: BlockId
    nbytes: int
    beside: tuple[int, int] | None = None
    read: Callable[[Any], int] | None = None


Order = Iterator[Sequence[Predicted]]
"""Groups of blocks (the parts of one list), likeliest first; a group is fetched whole or not at all."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one prediction, once searches have said what they needed.

    Attributes:
        saved_s: seconds of transfers that searches did not have to wait for, less those of blocks that had to be read
            again since they had been displaced.
        added_s: seconds that it saved beyond what the prediction it followed would have saved with as many bytes; None
            if it followed none.
    """

    saved_s: float
    added_s: float | None = None


class Lookahead:
    """Predicted blocks on their way into a residency. A context manager; ending it never affects results.

    The bytes are split equally over the predictions of a batch; what is there already costs nothing, so a later round
    fetches only what is new. A transfer that has not begun when the window ends is withdrawn.

    Attributes:
        nbytes: bytes it may fetch.
    """

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
        worth: Worth | None = None,
    ) -> None:
        """Starts fetching.

        Args:
            orders: one prediction for each query of the batch.
            nbytes: at most so many bytes are fetched.
            seconds: and none whose transfer would begin later than this from now.
            overrun: when the window ends it is worth waiting so many seconds more for what is still to come (see
                `bytes_to_fetch`).
            misses: learns how good the prediction was (see `search_needs`).
            worth: likewise; a predicted block then displaces only what is less likely to be needed.
        """
        self.nbytes = nbytes
        self._residency = residency
        self._lane = lane
        self._orders = orders
        self._share = nbytes // max(1, len(orders))
        self._overrun = overrun
        self._deadline = math.inf if seconds is None else time.perf_counter() + seconds + overrun
        self._misses = misses
        self._worth = worth
        self._ages = residency.ages() if worth is not None else {}
        self._oldest = max(self._ages.values(), default=0)
        crowded = worth is not None and residency.nbytes + 2 * nbytes > residency.room  # the search brings as much
        # Room that is free now is what the search's misses take; without it they push out what is oldest.
        self._least = max(_LEAST, worth.of_age(self._oldest)) if worth is not None and crowded else 0.0
        self._places: dict[Hashable, int] = {}
        self._guarded: list[tuple[str, int]] = []
        self._position: dict[tuple[str, int], float] = {}
        self._needed: set[tuple[str, int]] | None = None
        self._earlier: tuple[Lookahead, ...] = ()
        self._base: Lookahead | None = None
        self._skipped: list[Sequence[Predicted]] = []
        self._going_on = self._rest()
        self._moved_blocks: dict[tuple[str, int], tuple[int, _Transfer]] = {}
        self._sent: dict[tuple[str, int], _Transfer] = {}
        self._gone: set[Hashable] = set()
        self._arrived = 0
        self._asked = 0
        self._transfers: list[_Transfer] = []
        self._moved = threading.Condition()
        self._stopped = False
        self._thread = threading.Thread(target=self._feed, name="edge-lookahead", daemon=True)
        self._thread.start()

    @property
    def fetched(self) -> int:
        """Bytes that have arrived so far."""
        return self._arrived

    @property
    def asked(self) -> int:
        """Bytes asked for so far; never more than `nbytes`."""
        return self._asked

    @property
    def active(self) -> bool:
        """It still asks for blocks."""
        return self._thread.is_alive()

    def wait(self) -> None:
        """Blocks until everything that fits has arrived, or the window has ended."""
        self._thread.join()

    def supersede(self, earlier: Lookahead, *, follows: bool) -> None:
        """Ends an earlier prediction for the same search; what both want stays. What is learned when this one ends is
        learned for both.

        Args:
            follows: it is the same prediction made anew, with more known.
        """
        earlier.cancel()
        self._earlier = (*earlier._earlier, earlier)
        earlier._earlier = ()
        self._base = (earlier._base or earlier) if follows else None

    def finish(self) -> None:
        """The window has ended: after the overrun asks for nothing more and withdraws what has not begun. What has
        arrived stays protected until `cancel`."""
        if self._overrun:
            self._thread.join(self._overrun)
        self._end()
        ages = (*self._earlier, self)[0]._ages
        self._gone = set(self._residency.absent(key for key in ages if isinstance(key, tuple)))

    def _end(self) -> None:
        with self._moved:
            self._stopped = True
            self._moved.notify()
        self._thread.join()
        self._residency.withdraw(self._guarded)

    def search_needs(self, keys: Sequence[tuple[str, int]]) -> None:
        """Tells which blocks a search needs. A batch may be searched in several parts: what was predicted for the whole
        batch is compared, by `cancel`, with the union of what its parts needed."""
        self._needed = {*(self._needed or ()), *keys}

    def cancel(self) -> list[Outcome]:
        """Ends it at once, and the protection of what it fetched. Twice is harmless.

        If searches said what they needed, later predictions learn from it.

        Returns:
            What came of each prediction for that search, those that were superseded first; nothing if no search came.
        """
        self._end()
        guarded, self._guarded = self._guarded, []
        self._residency.unguard(self, guarded)
        needed, self._needed = self._needed, None
        if needed is None:
            return []
        if self._misses is not None:
            self._misses.observe([self._position.get(key, math.inf) for key in needed])
        windows = (*self._earlier, self)
        if self._worth is not None and self._worth.of_age(NEVER) <= self._worth.of_age(self._oldest):
            # What was predicted in vain would push out what is likelier to be used again.
            fetched = [key for window in windows for key in window._moved_blocks]
            self._residency.discard(key for key in fetched if key not in needed)
        for window in windows:
            if window._worth is not None:
                window._worth.observe(window._places, self._ages if window is self else {}, needed)
        moved = [nbytes for window in windows for nbytes, _ in window._moved_blocks.values()]
        bandwidth = self._lane.rate.throughput(sum(moved) // len(moved)) if moved else 0.0
        if not bandwidth:
            return [Outcome(0.0) for _ in windows]
        lost = sum(key in self._gone for key in needed) / max(1, len(moved))  # blocks for each that was fetched
        outcomes = []
        for window in windows:
            used = window._used(needed)
            displaced = lost * sum(nbytes for nbytes, _ in window._moved_blocks.values())
            added = None if window._base is None else used - window._base._would_use(window._asked, needed)
            outcomes.append(Outcome((used - displaced) / bandwidth, None if added is None else added / bandwidth))
        return outcomes

    def _used(self, needed: set[tuple[str, int]]) -> int:
        """Bytes that came in time and were needed."""
        return sum(n for key, (n, transfer) in self._moved_blocks.items() if key in needed and transfer.arrived)

    def _would_use(self, nbytes: int, needed: set[tuple[str, int]]) -> int:
        """Bytes that would have been of use, had this prediction gone on for so many bytes more. Goes on from there
        when it is asked again."""
        used = 0
        for group in self._going_on:
            for predicted in group:
                if predicted.key not in self._ages and predicted.key not in self._moved_blocks:
                    nbytes -= predicted.nbytes
                    used += predicted.nbytes if nbytes >= 0 and predicted.key in needed else 0
            if nbytes <= 0:
                break
        return used

    def _rest(self) -> Iterator[Sequence[Predicted]]:
        """What it predicted and did not ask for: what did not fit, then the rest, each prediction in turn."""
        yield from self._skipped
        for groups in zip_longest(*self._orders, fillvalue=()):
            yield from groups

    def __enter__(self) -> Lookahead:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()

    def _feed(self) -> None:
        orders = list(self._orders)
        left = [self._share] * len(orders)
        gone = [0] * len(orders)
        refused = 0
        while orders and refused < _REFUSALS:
            for i in reversed(range(len(orders))):  # in turn, so that each prediction gets its likeliest first
                group = next(orders[i], None)
                if group is None:
                    del orders[i], left[i], gone[i]
                    continue
                place = gone[i]
                gone[i] += 1
                absent = set(self._residency.absent(predicted.key for predicted in group))
                missing = [predicted for predicted in group if predicted.key in absent]
                own = self._worth_of(place, [predicted.key for predicted in missing])
                if own is None:
                    continue
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
                asked = self._residency.prefetch(self, blocks, left[i], *own)
                if asked is None:
                    refused += 1
                    continue
                refused = 0
                left[i] -= asked
                self._asked += asked
                for predicted in group:
                    self._guarded.append(predicted.key)
                    if predicted.key in absent and predicted.key in self._sent:
                        self._moved_blocks[predicted.key] = predicted.nbytes, self._sent[predicted.key]
                    self._position.setdefault(predicted.key, self._asked)
        self._wait_until(0)

    def _worth_of(self, place: int, keys: Sequence[Hashable]) -> tuple[Callable[[int], bool], bool] | None:
        """Which ages a group at this place of a prediction may displace, and whether it is to be kept for the search
        even from what that reads itself; None if it is not worth its room.

        Only absent blocks count: those that earlier searches left in memory are needed far more often than others at
        the same place, and say nothing about what fetching is good for.

        Args:
            keys: the blocks of the group that are absent.
        """
        worth = self._worth
        if worth is None:
            return lambda age: True, True
        for key in keys:
            self._places[key] = min(place, self._places.get(key, place))
        own = worth.of_place(place)
        if keys and own < self._least:
            return None
        # Searches that no prediction preceded are not observed, and use again what seems forgotten.
        return (
            lambda age: max(worth.before(age, self._oldest), 0.0 if age == NEVER else _EVEN) < own,
            worth.of_age(0) < own,
        )

    def _reader(self, predicted: Predicted) -> Fetch:
        def fetch(buffer: Bytes) -> Ticket:
            transfer = _Transfer()

            def read() -> int:
                try:
                    if predicted.read is None:
                        predicted.source.read(predicted.block, buffer.data)
                    else:
                        predicted.read(buffer)
                    self._arrived += predicted.nbytes
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
        """Waits until at most so many transfers are under way; False when the window ends before."""
        with self._moved:
            while not self._stopped and time.perf_counter() < self._deadline:
                self._transfers = [transfer for transfer in self._transfers if not transfer.over]
                if len(self._transfers) <= most:
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
        """It has ended, or somebody has withdrawn it."""
        return self.ended or (self.ticket is not None and self.ticket.done)
