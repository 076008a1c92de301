"""`overhead`: measures the core's own time in a reranking, and for each list of a search."""

from __future__ import annotations

import functools
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from bench.figures import Column, Figure, tabulate
from bench.options import Output, Rounds, Threads, WorkDir, benchmark, stated
from bench.process import measure, processor
from bench.texts import documents
from bench.vectors import filled, opened_index
from edge.budget import MemoryBudget
from edge.config import parse_size
from edge.devices.cpu import CpuDevice, HostMemory
from edge.ivf.device import Candidates, SearchRequest
from edge.ivf.index import IndexOptions
from edge.models.tokenizer import PairTokenizer
from edge.runtimes.reranker import Reranker
from edge.trace import Trace

PARTS = ("layers", "tokenizing", "input", "scores")
"""The work of a model. All other time of a reranking is the core's."""

QUERY = "which bridge did the winter storm close to all supply"
_QUESTIONS, _NEIGHBOURS = 200, 10
_OPTIONS = IndexOptions(codec="flat", flat_limit=0, list_rows=100)


@benchmark
def overhead(
    *,
    model: Annotated[str, "The reranker; the default one if not given."] = "",
    memory: Annotated[str, "The limit of the reranking."] = "300MB",
    candidates: int = 60,
    tokens: Annotated[int, "Of a sequence, with the question."] = 207,
    rows: Annotated[int, "Vectors of the index, in lists of about 100."] = 20_000,
    dim: Annotated[int, "Values of a vector."] = 384,
    nprobe: Annotated[int, "Lists that a search probes."] = 32,
    threads: Threads = 2,
    rounds: Rounds = 15,
    work_dir: WorkDir,
    output: Output,
) -> None:
    """The time of the core alone: in a reranking, what is left of it beside the model's work, with the layers and with
    layers that compute nothing; in a search, the time for each list on the device `null`."""
    work_dir.mkdir(parents=True, exist_ok=True)
    task = {
        "name": "overhead", "model": model, "memory": parse_size(memory), "candidates": candidates, "tokens": tokens,
        "rows": rows, "dim": dim, "nprobe": nprobe, "rounds": rounds, "work_dir": str(work_dir), "watch": 1.0,
    }  # fmt: skip
    report = measure(work, task, threads=threads)
    result = {"processor": processor(), "threads": threads, "rounds": rounds, **report}
    output.put(result, figures(report), stated(result | {"candidates": candidates, "tokens": tokens}))


def figures(report: dict[str, Any]) -> Iterator[Figure]:
    given = report["rerank"]["arms"].items()
    arms = {name: {part: [row[part] for row in rounds] for part in rounds[0]} for name, rounds in given}
    parts = {name: Column(name, "s") for name in ("core", *PARTS)}
    yield from tabulate(arms, {"seconds": Column("whole", "s"), **parts}, "reranking")
    lists = {name: {"list": rounds} for name, rounds in report["search"].items()}
    yield from tabulate(lists, {"list": Column("a list", "s")}, "search")


def work(task: dict[str, Any]) -> dict[str, Any]:
    return {"rerank": _rerankings(task), "search": _searches(task)}


class Stopwatch:
    """Seconds that were spent in some methods, by part."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PARTS, 0.0)

    def watch(self, part: str, owner: object, *methods: str) -> None:
        """Adds the seconds of all further calls of an object's methods to a part."""
        for method in methods:
            setattr(owner, method, self._timed(part, getattr(owner, method)))

    def _timed(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def timed(*args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                self.seconds[part] += time.perf_counter() - started

        return timed


class _TimedScorer:
    """A reranker's scorer, with the time of its calls."""

    def __init__(self, scorer: Any, watch: Stopwatch) -> None:
        self.read, self._score = scorer.read, scorer.__call__
        watch.watch("scores", self, "read", "_score")

    def __call__(self, *args: Any) -> Any:
        return self._score(*args)


def _rerankings(task: dict[str, Any]) -> dict[str, Any]:
    """Seconds of every round: of the whole reranking, and of each part of the model's work. All candidates pass through
    all layers. In the arm `null` the layers compute nothing."""
    with Reranker(task["model"], memory=task["memory"], threshold="inf") as reranker:
        engine = reranker.engine
        tokenizer = PairTokenizer(reranker.model.tokenizer_path, reranker.model.spec)
        texts = documents(tokenizer, QUERY, task["candidates"], task["tokens"])
        watch = Stopwatch()
        watch.watch("tokenizing", engine.vocabulary, "pairs")
        watch.watch("input", engine.embedding, "embed")
        setattr(reranker, "_scorer", _TimedScorer(reranker._scorer, watch))  # noqa: B010 (a stand-in)
        real, null = engine.kernel, _without_layers(engine.kernel)
        watch.watch("layers", real, "bind", "advance")
        watch.watch("layers", null, "bind", "advance")
        arms: dict[str, list[dict[str, float]]] = {"layers": [], "null": []}
        for turn in range(task["rounds"] + 1):
            for name, kernel in (("layers", real), ("null", null)):
                engine.kernel = engine.room.kernel = kernel
                watch.seconds = dict.fromkeys(PARTS, 0.0)
                started = time.perf_counter()
                reranker.rank(QUERY, texts)
                seconds = time.perf_counter() - started
                if turn:  # the first round warms up
                    core = seconds - sum(watch.seconds.values())
                    arms[name].append({"seconds": seconds, "core": core, **watch.seconds})
        return {"arms": arms, "layers": reranker.model.spec.layers, "buffers": engine.window.buffers}


def _without_layers(kernel: Any) -> Any:
    """A kernel with the same needs that leaves the states as they are."""

    class Null(type(kernel)):  # type: ignore[misc]
        def bind(self, weights: Any) -> Any:
            return weights

        def advance(self, states: Any, lengths: Any, weights: Any, prefix: object | None = None) -> None:
            """Does nothing."""

    null = object.__new__(Null)
    null.__dict__.update(kernel.__dict__)
    return null


class NullDevice(HostMemory):
    """Takes lists and requests like any other device, but scans no rows."""

    name = "null"

    def search(self, request: SearchRequest) -> Candidates:
        return request.seen


def _searches(task: dict[str, Any]) -> dict[str, list[float]]:
    """Seconds per list of every round: searches for one question whose lists are all in memory, by device."""
    random = np.random.default_rng(0)
    vectors = random.standard_normal((task["rows"], task["dim"]), np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    found: dict[str, list[float]] = {"cpu": [], "null": []}
    with tempfile.TemporaryDirectory(dir=task["work_dir"]) as folder:
        filled(Path(folder), task["dim"], MemoryBudget(4 << 30), lambda _: [(0, vectors)], _OPTIONS)
        for turn in range(task["rounds"] + 1):
            for name, device in (("cpu", CpuDevice), ("null", NullDevice)):
                seconds = _search(Path(folder), device, vectors, task["nprobe"])
                if turn:
                    found[name].append(seconds)
    return found


def _search(folder: Path, device: Callable[..., Any], vectors: Any, nprobe: int) -> float:
    trace = Trace()
    lists = device(MemoryBudget(2 << 30, part=True), trace=trace)
    given = {"trace": trace, "device": lists, "options": _OPTIONS}
    with opened_index(folder, vectors.shape[1], MemoryBudget(4 << 30), **given) as (index, database):
        questions = vectors[:: len(vectors) // _QUESTIONS][:_QUESTIONS]
        probed = 0
        with database.read() as db:
            index.search(db, questions, _NEIGHBOURS, nprobe=nprobe)  # all lists come into memory
            started = time.perf_counter()
            for question in questions:
                probed += index.search(db, question[None], _NEIGHBOURS, nprobe=nprobe).hits
            return (time.perf_counter() - started) / max(1, probed)
