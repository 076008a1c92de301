"""One number of devices of `edge bench dispatch`: a global batch of questions in micro-batches, once for each arm."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Hashable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.apps.bench.process import Stops, serve
from edge.apps.bench.rag_traces import PASSAGES
from edge.apps.store.database import Database
from edge.budget import MemoryBudget
from edge.devices.limited import LimitedDevice
from edge.ivf.base import Snapshot, Vectors
from edge.ivf.dispatch import Dispatch, Keys, group
from edge.ivf.index import IndexOptions, VectorIndex
from edge.ivf.probing import keys_of
from edge.ivf.search import Searcher
from edge.ivf.tiers import Tier
from edge.runtimes.embedder import Embedder
from edge.trace import Trace

Numbers = npt.NDArray[np.int64]

_PROCESS_MEMORY = 16 << 30


class InTurn(Dispatch):
    """Gives a free device the first micro-batch that waits, and ignores which lists the device holds."""

    def take(self, waiting: Sequence[Keys], tier: Tier) -> int:
        return 0


def work(task: dict[str, Any]) -> dict[str, Any]:
    """Runs the task's arms one after the other, each on new devices."""
    folder = Path(task["folder"])
    with ExitStack() as stack:
        process = MemoryBudget(_PROCESS_MEMORY)
        embedder = stack.enter_context(Embedder(budget=process))
        asked = embedder.embed(task["questions"], query=True)
        final = asked + embedder.embed(task["passages"], query=True)
        final /= np.linalg.norm(final, axis=1, keepdims=True)
        database = Database(folder / "index.db", VectorIndex.migrations(), budget=process, read_only=True)
        stack.enter_context(database)
        index = stack.enter_context(
            VectorIndex(
                folder / "segments", embedder.dim, budget=process, options=IndexOptions(codec="flat", flat_limit=0)
            )
        )
        with database.read() as db:
            snapshot = index.snapshot(db)
        return {"arms": {name: _arm(task, arm, process, snapshot, asked, final) for name, arm in task["arms"].items()}}


def batches(asked: Vectors, size: int, *, grouped: bool) -> list[Numbers]:
    """Micro-batches of the questions [q, dim]: similar ones together, or as they come."""
    if grouped:
        return group(asked, size)
    return [np.arange(start, min(start + size, len(asked))) for start in range(0, len(asked), size)]


def _arm(
    task: dict[str, Any], arm: dict[str, bool], process: MemoryBudget, snapshot: Snapshot, asked: Vectors,
    final: Vectors,
) -> dict[str, Any]:  # fmt: skip
    """Runs the warm-up's questions, then those that are measured."""
    nprobe = max(1, round(snapshot.nlist * task["share"]))
    windows, answers = np.array(task["windows"]), np.array(task["answers"])
    expected = float(windows.mean())
    trace = Trace()
    with ExitStack() as stack:
        stops = stack.enter_context(Stops())
        host = LimitedDevice(process, cap=2 * task["nbytes"] + (64 << 20), bandwidth=math.inf, scan=task["slow"])
        stack.callback(host.close)
        devices = []
        for _ in range(task["count"]):
            devices.append(
                LimitedDevice(process, cap=task["cap"], bandwidth=task["link"], scan=task["scan"], trace=trace)
            )
            stack.callback(devices[-1].close)
        searcher = Searcher(host, places=devices, trace=trace)
        stack.callback(searcher.close)
        dispatch = searcher.dispatch if arm["assigned"] else InTurn(searcher.places)
        found: dict[int, list[int]] = {}
        probed = 0
        counting = threading.Lock()

        def serve_batch(tier: Tier, numbers: Numbers) -> None:
            nonlocal probed
            with searcher.lookahead(snapshot, asked[numbers], nprobe=nprobe, seconds=expected, place=tier) as ahead:
                time.sleep(windows[numbers].max())  # a batch is written when its longest reply is
                result = searcher.search(snapshot, final[numbers], PASSAGES, nprobe=nprobe, window=ahead)
            time.sleep(answers[numbers].max())
            with counting:
                found.update(zip(numbers.tolist(), result.ids.tolist(), strict=True))
                probed += result.hits + result.lists_read
            if not arm["cached"]:
                tier.residency.trim(0.0)

        def run(first: int, end: int) -> float:
            own = [numbers + first for numbers in batches(asked[first:end], task["size"], grouped=arm["grouped"])]
            stopped, started = stops.seconds, time.perf_counter()
            wanted: list[tuple[set[Hashable], Numbers]] = [
                (keys_of(snapshot, asked[numbers], nprobe), numbers) for numbers in own
            ]
            dispatch.run(wanted, serve_batch)
            return time.perf_counter() - started - (stops.seconds - stopped)

        run(0, task["warmup"])
        probed, before = 0, trace.snapshot()
        seconds = run(task["warmup"], len(asked))
        grown = {name: value - before.get(name, 0.0) for name, value in trace.snapshot().items()}
    measured = range(task["warmup"], len(asked))
    return {
        "seconds": seconds,
        "hit_rate": grown.get("lists on limited cpu.hits", 0.0) / probed,
        "sent": grown.get("link.bytes", 0.0) / len(measured),
        "found": [found[number] for number in measured],
    }


if __name__ == "__main__":
    serve(work)
