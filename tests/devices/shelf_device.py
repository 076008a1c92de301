"""An example: a device of a third party, in less than a hundred lines.

It stands for anything that is not in this process's memory: codes are copied to it and looked up by number, and the
scores come from a plain matrix product.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from edge.budget import MemoryBudget
from edge.ivf.device import Candidates, SearchRequest
from edge.link import Lane


class ShelfDevice:
    """A place for lists, and their search."""

    name = "shelf"
    in_host_memory = False

    def __init__(self, memory: MemoryBudget, *, cap: int | str = 1 << 20, trace: Any = None) -> None:
        self._lease = memory.reserve("shelf", int(cap))
        self.memory = MemoryBudget(int(cap), part=True)
        self.link = Lane("shelf link", trace=trace)
        self._numbers = itertools.count(1)
        self._codes: dict[int, np.ndarray] = {}

    def allocate(self, nbytes: int) -> int:
        number = next(self._numbers)
        self._codes[number] = np.empty(0, np.uint8)
        return number

    def write(self, buffer: int, data: np.ndarray) -> None:
        self._codes[buffer] = data.copy()

    def free(self, buffer: int) -> None:
        self._codes.pop(buffer, None)

    def search(self, request: SearchRequest) -> Candidates:
        for item in request.lists:
            rows = np.arange(item.count) if item.rows is None else item.rows
            vectors = request.codec.decode(self._codes[item.codes][rows])
            for query in item.queries:
                request.seen.offer(query, vectors @ request.queries[query], item.first + rows)
        return request.seen

    def close(self) -> None:
        self.link.close()
        self._codes.clear()
        self._lease.release()
