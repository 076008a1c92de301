"""Builds an index in a process of its own under a limit, and prints its memory. Vectors come block by block."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from edge.budget import MemoryBudget
from edge.devices.cpu import CpuDevice
from edge.devices.faiss_codec import FaissCodecs
from edge.ivf.base import IndexOptions
from edge.ivf.index import VectorIndex
from edge.resident import ResidentWatch, anonymous_resident

if __package__:
    from naive.index import SimpleDatabase, mixture
else:  # started as a program
    from index import SimpleDatabase, mixture

DIM = 192
BLOCK = 2000


def build(folder: Path, rows: int, spare: int, codec: str) -> dict[str, float]:
    """An index of `rows` vectors, with `spare` bytes beyond the memory that the process holds before."""
    codecs = FaissCodecs()
    few = mixture(300, DIM).astype(np.float16)
    codecs.open(codecs.train(codec, few.astype(np.float32), seed=0))  # faiss, its threads and its tables
    codecs.cluster(few, 2, iterations=1, seed=0)
    few.astype(np.float32) @ few.astype(np.float32).T
    database = SimpleDatabase(folder / "edge.db")
    before = anonymous_resident()
    budget = MemoryBudget(before + spare, baseline=before)
    device = CpuDevice(budget)
    index = VectorIndex(
        folder / "segments",
        DIM,
        budget=budget,
        device=device,
        codecs=codecs,
        options=IndexOptions(codec=codec, flat_limit=2000, list_rows=64, pending_limit=256, grace_seconds=0),
    )
    with ResidentWatch(interval=0.001) as watch:
        for start in range(0, rows, BLOCK):
            with budget.reserve("block", 3 * BLOCK * DIM * 8):
                vectors = mixture(BLOCK, DIM, seed=start)
                with database.write() as db:
                    index.add(db, np.arange(start, start + BLOCK), vectors)
                del vectors
        index.maintain(database.write)
        with database.write() as db:
            index.delete(db, np.arange(0, rows, 10))
            index.add(db, np.arange(rows, rows + 300), mixture(300, DIM, seed=1))
        index.maintain(database.write, full=True)
    with database.read() as db:
        status = index.status(db)
        found = index.search(db, mixture(20, DIM, seed=7), 10)
    index.close()
    device.close()
    return {
        "limit": budget.limit, "peak": watch.high_water, "rows": status.rows, "lists": status.lists,
        "found": int((found.ids >= 0).sum()), "left": budget.used - before,
    }  # fmt: skip


if __name__ == "__main__":
    where, count, spare, codec = sys.argv[1:]
    print(json.dumps(build(Path(where), int(count), int(spare), codec)))
