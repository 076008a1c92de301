"""Serves a stream of requests with one way of reusing KV states, and reports each request's time to first token."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from making.random_gguf import words
from naive.policies import POLICIES

from bench.cost_table import CostTable
from bench.process import drop_page_cache
from bench.request_stream import RequestStream, StreamShape
from edge.budget import MemoryBudget
from edge.kv_cache.store import KnowledgeStore
from edge.kv_cache.tree import KnowledgeTree
from edge.runtimes.generation.base import Document, Message, Sampling
from edge.runtimes.generation.gguf_file import GGUFFile
from edge.runtimes.generation.llama_cpp import LlamaGenerator
from edge.runtimes.generation.llama_library import llama_library
from edge.runtimes.generation.llama_model import LlamaModel
from edge.runtimes.generation.prompt import PromptBuilder
from edge.trace import Trace

_SYSTEM = Message("system", "Answer from the documents.")


def work(task: dict[str, Any]) -> dict[str, Any]:
    """Runs the task's `system`: `costs` measures prefill; `none`, `edge`, `ram-cache` and `ram-cache-held` serve
    requests."""
    if task["system"] == "costs":
        return _measure_costs(task)
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


def _measure_costs(task: dict[str, Any]) -> dict[str, Any]:
    with _generator(task) as (generator, _):
        assert generator.states is not None
        table = CostTable.load(task["costs"])
        if table is None or table.fingerprint != generator.states.fingerprint:
            text = [300 + i % 500 for i in range(generator.context)]
            table = CostTable.measure(generator.states, text, computed=(1, 32, 512), repeats=task["repeats"])
            table.save(task["costs"])
        return {"bytes_per_token": generator.states.bytes_per_token}


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
                costs=CostTable.load(task["costs"]),
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
    """Serves requests with llama-cpp-python in its usual form: `Llama.set_cache(LlamaRAMCache(...))`. Tokens, batch,
    threads and the layout of the weights are the same as in `_edge` (see `LlamaModel`). Its own reuse of tokens that
    are still in context stays on.

    `LlamaRAMCache` counts the bytes of its states, but not of the scores that it keeps with them. `ram-cache-held`
    counts both.
    """
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
    builder = PromptBuilder(vocabulary, task["context"])
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
