"""Lookahead: blocks that a prediction names are fetched while something else keeps the caller busy (TeleRAG,
section 4.1).

It changes when bytes arrive and nothing else: whoever reads finds blocks in memory or does not.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType

from edge.blocks import BlockFile, BlockId
from edge.buffers import Bytes
from edge.errors import InputError
from edge.lanes import Lane, Ticket
from edge.residency import Fetch, Residency
from edge.worth import Worth

_DEPTH = 8
"""Transfers asked for at a time: enough to keep a disk busy, few enough to be withdrawn at once."""

_PRIORITY = 1.0
"""Whatever is needed now goes first."""

_REFUSALS = 4
"""So many predicted groups in a row for which no room could be made, and no more are tried."""

_POLL_S = 0.05
"""A transfer that somebody else withdraws ends without a sign."""

_SAMPLES = 4096


@dataclass(frozen=True, slots=True)
class Predicted:
    """A block that may be needed.

    Attributes:
        source, block, nbytes: where it is, and its size.
        key: the name it has in the residency.
        beside: a range of the file (offset, nbytes) of which single rows may be needed once the block was read. The
            system is told of it; it comes into the page cache, not into the residency.
    """

    key: tuple[str, int]
    source: BlockFile
    block: BlockId
    nbytes: int
    beside: tuple[int, int] | None = None


Order = Iterator[Sequence[Predicted]]
"""Groups of blocks (the parts of one list), likeliest first; a group is fetched whole or not at all."""


class MissCurve:
    """Share of needed blocks that a prediction misses, as a function of the bytes fetched: learned from what was
    needed after earlier predictions. Thread-safe."""

    def __init__(self) -> None:
        self._needed: list[float] = []
        self._lock = threading.Lock()

    def observe(self, positions: Sequence[float]) -> None:
        """For each block that was needed: bytes that had to be fetched, in the order of the prediction, until it was
        there; infinity for one that was not predicted."""
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
    """Bytes that minimise fetch and search time together (TeleRAG, appendix B).

    t1 = max(window, b / bandwidth), t2 = miss(b) * slow_seconds: least at b = bandwidth * seconds, or past it at a step
    of the miss curve, where t1 grows more slowly than t2 falls.

    Args:
        bandwidth: of the link, bytes per second.
        seconds: the window.
        misses: (bytes, miss rate), ascending; see `MissCurve.points`.
        slow_seconds: time of a search in which everything misses.

    Raises:
        InputError: bandwidth or window are negative.
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
        self._places: dict[Hashable, int] = {}
        self._guarded: list[tuple[str, int]] = []
        self._position: dict[tuple[str, int], float] = {}
        self._needed: set[tuple[str, int]] | None = None
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

    def finish(self) -> None:
        """The window has ended: after the overrun asks for nothing more and withdraws what has not begun. What has
        arrived stays protected until `cancel`."""
        if self._overrun:
            self._thread.join(self._overrun)
        self._end()

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

    def cancel(self) -> None:
        """Ends it at once, and the protection of what it fetched. If searches said what they needed, later predictions
        learn from it. Twice is harmless."""
        self._end()
        guarded, self._guarded = self._guarded, []
        self._residency.unguard(self, guarded)
        needed, self._needed = self._needed, None
        if needed is None:
            return
        if self._misses is not None:
            self._misses.observe([self._position.get(key, math.inf) for key in needed])
        if self._worth is not None:
            self._worth.observe(self._places, self._ages, needed)

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
                own = self._worth_of(gone[i], [predicted.key for predicted in group])
                gone[i] += 1
                absent = set(self._residency.absent(predicted.key for predicted in group))
                missing = [predicted for predicted in group if predicted.key in absent]
                if sum(predicted.nbytes for predicted in missing) > left[i]:
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
                    self._position.setdefault(predicted.key, self._asked)
        self._wait_until(0)

    def _worth_of(self, place: int, keys: Iterable[Hashable]) -> tuple[Callable[[int], bool], bool]:
        """Which ages a group at this place of a prediction may displace, and whether it is to be kept for the search
        even from what that reads itself."""
        worth = self._worth
        if worth is None:
            return lambda age: True, True
        for key in keys:
            self._places[key] = min(place, self._places.get(key, place))
        own = worth.of_place(place)
        return lambda age: worth.of_age(age) < own, worth.of_age(0) < own

    def _reader(self, predicted: Predicted) -> Fetch:
        def fetch(buffer: Bytes) -> Ticket:
            transfer = _Transfer()

            def read() -> int:
                try:
                    predicted.source.read(predicted.block, buffer.data)
                    self._arrived += predicted.nbytes
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

    @property
    def over(self) -> bool:
        """It has ended, or somebody has withdrawn it."""
        return self.ended or (self.ticket is not None and self.ticket.done)
