"""`knowledge`: measures the time to the first token with reused document states, beside llama.cpp without
reuse and llama-cpp-python's own prompt cache of the same size, on the same random model and stream of requests."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import click
import numpy as np
from making.random_gguf import SHAPES, made_model, words
from naive.policies import POLICIES

from bench.figures import higher, lower, tabulate
from bench.options import Names, Output, Threads, WorkDir, benchmark, stated
from bench.process import drop_page_cache, in_turn, measure, processor
from bench.request_stream import RequestStream, StreamShape, reusable
from edge.apps.options import FiniteRange
from edge.budget import MemoryBudget
from edge.config import parse_size
from edge.errors import EdgeError
from edge.kv_cache.backend import LearnedCosts
from edge.kv_cache.store import KnowledgeStore
from edge.kv_cache.tree import KnowledgeTree
from edge.runtimes.generation.base import Document, Message, Sampling
from edge.runtimes.generation.gguf_file import GGUFFile
from edge.runtimes.generation.llama_cpp import LlamaGenerator
from edge.runtimes.generation.llama_model import LlamaModel, llama_library
from edge.runtimes.generation.prompt import PromptBuilder
from edge.trace import Trace

_DISK = "pgdsf+disk"
_PEERS = ("none", "ram-cache", "ram-cache-held")
_AHEAD = {"read when needed": "", "path read ahead": "path", "named before": "named"}
"""The arms of `--cold`, which are all PGDSF with a disk: how states are read ahead."""
_SYSTEMS = (*_PEERS, *POLICIES, _DISK, *_AHEAD)
_BATCH = 512
_SYSTEM = Message("system", "Answer from the documents.")


@benchmark
def knowledge(
    *,
    shape: Annotated[str, click.Choice(sorted(SHAPES)), "Random model."] = "0.1b",
    requests: int = 120,
    warmup: Annotated[int, "Requests at the start that do not count."] = 40,
    topics: Annotated[int, "Different lists of documents."] = 30,
    documents: int = 60,
    per_request: Annotated[int, "Documents of a request."] = 4,
    tokens: Annotated[int, "Of a document, on average."] = 500,
    spread: Annotated[float, "Deviation of the logarithm of a document's length."] = 0.0,
    exponent: Annotated[float, "--zipf", "Exponent of popularity; 0 is uniform."] = 1.0,
    drift: Annotated[int, "Requests after which other topics are popular; 0: never."] = 0,
    cache: Annotated[str, "Bytes for states, the same for every system."] = "256MB",
    disk: Annotated[str, f"Bytes of {_DISK} on disk, beside those in memory."] = "2GB",
    every: Annotated[int, "Without reuse, serve one request in so many."] = 8,
    cold: Annotated[
        float | None,
        FiniteRange(0),
        f"Compare {', '.join(_AHEAD)}: the system's cache of stored states is dropped before each request, and in the "
        "last arm its documents are named so many seconds before the prompt, as a search does before it reranks.",
    ] = None,
    threads: Threads = 2,
    systems: Annotated[Sequence[str], Names(_SYSTEMS)] = (*_PEERS, *POLICIES, _DISK),
    work_dir: WorkDir,
    output: Output,
) -> None:
    """Serve the same skewed stream of requests with document states kept by different rules, and without."""
    if not 0 <= warmup < requests:
        raise click.BadParameter(f"{warmup} requests of warm-up leave none of {requests} to measure")
    systems = systems if cold is None else list(_AHEAD)
    stream = RequestStream.draw(StreamShape(requests, topics, documents, per_request, tokens, spread, exponent, drift))
    work_dir.mkdir(parents=True, exist_ok=True)
    model = made_model(work_dir, shape)
    longest = max(sum(stream.lengths[i] for i in request) for request in stream.requests)
    common: dict[str, Any] = {
        "model": str(model), "folder": str(work_dir), "context": -(-(longest + 320) // 256) * 256, "threads": threads,
        "memory": 2 * model.stat().st_size + 4 * parse_size(cache) + 2 * 10**9, "bytes": parse_size(cache),
        "batch": _BATCH, "answer": 4, "warmup": warmup, "every": every, "disk": parse_size(disk),
        "stream": asdict(stream.shape), "cold": cold,
    }  # fmt: skip
    conditions = {
        "shape": shape, "cache": parse_size(cache), "disk": parse_size(disk), "threads": threads, "warmup": warmup,
        "processor": processor(), "reusable": reusable(stream.requests, warmup), "cold": cold,
        "stream": asdict(stream.shape),
    }  # fmt: skip
    rows = _served(systems, common)
    columns = {
        **{key: lower(key, "s") for key in ("mean", "p50", "p95")}, "hit_rate": higher("documents found", "%"),
        "peak_resident": lower("peak", "B"),
    }  # fmt: skip
    figures = tabulate(rows, columns, "time to the first token", [name for name in _PEERS if name in rows])
    output.put({"conditions": conditions, "systems": rows}, figures, stated(conditions))


def _served(chosen: Sequence[str], common: dict[str, Any]) -> dict[str, dict[str, Any]]:
    def run(name: str) -> dict[str, Any]:
        stored = name == _DISK or name in _AHEAD
        system = "edge" if name in POLICIES or stored else name
        beside = {"disk": common["disk"], "policy": "pgdsf"} if stored else {"disk": 0, "policy": name}
        beside["ahead"] = _AHEAD.get(name, "path")
        return measure(work, common | beside | {"name": name, "system": system}, threads=common["threads"])

    reports, _ = in_turn(1, chosen, run)
    answers: dict[int, list[int]] = {}
    for name, (report,) in reports.items():
        if name.startswith("ram-cache"):  # llama-cpp-python computes other batches and answers in text, not tokens
            continue
        for number, answer in zip(report["numbers"], report["answers"], strict=True):
            if answers.setdefault(number, answer) != answer:
                raise EdgeError(f"request {number} was answered differently by {name}")
    per_request = common["stream"]["per_request"]
    return {name: _row(report, common["warmup"], per_request) for name, (report,) in reports.items()}


def _row(report: dict[str, Any], warmup: int, per_request: int) -> dict[str, Any]:
    counted = [i for i, number in enumerate(report["numbers"]) if number >= warmup]
    cached = [report["cached"][i] for i in counted if report["cached"][i] is not None]
    misses = report["counters"].get("knowledge.misses")
    return _figures([report["ttft"][i] for i in counted]) | {
        "cached": sum(cached) / sum(report["prompt"][i] for i in counted) if cached else None,
        # Every miss is a document's, because the system prompt of every request was found.
        "hit_rate": None if misses is None else 1 - misses / (per_request * len(counted)),
        "held": report["held"],
        "peak_resident": report["peak_resident"],
        "counters": report["counters"],
    }


def _figures(ttft: Sequence[float]) -> dict[str, Any]:
    return {
        "requests": len(ttft),
        "mean": statistics.fmean(ttft),
        "p50": float(np.percentile(ttft, 50)),
        "p95": float(np.percentile(ttft, 95)),
    }


def work(task: dict[str, Any]) -> dict[str, Any]:
    run = _ram_cache if task["system"].startswith("ram-cache") else _edge
    return run(task, RequestStream.draw(StreamShape(**task["stream"])))


@contextmanager
def _generator(task: dict[str, Any], trace: Trace | None = None) -> Iterator[tuple[LlamaGenerator, MemoryBudget]]:
    budget = MemoryBudget(task["memory"])
    with LlamaGenerator(
        task["model"],
        budget,
        cache=Path(task["folder"]),
        context=task["context"],
        weights="read",
        threads=task["threads"],
        trace=trace,
    ) as generator:
        yield generator, budget


def _edge(task: dict[str, Any], stream: RequestStream) -> dict[str, Any]:
    trace = Trace()
    with _generator(task, trace) as (generator, budget), TemporaryDirectory(dir=task["folder"]) as disk:
        states = generator.states
        assert states is not None
        tree = None
        store = KnowledgeStore(disk, states.fingerprint, task["disk"]) if task.get("disk") else None
        if task["system"] == "edge":
            tree = KnowledgeTree(
                states,
                budget,
                host_limit=task["bytes"],
                store=store,
                costs=LearnedCosts(states.fingerprint),
                policy=POLICIES[task["policy"]],
                trace=trace,
            )
            generator.tree = tree
            if not task["ahead"] and tree is not None and store is not None:
                setattr(store, "announce", lambda stored: None)  # noqa: B010 (switched off)
        report = _Report()
        before: dict[str, float] = {}
        for number in _numbers(task, stream):
            if number == task["warmup"]:
                before = trace.snapshot()
            messages, documents = _request(stream, number)
            if task["cold"] is not None:
                drop_page_cache(Path(disk))
                if task["ahead"] == "named":
                    generator.read_ahead([document.id for document in documents])
                time.sleep(task["cold"])
            answer = list(generator.stream(messages, _sampling(task), documents=documents))
            stats = generator.stats
            assert stats is not None
            report.add(
                number, stats.ttft_s, [piece.token for piece in answer], stats.cached_tokens, stats.prompt_tokens
            )
        if tree is not None:
            report.held = tree._states.host.used
            tree.close(save=False)
    counters = trace.since(before)
    return report.to_json() | {"counters": counters}


def _ram_cache(task: dict[str, Any], stream: RequestStream) -> dict[str, Any]:
    """Serves requests with llama-cpp-python in its usual form: `Llama.set_cache(LlamaRAMCache(...))`, otherwise as
    `_edge`. `LlamaRAMCache` counts the bytes of its states, but not of the scores that it keeps with them;
    `ram-cache-held` counts both."""
    import llama_cpp

    class Held(llama_cpp.LlamaRAMCache):  # type: ignore[misc, name-defined, unused-ignore]
        @property
        def cache_size(self) -> int:
            return _held(self)

    defaults = llama_cpp.llama_cpp.llama_model_default_params

    def like_ours() -> Any:
        params = defaults()
        params.use_extra_bufts = False
        return params

    llama_cpp.llama_cpp.llama_model_default_params = like_ours
    file = GGUFFile.open(task["model"])
    vocabulary = LlamaModel(llama_library(), file, load="none")
    builder = PromptBuilder(vocabulary, task["context"], MemoryBudget(1 << 30, part=True))
    llama: Any = llama_cpp.Llama(
        task["model"],
        n_ctx=task["context"],
        n_batch=task["batch"],
        n_ubatch=task["batch"],
        n_threads=task["threads"],
        n_threads_batch=task["threads"],
        use_mmap=False,
        verbose=False,
    )
    cache = (Held if task["system"] == "ram-cache-held" else llama_cpp.LlamaRAMCache)(capacity_bytes=task["bytes"])
    llama.set_cache(cache)
    report = _Report()
    for number in _numbers(task, stream):
        messages, documents = _request(stream, number)
        prompt = builder.build(messages, documents, task["answer"])
        tokens = [token for segment in prompt.path for token in segment.tokens] + list(prompt.question)
        first = 0.0
        answer: list[int | None] = []
        started = time.perf_counter()
        for piece in llama.create_completion(tokens, max_tokens=task["answer"], temperature=0.0, stream=True):
            first = first or time.perf_counter() - started
            answer.append(piece["choices"][0]["text"])
        report.add(number, first, answer, None, len(tokens))
    report.held = _held(cache)
    return report.to_json() | {"counters": {"entries": len(cache.cache_state), "counted": cache.cache_size}}


def _held(cache: Any) -> int:
    return sum(len(state.llama_state) + state.scores.nbytes for state in cache.cache_state.values())


class _Report:
    """The figures of each request."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.ttft: list[float] = []
        self.answers: list[Sequence[int | str | None]] = []
        self.cached: list[int | None] = []
        self.prompt: list[int] = []
        self.held = 0

    def add(
        self, number: int, ttft: float, answer: Sequence[int | str | None], cached: int | None, prompt: int
    ) -> None:
        self.numbers.append(number)
        self.ttft.append(ttft)
        self.answers.append(answer)
        self.cached.append(cached)
        self.prompt.append(prompt)

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self))


def _numbers(task: dict[str, Any], stream: RequestStream) -> Iterator[int]:
    """The numbers of the requests to serve, in order: all of them, or without reuse only every n-th after the
    warm-up."""
    if task["system"] == "none":
        return iter(range(task["warmup"], len(stream.requests), task["every"]))
    return iter(range(len(stream.requests)))


def _request(stream: RequestStream, number: int) -> tuple[list[Message], list[Document]]:
    documents = [Document(f"d{i}", words(stream.lengths[i], seed=i)) for i in stream.requests[number]]
    question = words(stream.shape.question, seed=10_000 + number)
    return [_SYSTEM, Message("user", question)], documents


def _sampling(task: dict[str, Any]) -> Sampling:
    return Sampling(max_tokens=task["answer"])
