"""Lookahead: fetches blocks that a prediction names while other work keeps the caller busy (TeleRAG, section 4.1).

Lookahead changes only the time when bytes arrive, never a result.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Any

from edge.blocks import BlockFile, BlockId
from edge.cache.block_cache import Bytes
from edge.cache.prefetch_gain import Displacement, MissCurve, bytes_to_fetch
from edge.cache.residency import Fetch, Residency
from edge.link import Lane, Ticket

__all__ = ["Lookahead", "LookaheadOutcome", "MissCurve", "Predicted", "bytes_to_fetch"]

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
    """A block that may be needed.

    Attributes:
        source, block, nbytes: the file, the block in it, and the block's size.
        key: the block's name in the residency.
        beside: a range of the file (offset, nbytes) of which single rows may be needed after the block. It is announced
            to the system and comes into the page cache, not into the residency.
        read: fills a buffer of the residency and returns the bytes that came over its link. If not given, the block is
            read from `source`.
    """

    key: tuple[str, int]
    source: BlockFile
    block: BlockId
    nbytes: int
    beside: tuple[int, int] | None = None
    read: Callable[[Any], int] | None = None


Order = Iterator[Sequence[Predicted]]
"""Groups of blocks (the parts of one list), likeliest first. A group is fetched whole or not at all."""


@dataclass(frozen=True, slots=True)
class LookaheadOutcome:
    """The result of one prediction, known once searches have reported the blocks they needed.

    Attributes:
        saved_s: seconds of transfers that searches would have waited for without lookahead, and did not. Losses by
            displaced blocks are reported separately (see `edge.cache.prefetch_gain`).
        added_s: seconds saved beyond the saving that the prediction it followed would have reached with as many bytes;
            None if it followed none.
    """

    saved_s: float
    added_s: float | None = None


class Lookahead:
    """Fetches predicted blocks into a residency. A context manager; ending it never affects results.

    The bytes are split equally over the predictions of a batch. Resident blocks cost nothing, so that a later round
    fetches only new ones. A transfer that has not begun when the window ends is withdrawn.

    Attributes:
        nbytes: largest number of bytes to fetch.
        residency: where the blocks are fetched to.
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
        spared: Iterable[Hashable] = (),
        displacement: Displacement | None = None,
    ) -> None:
        """Starts fetching.

        Args:
            orders: one prediction for each query of the batch.
            nbytes: largest number of bytes to fetch.
            seconds: length of the window. No transfer begins after it and the overrun.
            overrun: seconds that are worth waiting after the window for further blocks (see `bytes_to_fetch`).
            misses: learns how good the prediction was (see `search_needs`).
            spared: blocks that are not evicted for this prediction, such as resident blocks that it names.
            displacement: receives the keys of the blocks that are evicted for this prediction.
        """
        self.nbytes = nbytes
        self.residency = residency
        self._lane = lane
        self._orders = orders
        self._share = nbytes // max(1, len(orders))
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
        """Bytes requested so far; never more than `nbytes`."""
        return self._asked

    def wait(self) -> None:
        """Blocks until everything that fits has arrived, or the window has ended."""
        self._thread.join()

    def supersede(self, earlier: Lookahead, *, follows: bool) -> None:
        """Ends an earlier prediction for the same search, and keeps the blocks that both name.

        When this prediction ends, the statistics of both are updated.

        Args:
            follows: whether this is the same prediction, made again with more knowledge.
        """
        earlier._give_up()
        self._earlier = (*earlier._earlier, earlier)
        earlier._earlier = ()
        self._base = (earlier._base or earlier) if follows else None

    def finish(self) -> None:
        """Ends the window: waits for the overrun, then stops requesting blocks.

        Transfers that have not begun are withdrawn. Blocks that have arrived stay protected until `cancel`.
        """
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
        """Reports the blocks that a search needs.

        A batch may be searched in several parts. `cancel` compares the prediction for the whole batch with the union of
        the blocks that the parts needed.

        Args:
            unread: those of the blocks that would have to be read now if nothing had been fetched ahead.
        """
        self._needed = {*(self._needed or ()), *keys}
        self._unread |= {*unread}

    def cancel(self) -> list[LookaheadOutcome]:
        """Ends the prediction at once, and the protection of its blocks. Calling it twice is harmless.

        Fetched blocks that no search needed are dropped. If searches have reported their needs, later predictions learn
        from them.

        Returns:
            The outcome of each prediction for that search, superseded ones first; nothing if there was no search.
        """
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
            added = None if window._base is None else used - window._base._would_use(window._asked, self._unread)
            outcomes.append(LookaheadOutcome(used / bandwidth, None if added is None else added / bandwidth))
        return outcomes

    def _give_up(self) -> None:
        self._end()
        guarded, self._guarded = self._guarded, []
        self.residency.unguard(self, guarded)

    def _drop_all_but(self, keys: Collection[Hashable]) -> None:
        """Drops all blocks that this prediction and the superseded ones have fetched, except `keys`.

        Otherwise the next blocks would take the room of used blocks.
        """
        fetched = [key for window in (*self._earlier, self) for key in window._moved_blocks]
        self.residency.discard(key for key in fetched if key not in keys)

    def _used(self, needed: set[Hashable]) -> int:
        """Bytes that arrived in time and were needed."""
        return sum(n for key, (n, transfer) in self._moved_blocks.items() if key in needed and transfer.arrived)

    def _would_use(self, nbytes: int, needed: set[Hashable]) -> int:
        """Bytes that would have been needed among the next `nbytes` bytes of this prediction.

        The next call continues where this one ended.
        """
        used = 0
        while nbytes > 0 and (block := next(self._going_on, None)) is not None:
            key, size = block
            nbytes -= size
            used += size if nbytes >= 0 and key in needed else 0
        return used

    def _rest(self) -> Iterator[tuple[Hashable, int]]:
        """Keys and sizes of the blocks that would have been fetched next.

        First the withdrawn ones, then those that did not fit, then the rest, each prediction in turn.
        """
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
                self._asked += asked
                for predicted in group:
                    self._guarded.append(predicted.key)
                    if predicted.key in absent and predicted.key in self._sent:
                        self._moved_blocks[predicted.key] = predicted.nbytes, self._sent[predicted.key]
                    self._position.setdefault(predicted.key, self._asked)
        self._wait_until(0)

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
        """Waits until at most `most` transfers are running; False if the window ends before."""
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
        """Whether the transfer has ended or was withdrawn."""
        return self.ended or (self.ticket is not None and self.ticket.done)
