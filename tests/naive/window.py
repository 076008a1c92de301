"""A window over a stand-in disk, with a budget counted in buffers."""

from __future__ import annotations

import gc

from edge.budget import MemoryBudget
from edge.link import Lane
from edge.streaming.window import SlidingWindow
from naive.source import MemorySource, numbered_blocks

SIZE = 96


class WindowRig:
    """A window of `blocks` blocks with `buffers` of them affordable, and `spare` bytes on top."""

    def __init__(self, blocks: int, buffers: int, *, spare: int = 0, widest: int | None = None) -> None:
        # The last blocks are smaller: a buffer is as large as the largest block, the view as large as its own.
        self.source = MemorySource(numbered_blocks([SIZE - i % 3 for i in range(blocks)]))
        self.lane = Lane()
        self.budget = MemoryBudget(buffers * SIZE + spare, baseline=0)
        self.window = SlidingWindow(self.source, list(self.source.blocks), self.lane, self.budget, widest=widest)
        self.window.start()
        self.window.widen()

    def run(self, stop: int | None = None) -> None:
        """One pass, ended after `stop` blocks; checks every byte and the number of buffers."""
        for index, (block, expected) in enumerate(list(self.source.blocks.items())[:stop]):
            with self.window.block(index) as view:
                assert bytes(view) == expected, f"wrong bytes of {block}"
            self.check()

    def reads(self) -> list[int]:
        """Numbers of the blocks read since the last call."""
        self.settle()
        numbers = [block.index for block in self.source.reads]
        self.source.reads.clear()
        return numbers

    def settle(self) -> None:
        """Waits until nothing is under way."""
        self.lane.submit("last", lambda: 0, 0, priority=1e9).wait()

    def check(self) -> None:
        assert self.budget.holders().get("weights", 0) == self.window.buffers * SIZE
        if self.source.buffers_alive() > self.window.buffers:
            gc.collect()
            self.settle()
            assert self.source.buffers_alive() <= self.window.buffers

    def close(self) -> None:
        self.source.gate.set()
        self.window.close()
        self.lane.close()
