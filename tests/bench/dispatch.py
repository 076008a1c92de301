"""`dispatch`: throughput of several throttled devices, with grouping, caches and assignment (TeleRAG)."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Hashable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import click
import numpy as np
import numpy.typing as npt

from bench.devices import CACHE_GAINS, PROBED, PROPORTIONS, SEVERAL_MEMORY
from bench.figures import higher, neither, tabulate
from bench.options import Count, Output, benchmark, numbers, stated
from bench.process import Stops, measure, say
from bench.rag_index import IndexData
from bench.rag_index import opened as opened_index
from bench.rag_traces import PASSAGES, write_trace
from edge.budget import MemoryBudget
from edge.devices.limited import LimitedDevice
from edge.errors import EdgeError
from edge.ivf.base import Snapshot, Vectors
from edge.ivf.dispatch import Dispatch, Keys, group
from edge.ivf.plan import keys_of
from edge.ivf.reading import DeviceTier
from edge.ivf.search import IndexSearcher
from edge.runtimes.embedder import Embedder
from edge.trace import Trace

Numbers = npt.NDArray[np.int64]

_PROCESS_MEMORY = 16 << 30

_ARMS = {
    "as they come": {"grouped": False, "cached": False, "assigned": False},
    "grouped": {"grouped": True, "cached": False, "assigned": False},
    "and cached": {"grouped": True, "cached": True, "assigned": False},
    "and assigned": {"grouped": True, "cached": True, "assigned": True},
}
"""The arms. Each adds to the one before: similar questions share a micro-batch; lists stay on a device after their
micro-batch; a free device takes the micro-batch most of whose lists it holds, and not the next one."""


@benchmark
def dispatch(
    *,
    counts: Annotated[Sequence[int], numbers(), "Numbers of devices."] = (1, 2, 4, 8),
    questions: Annotated[Count, "In the global batch."] = 128,
    warmup: Annotated[int, click.IntRange(0), "Before it; fills the devices."] = 32,
    size: Annotated[Count, "--micro-batch", "Its questions."] = 4,
    decode: Annotated[float, "Tokens per second the replayed model writes."] = 300.0,
    prefill: Annotated[float, "Tokens per second it reads."] = 30000.0,
    output: Output,
    data: Annotated[IndexData, {"rows": 100_000, "list_rows": 100, "memory_share": round(SEVERAL_MEMORY, 3)}],
) -> None:
    """Serve a global batch of questions (HyDE) on several throttled devices (`limited`), each with lists of its own."""
    made = data.made()
    asked = made.asked(warmup + questions)
    trace = made.folder / "dispatch.jsonl"
    write_trace(trace, "hyde", asked, prefill=prefill, decode=decode)
    passages, windows, answers = _replies(trace, prefill, decode)
    mean = sum(windows) / len(windows)
    rates = PROPORTIONS["h100"].rates(made.nbytes * PROBED, mean, ["hyde"])
    common = {
        "folder": str(made.folder), "questions": [case.question for case in asked], "passages": passages, "size": size,
        "windows": windows, "answers": answers, "warmup": warmup, "share": PROBED, "nbytes": made.nbytes,
        "cap": made.memory, "link": rates.link, "scan": rates.scan, "slow": rates.slow, "arms": _ARMS,
    }  # fmt: skip
    results: list[dict[str, Any]] = []
    found: list[Any] = []
    for count in counts:
        say(f"{count} devices")
        arms = measure(work, {**common, "count": count, "name": f"{count} devices"}, threads=1)["arms"]
        found += [arm.pop("found") for arm in arms.values()]
        for arm in arms.values():
            arm["rate"] = questions / arm["seconds"]
        gain = arms["and assigned"]["rate"] / arms["grouped"]["rate"] - 1
        results.append({"devices": count, "arms": arms, "gain": gain, "paper_gain": CACHE_GAINS.get(count)})
    conditions = {
        "device": "limited (throttled test device, no GPU)", **made.conditions(),
        "device_bytes": made.memory, "link": rates.link, "scan": rates.scan, "slow": rates.slow, "window_s": mean,
        "questions": questions, "warmup": warmup, "micro_batch": size,
        "identical": all(ids == found[0] for ids in found),
    }  # fmt: skip
    rates_of = {str(row["devices"]): row | row["arms"] for row in results}
    columns = {f"{arm}.rate": higher(arm, "/s") for arm in _ARMS}
    held_by = {f"{arm}.hit_rate": neither(f"{arm}, lists on the device", "%") for arm in _ARMS}
    gains = {"gain": neither("gain of the last two", "%"), "paper_gain": neither("paper, figure 13", "%")}
    result = {"conditions": conditions, "devices": results}
    output.put(result, tabulate(rates_of, columns | held_by | gains, "questions"), stated(conditions))
    if not conditions["identical"]:
        raise EdgeError("the number of devices changed what was found")


def _replies(trace: Path, prefill: float, decode: float) -> tuple[list[str], list[float], list[float]]:
    """For each question of a HyDE trace: the hypothetical passage, and the seconds of it and of the answer."""
    records = [json.loads(line) for line in trace.read_text(encoding="utf-8").splitlines()[1:]]
    seconds = [record["prompt_tokens"] / prefill + len(record["pieces"]) / decode for record in records]
    passages = ["".join(text for text, _ in record["pieces"]) for record in records[::2]]
    return passages, seconds[::2], seconds[1::2]


class InTurn(Dispatch):
    """Gives a free device the first micro-batch that waits, and ignores which lists the device holds."""

    def take(self, waiting: Sequence[Keys], tier: DeviceTier) -> int:
        return 0


def work(task: dict[str, Any]) -> dict[str, Any]:
    with ExitStack() as stack:
        process = MemoryBudget(_PROCESS_MEMORY)
        embedder = stack.enter_context(Embedder(budget=process))
        asked = embedder.embed(task["questions"], query=True)
        final = asked + embedder.embed(task["passages"], query=True)
        final /= np.linalg.norm(final, axis=1, keepdims=True)
        index, database = stack.enter_context(opened_index(Path(task["folder"]), embedder.dim, process))
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
        searcher = IndexSearcher(host, places=devices, trace=trace)
        stack.callback(searcher.close)
        dispatch = searcher.dispatch if arm["assigned"] else InTurn(searcher.places)
        found: dict[int, list[int]] = {}
        probed = 0
        counting = threading.Lock()

        def serve_batch(tier: DeviceTier, numbers: Numbers) -> None:
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
        grown = trace.since(before)
    measured = range(task["warmup"], len(asked))
    return {
        "seconds": seconds,
        "hit_rate": grown.get("lists on limited cpu.hits", 0.0) / probed,
        "sent": grown.get("link.bytes", 0.0) / len(measured),
        "found": [found[number] for number in measured],
    }
