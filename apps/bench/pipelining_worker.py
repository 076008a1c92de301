"""One arm of `edge bench pipelining`: writes paragraphs at a fixed speed, with a retrieval for every interval."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from edge.apps.bench.assistant_worker import IndexLibrary, opened
from edge.apps.bench.process import serve
from edge.apps.collection.hits import Hit
from edge.scheduling.background import RetrievalPipeline

_LETTERS_PER_TOKEN = 4
_WINDOW = 64
"""The number of tokens of a query, as in the paper."""

_K = 10

Arm = Callable[[IndexLibrary, Sequence[str], float], dict[str, Any]]


def work(task: dict[str, Any]) -> dict[str, Any]:
    """Writes every text of the task in the way of its `arm`."""
    seconds = task["interval"] / task["decode"]
    arms: dict[str, Arm] = {"waits": waiting, "pipelined": pipelined, "adaptive": partial(pipelined, adaptive=True)}
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


if __name__ == "__main__":
    serve(work)
