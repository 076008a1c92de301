"""One arm of the benchmark `assistant`: replays a pipeline's trace over the index, with or without lookahead."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from making.recording import Recorder, Speed
from making.replay import ReplayGenerator

from bench.computed_replay import ComputedReplay
from bench.rag_index import LINK, opened_index, texts_of
from bench.rag_traces import PASSAGES, ROUNDS
from edge.apps.assistant.answer import NotInDocuments
from edge.apps.assistant.pipelines import PIPELINES
from edge.apps.assistant.retrieval import Retrieval, Vectors
from edge.apps.assistant.steps import Steps
from edge.apps.collection.filters import Filters
from edge.apps.collection.hits import Hit
from edge.apps.requests import AskOptions
from edge.apps.store.database import Database
from edge.budget import MemoryBudget
from edge.cache.lookahead import Lookahead
from edge.devices.cpu import CpuDevice
from edge.ivf.index import VectorIndex
from edge.ivf.plan import choose_nprobe, probe
from edge.link import Lane
from edge.runtimes.embedder import Embedder
from edge.runtimes.generation.base import Generator
from edge.runtimes.generation.llama_cpp import LlamaGenerator
from edge.scheduling.predictor import TimePredictor
from edge.trace import Trace

_PROCESS_MEMORY = 4 << 30
_RECALL = 0.95
_PER_SEARCH = {
    "read": "lists.misses",
    "found": "lists.hits",
    "ahead": "lists.ahead",
    "used": "lists.ahead_used",
    "evicted": "lists.evictions",
    "moved_s": f"{LINK}.busy_s",
    "embed_s": "assistant.embed_s",
    "predicted": "gate.lookahead.started",
    "followed": "gate.following.started",
    "refused": "gate.lookahead.refused",
    "following_refused": "gate.following.refused",
    "saved_s": "gate.lookahead.saved_s",
    "lost_s": "gate.lookahead.lost_s",
    "following_lost_s": "gate.following.lost_s",
    "written": "assistant.new_tokens",
    "prompted": "assistant.prompt_tokens",
}
"""The counters that are shown for each search. Lists are counted in parts. `ahead` counts the parts that lookahead
fetched, and `used` the parts among them that the search probed. `written` and `prompted` count tokens."""

_MOST_TOKENS = 64
"""The most tokens of an answer. A small model writes until its limit."""


class IndexLibrary:
    """An index whose rows stand for sentences, with the interface of a collection for pipelines
    (`edge.apps.assistant.retrieval.CollectionLibrary`)."""

    def __init__(
        self,
        folder: Path,
        index: VectorIndex,
        database: Database,
        embedder: Embedder,
        *,
        share: float | None,
        reuse: bool,
        trace: Trace,
    ) -> None:
        """
        Args:
            share: the share of the lists that a search probes; None for as many as the recall target needs.
            reuse: keep lists in memory for later searches.
        """
        self.budget = embedder.budget
        self.trace = trace
        self.searches: list[dict[str, Any]] = []
        """The figures of each search since the one before (see `_took`)."""
        self.coverage: list[float] = []
        """For each query of a search after a lookahead, the share of its lists that are among as many lists nearest to
        the last prediction. For a prediction of several queries, the best share counts."""
        self._index = index
        self._database = database
        self._reuse = reuse
        self._embedder = embedder
        self._texts = texts_of(folder)
        self._before: Mapping[str, float] = {}
        self._predicted: Vectors = np.empty((0, embedder.dim), np.float32)
        with database.read() as db:
            snapshot = index.snapshot(db)
        self.nprobe = choose_nprobe(snapshot, _RECALL) if share is None else max(1, round(snapshot.nlist * share))
        self.probed = 0
        """The number of lists that the last search probed."""

    def embed_queries(self, queries: Sequence[str]) -> Vectors:
        return self._embedder.embed(queries, query=True)

    def candidates(
        self,
        queries: Sequence[Retrieval],
        vectors: Vectors,
        k: int,
        *,
        where: Filters | None = None,
        seconds: float | None = None,
        window: Lookahead | None = None,
    ) -> list[list[Hit]]:
        ahead = window if isinstance(window, Lookahead) else None
        asked = self.trace.snapshot()
        with self._database.read() as db:
            if ahead is not None:
                centroids = self._index.snapshot(db).centroids
                self.coverage += [self._covered(vector, centroids) for vector in vectors]
            nprobe = self.nprobe if seconds is None else None
            found = self._index.search(db, vectors, k, nprobe=nprobe, seconds=seconds, window=ahead)
        if not self._reuse:
            self._index.release_lists()
        self.probed = found.nprobe
        self.searches.append(self._took(asked))
        self.trace.count("index.lists_read", found.lists_read)
        self.trace.count("index.hits", found.hits)
        return [
            [self._hit(int(row), float(score)) for row, score in zip(ids, scores, strict=True) if row >= 0]
            for ids, scores in zip(found.ids, found.scores, strict=True)
        ]

    def rerank(self, query: str, hits: Sequence[Hit], top_k: int) -> list[Hit]:
        return list(hits[:top_k])

    def answered(self, query: str, hits: Sequence[Hit]) -> tuple[float, float] | None:
        return None

    def lookahead(
        self, queries: Vectors, *, seconds: float | None = None, lost: Callable[[float], object] | None = None
    ) -> Lookahead:
        self._predicted = queries
        with self._database.read() as db:
            return self._index.lookahead(db, queries, seconds=seconds, lost=lost)

    def begin(self) -> None:
        """Resets the figures for a new question."""
        self.coverage.clear()
        self.searches.clear()
        self._before = self.trace.snapshot()

    def _took(self, asked: Mapping[str, float]) -> dict[str, float]:
        """The figures of a search.

        `window` is the seconds of generation since the search before, which could hide this search's reads. `stall` is
        the seconds that the search waited for the link. The others are the counters of `_PER_SEARCH` since the search
        before.

        Args:
            asked: the counters when the search began.
        """
        before, self._before = self._before, self.trace.snapshot()

        def since(name: str, earlier: Mapping[str, float]) -> float:
            return self._before.get(name, 0.0) - earlier.get(name, 0.0)

        return {
            "window": since("assistant.generate_s", before),
            "stall": since(f"{LINK}.stall_s", asked),
            **{short: since(name, before) for short, name in _PER_SEARCH.items()},
        }

    def _covered(self, vector: Vectors, centroids: Vectors) -> float:
        wanted = set(probe(vector[None], centroids, self.nprobe)[0])
        near = [set(row) for row in probe(self._predicted, centroids, self.nprobe)]
        return max(len(wanted & row) for row in near) / len(wanted)

    def _hit(self, row: int, score: float) -> Hit:
        return Hit(
            id=row, path=str(row), line_start=1, line_end=1, page=None, score=score, snippet="",
            text=self._texts[row % len(self._texts)], title="", kind="", context="", file=row, ordinals=(0, 0),
        )  # fmt: skip


@contextmanager
def opened(task: dict[str, Any]) -> Iterator[IndexLibrary]:
    """Opens the task's index, with its lists in a separate memory behind a link."""
    trace = Trace()
    folder = Path(task["folder"])
    process = MemoryBudget(_PROCESS_MEMORY)
    lane = Lane(LINK, trace=trace, bandwidth_limit=task["bandwidth"])
    device = CpuDevice(MemoryBudget(task["list_memory"], part=True), link=lane, trace=trace)
    with (
        lane,
        Embedder(budget=process) as embedder,
        opened_index(folder, embedder.dim, process, trace=trace, device=device) as (index, database),
    ):
        yield IndexLibrary(
            folder, index, database, embedder, share=task["probe_share"], reuse=task["reuse"], trace=trace
        )


def work(task: dict[str, Any]) -> dict[str, Any]:
    """Replays a trace, question after question. If the task has a `model`, the model answers and the trace is
    recorded."""
    with opened(task) as library:
        options, predictor = options_of(task), TimePredictor()

        def ask(question: str, generator: Generator) -> dict[str, Any]:
            steps = Steps(library, generator, options, pipeline=task["pipeline"], predictor=predictor)
            return answered(library, question, steps)

        if "model" in task:
            _record(task, library, ask)
            return {}
        replay = replayed(task, task["trace"], library.budget)
        return {"rows": [ask(question, replay) for question in task["questions"]], "nprobe": library.nprobe}


def options_of(task: dict[str, Any]) -> AskOptions:
    """The options of all questions of a replay."""
    return AskOptions(
        passages=PASSAGES, pool=PASSAGES, rerank=False, rounds=ROUNDS, lookahead=task["lookahead"],
        max_tokens=_MOST_TOKENS,
    )  # fmt: skip


def replayed(task: dict[str, Any], trace: str, budget: MemoryBudget) -> ReplayGenerator:
    """The generator that replays a trace: it waits as long as the task's speeds say, or computes with its `computes`, a
    GGUF file."""
    if task.get("computes"):
        return ComputedReplay(trace, task["computes"], budget, threads=task["model_threads"])
    return ReplayGenerator(trace, speed=Speed(task["prefill"] or math.inf, task["decode"] or math.inf))


def _record(task: dict[str, Any], library: IndexLibrary, ask: Callable[[str, Generator], object]) -> None:
    scratch = Path(task["trace"]).parent
    with LlamaGenerator(task["model"], library.budget, cache=scratch, threads=task["threads"]) as model:
        recorder = Recorder(model, task["trace"])
        for name, question in zip(task["ids"], task["questions"], strict=True):
            recorder.asked = name
            ask(question, recorder)
        recorder.close()


def answered(library: IndexLibrary, question: str, steps: Steps) -> dict[str, Any]:
    """The answer to one question, with its figures."""
    library.begin()
    before = library.trace.snapshot()
    started = time.perf_counter()
    with suppress(NotInDocuments):
        text = ""
        for piece in PIPELINES[steps.pipeline](question, steps):
            text += piece
    seconds = time.perf_counter() - started
    steps.close()
    return {
        "seconds": seconds,
        "text": text,
        "found": [[hit.id for hit in entry.passages] for entry in steps.rounds],
        "coverage": list(library.coverage),
        "searches": list(library.searches),
        "counters": library.trace.since(before),
    }
