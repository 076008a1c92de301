"""A searcher over an index in plain arrays, with the definition at hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from edge.budget import MemoryBudget
from edge.cache.cached_block import DecayedHotness
from edge.devices.cpu import CpuDevice, LimitedDevice
from edge.ivf.base import Found, Vectors
from edge.ivf.search import IndexSearcher
from edge.link import Lane
from naive.lists import Lists, NaiveCodec, write_lists

PLENTY = 64 << 20


class Rig:
    """An index in a folder and a searcher under a limit."""

    def __init__(
        self,
        folder: Path,
        vectors: Vectors,
        codec: str = "flat",
        *,
        memory: int = PLENTY,
        capacity: int | None = None,
        policy: type = DecayedHotness,
        fast: int = 0,
        bandwidth: float = 1e12,
        **shape: object,
    ) -> None:
        self.lists: Lists = write_lists(folder, vectors, codec=NaiveCodec(codec, vectors.shape[1]), **shape)
        self.budget = MemoryBudget(memory, baseline=0)
        self.lane = Lane()  # one of its own: it learns from this rig alone
        self.device = CpuDevice(self.budget, link=self.lane)
        self.fast = LimitedDevice(self.budget, cap=fast, bandwidth=bandwidth, inner=self.device) if fast else None
        self.searcher = IndexSearcher(self.device, place=self.fast, policy=policy, capacity=capacity)

    def search(self, queries: Vectors, k: int = 5, nprobe: int = 3, **options: object) -> Found:
        found = self.searcher.search(self.lists.snapshot, queries, k, nprobe=nprobe, **options)
        assert self.budget.used <= self.budget.limit
        return found

    def check(self, queries: Vectors, found: Found, k: int, nprobe: int, allowed: Sequence[int] | None = None) -> None:
        for query, ids, scores in zip(queries, found.ids, found.scores, strict=True):
            expected, values = self.lists.search(query, k, nprobe, allowed=allowed)
            missing = k - len(expected)
            assert ids.tolist() == expected + [-1] * missing
            assert scores.tolist() == values + [-np.inf] * missing

    def close(self) -> None:
        self.searcher.close()
        assert set(self.budget.holders()) <= {"limited cpu"}
        if self.fast is not None:
            assert self.fast.memory.used == 0
            self.fast.close()
        self.device.close()
        self.lane.close()
        self.lists.close()
        assert self.budget.used == 0
