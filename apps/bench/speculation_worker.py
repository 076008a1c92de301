"""Answers requests whose search ends late, waiting for it and guessing ahead, by turns."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edge.apps.bench.process import serve
from edge.apps.bench.random_gguf import words
from edge.apps.bench.vectors import VectorSet
from edge.budget import MemoryBudget
from edge.devices.faiss_codec import FaissCodecs
from edge.knowledge.tree import KnowledgeTree
from edge.runtimes.generation.base import Document, Message, Sampling
from edge.runtimes.generation.llama_cpp import LlamaGenerator
from edge.speculation import Speculation
from edge.trace import Trace

_SYSTEM = Message("system", "Answer from the documents.")
_NLIST, _NPROBE = 200, 16

Stages = list[list[int]]
"""The best documents after each stage of a search; the last are final."""


def work(task: dict[str, Any]) -> dict[str, Any]:
    """Serves the task's requests at each of its `shares`: search time over the time of prefill."""
    trace = Trace()
    budget = MemoryBudget(task["memory"])
    stages = staged(VectorSet.stored(Path(task["set"])), task["documents"], task["stages"])[: task["requests"]]
    with LlamaGenerator(
        task["model"], budget, cache=Path(task["folder"]), context=task["context"], weights="read",
        threads=task["threads"], trace=trace,
    ) as generator:  # fmt: skip
        assert generator.states is not None
        generator.tree = KnowledgeTree(generator.states, budget, host_limit=0, trace=trace)
        requests = _Requests(generator, task, trace)
        prefill = float(np.median([requests.waiting(ids, 0.0, seed=10 * i) for i, ids in enumerate(stages[:3])]))
        rows = []
        for place, share in enumerate(task["shares"]):
            before = trace.snapshot()
            waited, guessed = [], []
            for number, ids in enumerate(stages):
                # New texts every time, so that nothing is found in context that this request did not bring there.
                seed = 10**6 * (place + 1) + 10_000 * number
                waited.append(requests.waiting(ids, share * prefill, seed=seed))
                guessed.append(requests.guessing(ids, share * prefill, seed=seed + 5000))
            counted = {name: value - before.get(name, 0) for name, value in trace.snapshot().items()}
            rows.append({"share": share, "waited": waited, "guessed": guessed, "counters": _speculation(counted)})
        before = trace.snapshot()
        for number, ids in enumerate(stages[:3]):
            requests.guessing(ids, 0.0, seed=10**9 + 10_000 * number, pending=1)
        busy = {name: value - before.get(name, 0) for name, value in trace.snapshot().items()}
        generator.tree.close(save=False)
    settled = [np.mean([found[stage] == found[-1] for found in stages]) for stage in range(task["stages"])]
    return {"prefill": prefill, "settled": [float(s) for s in settled], "rows": rows, "busy": _speculation(busy)}


def staged(vectors: VectorSet, documents: int, stages: int) -> list[Stages]:
    """For each query the ids of the best rows when a first, second, ... part of its nearest lists has been scanned."""
    rows = np.array(vectors.mapped())
    centroids = FaissCodecs().cluster(rows[::5].astype(np.float16), _NLIST, iterations=10, seed=0)
    list_of = np.argmax(rows @ centroids.T, axis=1)
    found: list[Stages] = []
    for query in vectors.queries:
        order = np.argsort(-(centroids @ query))[:_NPROBE]
        scores = rows @ query
        found.append([])
        for part in np.array_split(np.arange(_NPROBE), stages):
            inside = np.flatnonzero(np.isin(list_of, order[: part[-1] + 1]))
            found[-1].append(inside[np.argsort(-scores[inside], kind="stable")[:documents]].tolist())
    return found


class _Requests:
    """One generator, asked again and again."""

    def __init__(self, generator: LlamaGenerator, task: dict[str, Any], trace: Trace) -> None:
        self._generator = generator
        self._task = task
        self._trace = trace
        self._sampling = Sampling(max_tokens=1)

    def waiting(self, stages: Stages, search_s: float, *, seed: int) -> float:
        """Seconds to the first token when the prompt is computed after the search."""
        started = time.perf_counter()
        time.sleep(search_s)
        self._answer(stages[-1], seed)
        return time.perf_counter() - started

    def guessing(self, stages: Stages, search_s: float, *, seed: int, pending: int = 0) -> float:
        """Seconds to the first token when each earlier stage's documents are brought in context ahead."""
        assert self._generator.tree is not None
        paths = [self._path(ids, seed) for ids in stages]
        started = time.perf_counter()
        with Speculation(self._generator.tree, pending=lambda: pending, trace=self._trace) as guess:
            for path in paths[:-1]:
                time.sleep(search_s / len(stages))
                guess.stage(path)
            time.sleep(search_s / len(stages))
            guess.finish(paths[-1])
            self._answer(stages[-1], seed)
            return time.perf_counter() - started

    def _answer(self, ids: Sequence[int], seed: int) -> None:
        messages, documents = self._prompt(ids, seed)
        list(self._generator.stream(messages, self._sampling, documents=documents))

    def _path(self, ids: Sequence[int], seed: int) -> Any:
        messages, documents = self._prompt(ids, seed)
        return self._generator.path(messages, documents, self._sampling)

    def _prompt(self, ids: Sequence[int], seed: int) -> tuple[list[Message], list[Document]]:
        tokens = self._task["tokens"]
        documents = [Document(f"d{i}", words(tokens, seed=seed + i)) for i in ids]
        return [_SYSTEM, Message("user", words(32, seed=seed))], documents


def _speculation(counters: dict[str, float]) -> dict[str, float]:
    return {name.removeprefix("speculation."): v for name, v in counters.items() if name.startswith("speculation.")}


if __name__ == "__main__":
    serve(work)
