"""One index that is searched by the host alone and beside another device."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from edge.budget import MemoryBudget
from edge.devices.cpu import CpuDevice
from edge.devices.remote import RemoteDevice
from edge.ivf.base import Found, Vectors
from edge.ivf.device import SearchPlace
from edge.ivf.search import IndexSearcher
from edge.link import Lane
from edge.trace import Trace
from naive.lists import clustered, trained, write_lists

DIM = 32


class Both:
    """One index, searched by the host alone and with another device."""

    def __init__(
        self, folder: Path, codec: str, kind: Callable[..., SearchPlace] = RemoteDevice, cap: int | str = 8 << 20,
        *, vectors: Vectors | None = None, nlist: int = 16,
    ) -> None:  # fmt: skip
        vectors = clustered(2000, DIM) if vectors is None else vectors
        own = trained(codec, vectors[:800])
        self.lists = write_lists(folder, vectors, codec=own, nlist=nlist, deleted=0.1, pending=20)
        self.budget = MemoryBudget(1 << 36, baseline=0)
        self.trace = Trace()
        self.lane = Lane()
        self.host = CpuDevice(self.budget, link=self.lane)
        self.device: SearchPlace = kind(self.budget, cap=cap, trace=self.trace)
        self.alone = IndexSearcher(self.host)
        self.searcher = IndexSearcher(self.host, place=self.device, trace=self.trace)

    def check(
        self, queries: Vectors | None = None, *, nprobe: int = 5, allowed: np.ndarray | None = None, **options: Any
    ) -> Found:
        queries = clustered(9, self.lists.snapshot.dim, seed=3) if queries is None else queries
        expected = self.alone.search(self.lists.snapshot, queries, 7, nprobe=nprobe, allowed=allowed)
        found = self.searcher.search(self.lists.snapshot, queries, 7, nprobe=nprobe, allowed=allowed, **options)
        assert found.ids.tolist() == expected.ids.tolist()
        assert found.scores.tobytes() == expected.scores.tobytes()
        return found

    def close(self) -> None:
        for searcher in (self.searcher, self.alone):
            searcher.close()
        self.device.close()
        self.host.close()
        self.lane.close()
        self.lists.close()
        gc.collect()  # the error of a lost device holds the frames that it went through
        assert not {owner: n for owner, n in self.budget.holders().items() if n}
