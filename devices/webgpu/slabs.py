"""`Slabs`: a few large buffers on the GPU that hold all lists, so that one command scans many of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from edge.devices.webgpu.card import LARGEST_BUFFER, Gpu
from edge.errors import BudgetExceeded

_ALIGNMENT = 16
_SHARE = 4
"""A slab takes at most such a part of the device's memory."""


class Slab:
    """A buffer of the GPU, and the lists in it by their places."""

    def __init__(self, buffer: Any) -> None:
        self.buffer = buffer
        self.lists: list[ListBuffer] = []

    def gap(self, nbytes: int) -> tuple[int, int] | None:
        """The first gap for so many bytes: its number and its first byte."""
        ends = [0, *(each.end for each in self.lists)]
        starts = [*(each.offset for each in self.lists), self.buffer.size]
        for number, (end, start) in enumerate(zip(ends, starts, strict=True)):
            if start - end >= nbytes:
                return number, end
        return None


class ListBuffer:
    """Bytes of a slab from `offset` on, which changes when the slab is put in order."""

    __slots__ = ("freed", "nbytes", "offset", "slab")

    def __init__(self, slab: Slab, offset: int, nbytes: int) -> None:
        self.slab = slab
        self.offset = offset
        self.nbytes = nbytes
        self.freed = False

    @property
    def end(self) -> int:
        """The byte behind the last one, at which another list may begin."""
        return self.offset + -(-self.nbytes // _ALIGNMENT) * _ALIGNMENT


class Slabs:
    """The lists of one card. Its methods are called with the card's lock, except for `free`."""

    def __init__(self, card: Gpu, scratch: Callable[[], Any]) -> None:
        """Takes what makes a buffer through which lists are moved, since a buffer cannot be copied to itself."""
        self._card = card
        self._scratch = scratch
        self._slabs: list[Slab] = []
        self._freed: deque[ListBuffer] = deque()

    def allocate(self, nbytes: int, *, kept: int = 0, move: bool = True) -> ListBuffer:
        """Room for a list, while slabs leave `kept` bytes to others. `move`: other lists may change their places for
        it."""
        self._sweep()
        for slab in self._slabs:
            if (found := slab.gap(nbytes)) is not None:
                return self._place(slab, *found, nbytes)
        free = self._card.memory.limit - self._card.held - kept
        size = min(LARGEST_BUFFER, free, max(nbytes + _ALIGNMENT, self._card.memory.limit // _SHARE))
        if size >= nbytes:
            slab = Slab(self._card.buffer(size // _ALIGNMENT * _ALIGNMENT))
            self._slabs.append(slab)
            if (found := slab.gap(nbytes)) is not None:
                return self._place(slab, *found, nbytes)
        for slab in self._slabs if move else ():
            if slab.buffer.size - sum(each.end - each.offset for each in slab.lists) >= nbytes:
                self._put_in_order(slab)
                if (found := slab.gap(nbytes)) is not None:
                    return self._place(slab, *found, nbytes)
        raise BudgetExceeded(
            f"no slab of the device webgpu has room for a list of {nbytes:,} bytes",
            owner="lists", asked=nbytes, free=self._card.memory.free, needed=self._card.memory.limit + nbytes,
        )  # fmt: skip

    def free(self, buffer: ListBuffer) -> None:
        """Frees a list. May be called at any point of any thread, by the garbage collector."""
        self._freed.append(buffer)

    def shrink(self) -> None:
        """Gives back the slabs without lists."""
        self._sweep()
        for slab in [slab for slab in self._slabs if not slab.lists]:
            self._slabs.remove(slab)
            self._card.destroy(slab.buffer)

    def close(self) -> None:
        """Gives all slabs back."""
        for slab in self._slabs:
            self._card.destroy(slab.buffer)
        self._slabs.clear()

    def _sweep(self) -> None:
        slabs = set()
        while self._freed:
            buffer = self._freed.popleft()
            buffer.freed = True
            slabs.add(buffer.slab)
        for slab in slabs:
            slab.lists = [each for each in slab.lists if not each.freed]

    @staticmethod
    def _place(slab: Slab, number: int, offset: int, nbytes: int) -> ListBuffer:
        placed = ListBuffer(slab, offset, nbytes)
        slab.lists.insert(number, placed)
        return placed

    def _put_in_order(self, slab: Slab) -> None:
        """Moves the lists of a slab together, so that its gaps become one."""
        card, scratch = self._card, self._scratch()
        with card.answering():
            encoder = card.device.create_command_encoder()
            at = 0
            for each in slab.lists:
                size = each.end - each.offset
                if at != each.offset:
                    for low, high in pairwise([*range(0, size, scratch.size), size]):
                        encoder.copy_buffer_to_buffer(slab.buffer, each.offset + low, scratch, 0, high - low)
                        encoder.copy_buffer_to_buffer(scratch, 0, slab.buffer, at + low, high - low)
                each.offset = at
                at += size
            card.device.queue.submit([encoder.finish()])
