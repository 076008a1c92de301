"""One arm of `edge bench devices`: replays a pipeline's trace over an index that a slow place holds whole."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from edge.apps.assistant.base import AskOptions
from edge.apps.assistant.steps import Steps
from edge.apps.bench.assistant_worker import MOST_TOKENS, IndexLibrary, answered, replayed
from edge.apps.bench.process import Stops, serve
from edge.apps.bench.rag_traces import PASSAGES, ROUNDS
from edge.apps.store.database import Database
from edge.budget import MemoryBudget
from edge.devices.limited import LimitedDevice
from edge.ivf.index import IndexOptions, VectorIndex
from edge.runtimes.embedder import Embedder
from edge.scheduling.predictor import TimePredictor
from edge.trace import Trace

_PROCESS_MEMORY = 8 << 30
_LATE = 1e-3
"""A search is late if it waits longer than this many seconds for the link."""


@contextmanager
def opened(task: dict[str, Any]) -> Iterator[IndexLibrary]:
    """Opens the task's index. A `limited` device with room for all lists stands for the host, and scans at the slow
    rate. If the arm has a device, another `limited` stands in front of it."""
    folder, trace = Path(task["folder"]), Trace()
    with ExitStack() as stack:
        process = MemoryBudget(_PROCESS_MEMORY)
        host = LimitedDevice(process, cap=2 * task["nbytes"] + (64 << 20), bandwidth=math.inf, scan=task["slow"])
        stack.callback(host.close)
        places: dict[str, Any] = {}
        if task["device"]:
            device = LimitedDevice(
                process, cap=task["cap"], bandwidth=task["link"], scan=task["scan"], trace=trace
            )  # fmt: skip
            stack.callback(device.close)
            places = {"fast": device} if task["device"] == "ahead alone" else {"places": [device]}
        embedder = stack.enter_context(Embedder(budget=process))
        database = Database(folder / "index.db", VectorIndex.migrations(), budget=process, read_only=True)
        stack.enter_context(database)
        options = IndexOptions(codec="flat", flat_limit=0)
        index = stack.enter_context(
            VectorIndex(
                folder / "segments", embedder.dim, budget=process, trace=trace, device=host, options=options, **places
            )
        )
        yield IndexLibrary(folder, index, database, embedder, share=task["share"], reuse=True, trace=trace)


def work(task: dict[str, Any]) -> dict[str, Any]:
    """Replays the trace of each of the task's pipelines, question after question."""
    with opened(task) as library, Stops() as stops:
        rows = {
            pipeline: _replayed(task, library, stops, pipeline, trace) for pipeline, trace in task["traces"].items()
        }
        return {"rows": rows, "nprobe": library.nprobe}


def _replayed(
    task: dict[str, Any], library: IndexLibrary, stops: Stops, pipeline: str, trace: str
) -> list[dict[str, Any]]:
    predictor = TimePredictor()
    options = AskOptions(
        passages=PASSAGES, pool=PASSAGES, rerank=False, rounds=ROUNDS, lookahead=task["lookahead"],
        max_tokens=MOST_TOKENS,
    )  # fmt: skip
    replay = replayed(task, trace, library.budget)
    found = []
    for question in task["questions"]:
        stopped = stops.seconds
        row = answered(library, question, Steps(library, replay, options, pipeline=pipeline, predictor=predictor))
        counters = row.pop("counters")
        on_device = counters.get("fast.hits", 0.0) + counters.get("lists on limited cpu.hits", 0.0)
        row |= {
            "stopped_s": stops.seconds - stopped,
            "search_s": counters["assistant.search_s"],
            "generate_s": counters["assistant.generate_s"],
            "embed_s": counters.get("assistant.embed_s", 0.0),
            "probed": counters["index.hits"] + counters["index.lists_read"],
            "on_device": on_device,
            "sent": counters.get("link.bytes", 0.0),
            "late": sum(search["stall"] > _LATE for search in row["searches"]),
        }
        found.append(row)
    return found


if __name__ == "__main__":
    serve(work)
