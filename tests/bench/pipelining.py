"""`pipelining`: compares retrieval during generation (PipeRAG) with waiting for it, over a slow link."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any

from bench.assistant import opened
from bench.figures import higher, lower, neither, tabulate
from bench.options import Output, benchmark, stated
from bench.process import measure, say
from bench.rag_index import IndexData, IndexLibrary
from edge.apps.collection.hits import Hit
from edge.config import parse_size
from edge.errors import InputError
from edge.scheduling.background import RetrievalPipeline

_ARMS = {"waits": "waits for each search", "pipelined": "one interval stale", "adaptive": "and nprobe from the slack"}

_LETTERS_PER_TOKEN = 4
_WINDOW = 64
"""The number of tokens of a query, as in the paper."""

_K = 10


@benchmark
def pipelining(
    *,
    probe_share: Annotated[float, "Of the lists, probed where nprobe is fixed."] = 1 / 16,
    bandwidth: Annotated[str, "Of the link to the index, per second."] = "100MB",
    decode: Annotated[float, "Tokens per second the model writes."] = 100.0,
    interval: Annotated[int, "Tokens between two retrievals."] = 32,
    texts: Annotated[int, "Paragraphs that are written."] = 12,
    warmup: Annotated[int, "Before them; lists are cached."] = 2,
    output: Output,
    data: IndexData,
) -> None:
    """Write paragraphs at a given speed and retrieve for every interval of them, in three ways."""
    made = data.made()
    corpus = made.corpora[0]
    written = sorted(corpus.texts, key=len, reverse=True)[: warmup + texts]
    if len(written) < warmup + texts:
        raise InputError(f"{corpus.name} has only {len(corpus.texts)} texts")
    task = {
        "folder": str(made.folder), "texts": written, "probe_share": probe_share, "reuse": True,
        "list_memory": made.memory, "bandwidth": parse_size(bandwidth), "decode": decode,
        "interval": interval,
    }  # fmt: skip
    arms = {}
    for arm in _ARMS:
        say(f"measuring: {_ARMS[arm]}")
        arms[arm] = measure(work, {**task, "name": arm, "arm": arm}, threads=1)["rows"][warmup:]
    table = {arm: _row(report, arms["waits"]) for arm, report in arms.items()}
    modelled = _modelled(arms["waits"], interval / decode)
    conditions = {
        **made.conditions(), "list_memory": made.memory,
        "bandwidth": task["bandwidth"], "decode": decode, "interval": interval, "texts": texts,
        "modelled_s": modelled, "probe_share": probe_share,
    }  # fmt: skip
    columns = {
        "seconds": lower("time of a text", "s"), "stall_s": lower("waits", "s"), "kept": higher("kept", "%"),
        "nprobe": neither("nprobe"),
    }  # fmt: skip
    named = {_ARMS[arm]: row for arm, row in table.items()}
    result = {"conditions": conditions, "arms": table}
    output.put(result, tabulate(named, columns), stated(conditions))


def _row(report: Sequence[dict[str, Any]], fresh: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The means over texts. `kept` is the share of the waiting arm's passages for an interval that this arm had,
    too."""
    searches = [search for row in report for search in row["searches"]]
    slack = [search["seconds"] / search["slack"] for search in searches if search["slack"]]
    pairs = [
        len(set(mine["found"]) & set(best["found"])) / max(1, len(best["found"]))
        for row, other in zip(report, fresh, strict=True)
        for mine, best in zip(row["searches"], other["searches"], strict=True)
    ]
    return {
        "seconds": statistics.mean(row["seconds"] for row in report),
        "stall_s": statistics.mean(row["stall_s"] for row in report),
        "search_s": statistics.mean(sum(search["seconds"] for search in row["searches"]) for row in report),
        "nprobe": statistics.mean(search["nprobe"] for search in searches),
        "slack_used": statistics.mean(slack) if slack else None,
        "over_slack": sum(share > 1.1 for share in slack) / len(slack) if slack else None,
        "searches": len(searches),
        "kept": statistics.mean(pairs),
    }


def _modelled(report: Sequence[dict[str, Any]], seconds: float) -> float:
    """The predicted duration of a text with each search one interval early, by the waiting arm's search times."""
    searched = [[search["seconds"] for search in row["searches"]] for row in report]
    return statistics.mean(modelled_seconds([seconds] * (len(times) + 1), times, pipelined=True) for times in searched)


def modelled_seconds(generation: Sequence[float], retrieval: Sequence[float], *, pipelined: bool) -> float:
    """Latency of a generation with retrievals, computed from the times of its parts.

    Args:
        generation: seconds of each interval.
        retrieval: seconds of the retrieval for each interval but the first.
        pipelined: False adds all times up. True takes the longer of the two for each interval, except for the first
            retrieval, which overlaps nothing.
    """
    first, *rest = generation
    pairs = list(zip(rest, retrieval, strict=True))
    hidden = pairs[1:] if pipelined else []
    return first + sum(map(sum, pairs[: len(pairs) - len(hidden)])) + sum(map(max, hidden))


def work(task: dict[str, Any]) -> dict[str, Any]:
    """Writes every text of the task in the way of its `arm`."""
    seconds = task["interval"] / task["decode"]
    arms: dict[str, Callable[[IndexLibrary, Sequence[str], float], dict[str, Any]]] = {
        "waits": waiting, "pipelined": pipelined, "adaptive": partial(pipelined, adaptive=True),
    }  # fmt: skip
    arm = arms[task["arm"]]
    with opened(task) as library:
        return {"rows": [arm(library, intervals(text, task["interval"]), seconds) for text in task["texts"]]}


def intervals(text: str, tokens: int) -> list[str]:
    """The query of each interval of a text except the first: the last tokens before the interval."""
    step, window = tokens * _LETTERS_PER_TOKEN, _WINDOW * _LETTERS_PER_TOKEN
    return [text[max(0, end - window) : end] for end in range(step, len(text), step)]


def waiting(library: IndexLibrary, queries: Sequence[str], seconds: float) -> dict[str, Any]:
    """Writes a text, and stops writing for every retrieval.

    Args:
        queries: see `intervals`.
        seconds: the time of writing one interval.
    """
    search = _Search(library)
    started = time.perf_counter()
    _write(seconds)
    for query in queries:
        search.note(search(query), None)
        _write(seconds)
    return {"seconds": time.perf_counter() - started, "stall_s": search.seconds, "searches": search.noted}


def pipelined(
    library: IndexLibrary, queries: Sequence[str], seconds: float, *, adaptive: bool = False
) -> dict[str, Any]:
    """Writes a text with pipelined retrieval: the passages of an interval were requested when the interval before it
    began. Only the first retrieval waits, as in the paper.

    Args:
        queries: see `intervals`.
        seconds: the time of writing one interval.
        adaptive: choose nprobe by the available time instead of a fixed number.
    """
    search = _Search(library)
    stall = 0.0
    started = time.perf_counter()
    with RetrievalPipeline(search if adaptive else lambda query, slack: search(query)) as pipeline:
        _write(seconds)
        for place, query in enumerate(queries):
            before = time.perf_counter()
            found = pipeline.take() if place else search(query)
            stall += time.perf_counter() - before
            search.note(found, seconds if adaptive and place else None)
            if place + 1 < len(queries):
                pipeline.ask(query, seconds)
            _write(seconds)
    return {"seconds": time.perf_counter() - started, "stall_s": stall, "searches": search.noted}


class _Search:
    """Searches the index and times each search."""

    def __init__(self, library: IndexLibrary) -> None:
        self.noted: list[dict[str, Any]] = []
        self.seconds = 0.0
        """The seconds of all recorded searches."""
        self._library = library
        self._last = (0.0, 0)

    def __call__(self, query: str, slack: float | None = None) -> list[Hit]:
        """Searches a fixed number of lists, or as many as fit into `slack` seconds."""
        started = time.perf_counter()
        vector = self._library.embed_queries([query])[0]
        left = None if slack is None else slack - (time.perf_counter() - started)
        (found,) = self._library.candidates([query], vector[None], _K, seconds=left)
        self._last = time.perf_counter() - started, self._library.probed
        return found

    def note(self, found: Sequence[Hit], slack: float | None) -> None:
        """Records the last search, whose passages the next interval is written from."""
        seconds, nprobe = self._last
        self.seconds += seconds
        self.noted.append({"seconds": seconds, "slack": slack, "nprobe": nprobe, "found": [hit.id for hit in found]})


def _write(seconds: float) -> None:
    """Stands for a model that writes on a device of its own."""
    time.sleep(seconds)
