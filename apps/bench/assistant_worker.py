"""One arm of `edge bench assistant`: a pipeline's trace replayed over the index, with or without lookahead."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from edge.apps.assistant.base import Ahead, AskOptions, NotInDocuments, Vectors
from edge.apps.assistant.pipelines import PIPELINES
from edge.apps.assistant.steps import Steps
from edge.apps.bench.process import serve
from edge.apps.bench.rag_index import texts_of
from edge.apps.bench.rag_traces import PASSAGES, ROUNDS
from edge.apps.collection.filters import Filters
from edge.apps.collection.hits import Hit
from edge.apps.store.database import Database
from edge.budget import MemoryBudget
from edge.devices.cpu import CpuDevice
from edge.ivf.index import IndexOptions, VectorIndex, choose_nprobe
from edge.ivf.router import probe
from edge.lanes import Lane
from edge.lookahead import Lookahead
from edge.predictor import TimePredictor
from edge.runtimes.embedder import Embedder
from edge.runtimes.generation.base import Generator
from edge.runtimes.generation.llama_cpp import LlamaGenerator
from edge.runtimes.generation.replay import Recorder, ReplayGenerator, Speed
from edge.trace import Trace

_LINK = "link"
_PROCESS_MEMORY = 4 << 30
_RECALL = 0.95
_MOST_TOKENS = 64
"""Of an answer: a small model writes on for as long as it may."""


class IndexLibrary:
    """An index whose rows stand for sentences, as pipelines see a collection (`edge.apps.assistant.base.Library`)."""

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
            share: of the lists that a search probes; None for what the index's recall target asks for.
            reuse: lists stay in memory for later searches.
        """
        self.budget = embedder.budget
        self.trace = trace
        self.stalls: list[float] = []
        """Seconds that each search waited for the link."""
        self.windows: list[float | None] = []
        """For each search: seconds since the lookahead for it began; None without one."""
        self.coverage: list[float] = []
        """For each query of a search after a lookahead: which share of its lists is among as many nearest to the last
        prediction (the best of them, where it has several queries)."""
        self._index = index
        self._database = database
        self._reuse = reuse
        self._embedder = embedder
        self._texts = texts_of(folder)
        self._begun = 0.0
        self._predicted: Vectors = np.empty((0, embedder.dim), np.float32)
        with database.read() as db:
            snapshot = index.snapshot(db)
        self.nprobe = choose_nprobe(snapshot, _RECALL) if share is None else max(1, round(snapshot.nlist * share))
        self.probed = 0
        """Lists that the last search probed."""

    def embed_queries(self, queries: Sequence[str]) -> Vectors:
        return self._embedder.embed(queries, query=True)

    def candidates(
        self,
        queries: Sequence[str],
        vectors: Vectors,
        k: int,
        *,
        where: Filters | None = None,
        seconds: float | None = None,
        window: Ahead | None = None,
    ) -> list[list[Hit]]:
        ahead = window if isinstance(window, Lookahead) else None
        self.windows.append(None if ahead is None else time.perf_counter() - self._begun)
        self._begun = 0.0
        stalled = self._stalled()
        with self._database.read() as db:
            if ahead is not None:
                centroids = self._index.snapshot(db).centroids
                self.coverage += [self._covered(vector, centroids) for vector in vectors]
            nprobe = self.nprobe if seconds is None else None
            found = self._index.search(db, vectors, k, nprobe=nprobe, seconds=seconds, window=ahead)
        if not self._reuse:
            self._index.release_lists()
        self.probed = found.nprobe
        self.stalls.append(self._stalled() - stalled)
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

    def lookahead(self, queries: Vectors, *, seconds: float | None = None) -> Ahead:
        self._predicted = queries
        self._begun = self._begun or time.perf_counter()
        with self._database.read() as db:
            return self._index.lookahead(db, queries, seconds=seconds)

    def _stalled(self) -> float:
        return self.trace.snapshot().get(f"{_LINK}.stall_s", 0.0)

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
    """The task's index, its lists in a memory of their own behind a link."""
    trace = Trace()
    folder = Path(task["folder"])
    process = MemoryBudget(_PROCESS_MEMORY)
    lane = Lane(_LINK, trace=trace, bandwidth_limit=task["bandwidth"])
    device = CpuDevice(MemoryBudget(task["list_memory"], part=True), link=lane, trace=trace)
    options = IndexOptions(codec="flat", flat_limit=0)
    with (
        lane,
        Embedder(budget=process) as embedder,
        Database(folder / "index.db", VectorIndex.migrations(), budget=process, read_only=True) as database,
        VectorIndex(
            folder / "segments", embedder.dim, budget=process, trace=trace, device=device, options=options
        ) as index,
    ):
        yield IndexLibrary(
            folder, index, database, embedder, share=task["probe_share"], reuse=task["reuse"], trace=trace
        )


def work(task: dict[str, Any]) -> dict[str, Any]:
    """Replays a trace, question after question; with a `model` in the task, has it answer and writes the trace."""
    with opened(task) as library:
        predictor = TimePredictor()

        def ask(question: str, generator: Generator) -> dict[str, Any]:
            options = AskOptions(
                passages=PASSAGES,
                pool=PASSAGES,
                rerank=False,
                rounds=ROUNDS,
                lookahead=task["lookahead"],
                max_tokens=_MOST_TOKENS,
            )
            return _answered(
                library,
                question,
                Steps(library, generator, options, pipeline=task["pipeline"], predictor=predictor),
            )

        if "model" in task:
            _record(task, library, ask)
            return {}
        replay = ReplayGenerator(task["trace"], speed=Speed(task["prefill"], task["decode"]))
        return {"rows": [ask(question, replay) for question in task["questions"]], "nprobe": library.nprobe}


def _record(task: dict[str, Any], library: IndexLibrary, ask: Callable[[str, Generator], object]) -> None:
    scratch = Path(task["trace"]).parent
    with LlamaGenerator(task["model"], library.budget, cache=scratch, threads=task["threads"]) as model:
        recorder = Recorder(model, task["trace"])
        for name, question in zip(task["ids"], task["questions"], strict=True):
            recorder.asked = name
            ask(question, recorder)
        recorder.close()


def _answered(library: IndexLibrary, question: str, steps: Steps) -> dict[str, Any]:
    """One question's answer, with what it took."""
    library.coverage.clear()
    library.stalls.clear()
    library.windows.clear()
    before = library.trace.snapshot()
    started = time.perf_counter()
    with suppress(NotInDocuments):
        text = ""
        for piece in PIPELINES[steps.pipeline](question, steps):
            text += piece
    seconds = time.perf_counter() - started
    steps.close()
    after = library.trace.snapshot()
    return {
        "seconds": seconds,
        "text": text,
        "found": [[hit.id for hit in entry.passages] for entry in steps.rounds],
        "coverage": list(library.coverage),
        "stalls": list(library.stalls),
        "windows": list(library.windows),
        "counters": {name: value - before.get(name, 0) for name, value in after.items()},
    }


if __name__ == "__main__":
    serve(work)
