"""`LlamaGenerator`: writes text with a GGUF model, run by llama.cpp inside the memory budget."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from edge.budget import Lease, MemoryBudget
from edge.errors import InputError
from edge.kv_cache.backend import StateSegment, cached_first
from edge.kv_cache.tree import KnowledgeTree
from edge.resident import Closing
from edge.runtimes.base import physical_cores
from edge.runtimes.generation.base import (
    Document,
    Finish,
    GenerationStats,
    Message,
    Piece,
    Sampling,
)
from edge.runtimes.generation.gguf_file import GGUFFile
from edge.runtimes.generation.llama_context import KVType, LlamaContext, LlamaSampler
from edge.runtimes.generation.llama_library import llama_library
from edge.runtimes.generation.llama_memory import Weights, reserve_memory
from edge.runtimes.generation.llama_model import LlamaModel, Load
from edge.runtimes.generation.llama_states import LlamaStates
from edge.runtimes.generation.prompt import Prompt, PromptBuilder
from edge.runtimes.generation.stopping import Stopping
from edge.scheduling.predictor import PromptWork
from edge.trace import Trace


class LlamaGenerator(Closing):
    """A `Generator` on llama.cpp. It writes one answer at a time; further calls wait.

    Attributes:
        memory: the sizes of the model's parts, and whether the weights are mapped.
        states: KV states by position, for a knowledge tree; None if the model's states cannot be cut.
        tree: if this is set to a `KnowledgeTree` over `states`, the states of documents are reused. Answers are the
            same with and without a tree, because each segment of a prompt is always computed in its own batches.
    """

    follows_instructions = True

    def __init__(
        self,
        path: str | Path,
        budget: MemoryBudget,
        *,
        cache: Path,
        context: int = 0,
        kv_type: KVType = "f16",
        weights: Weights = "auto",
        threads: int = 0,
        thinking: bool = False,
        trace: Trace | None = None,
    ) -> None:
        """Loads a model.

        Args:
            cache: directory for stored hashes of model files.
            context: number of tokens in prompt and answer. 0 takes the context that the model was trained for, at most
                4,096, or less if the budget is too small for it.
            kv_type: type of keys and values.
            weights: whether weights are read into memory or mapped from the file; `auto` reads them if they fit.
            threads: number of compute threads; 0 means one per physical core that this process may use.
            thinking: allows a model to reason before its answer, if it can.

        Raises:
            ModelError: the file is missing, damaged, no GGUF, or of an architecture that llama.cpp does not know.
            BudgetExceeded: the model does not fit; the error names the smallest limit that works.
            CapabilityError: llama.cpp is not installed.
            ConfigError: the context is larger than the one that the model was trained for.
        """
        file = GGUFFile.open(path)
        self.name = file.path.name
        self.tree: KnowledgeTree | None = None
        self._trace = trace or Trace()
        self._leases: list[Lease] = []
        self._model: LlamaModel | None = None
        self._context: LlamaContext | None = None
        self._stats: GenerationStats | None = None
        self._lock = threading.Lock()
        self._answering: int | None = None
        self._run: _Run | None = None
        try:
            budget.hold_libraries(("llama_cpp",))
            with budget.charge("llama.cpp") as library_lease:
                library = llama_library()
            self._leases.append(library_lease)
            self.memory, leases = reserve_memory(
                library,
                file,
                budget,
                context=context,
                threads=threads or physical_cores(),
                kv_type=kv_type,
                weights=weights,
            )
            self._leases += leases
            load: Load = "map" if self.memory.mapped else "read"
            with self._trace.span(f"load {self.name}", "generation", load=load):
                self._model = LlamaModel(library, file, load=load)
                self._context = LlamaContext(self._model, self.memory.shape)
            self.context = self._context.capacity
            self._builder = PromptBuilder(self._model, self.context, thinking=thinking)
            self.states = LlamaStates(self._context, hashes=cache) if self._model.reusable else None
        except BaseException:
            self.close()
            raise

    @property
    def stats(self) -> GenerationStats | None:
        """The figures of the last answer; None before the first."""
        return self._stats

    def count(self, text: str) -> int:
        """Number of tokens of a text."""
        return len(self._open()[0].tokenize(text))

    def path(
        self, messages: Sequence[Message], documents: Sequence[Document], sampling: Sampling
    ) -> tuple[StateSegment, ...]:
        """The prompt's segments with reusable states: the conversation up to the documents, and each document."""
        self._open()
        return self._builder.build(messages, documents, sampling.max_tokens).path

    def prompt_work(self, messages: Sequence[Message], documents: Sequence[Document], sampling: Sampling) -> PromptWork:
        """The work of reading a prompt now. States that the tree holds are not computed."""
        self._open()
        prompt = self._builder.build(messages, documents, sampling.max_tokens)
        if self.tree is None:
            return PromptWork(prompt.tokens)
        match = self.tree.match(prompt.path)
        return PromptWork(match.missing + len(prompt.question), match.host + match.disk)

    def cached_order(
        self,
        messages: Sequence[Message],
        documents: Sequence[Document],
        sampling: Sampling,
        *,
        scores: Sequence[float],
        tolerance: float,
    ) -> list[int]:
        """Numbers of the documents in the order whose cached beginning is longest (`edge.kv_cache.backend`)."""
        tree = self.tree

        def cached(order: Sequence[int]) -> int | None:
            path = self.path(messages, [documents[index] for index in order], sampling)
            match = None if tree is None else tree.match(path)
            return None if match is None or match.missing else match.cached

        return cached_first(scores, cached, tolerance=tolerance)

    def read_ahead(self, ids: Sequence[str]) -> None:
        """Lets the system read the documents' stored states into its page cache; see `KnowledgeTree.read_ahead`."""
        if self.tree is not None:
            self.tree.read_ahead(ids)

    def stream(
        self,
        messages: Sequence[Message],
        sampling: Sampling,
        *,
        documents: Sequence[Document] = (),
        cancel: threading.Event | None = None,
    ) -> Iterator[Piece]:
        """Answers, token by token; see `Generator.stream`.

        `cancel` is checked before each batch of the prompt and before each token.
        """
        called = time.perf_counter()
        self._open()
        run = _Run(self._builder.build(messages, documents, sampling.max_tokens), called)
        answer = self._answer(run, sampling, cancel.is_set if cancel is not None else _never)
        run.answer = weakref.ref(answer)
        return answer

    def close(self) -> None:
        """Frees the model and all memory. Ends an answer that this thread has begun to read, and waits for the end of
        another thread's answer."""
        self._end_own()
        with self._alone(None):
            if self._context is not None:
                self._context.close()
            if self._model is not None:
                self._model.close()
            self._context = self._model = None
            for lease in self._leases:
                lease.release()

    def _answer(self, run: _Run, sampling: Sampling, cancelled: Callable[[], bool]) -> Generator[Piece, None, None]:
        with self._alone(run):
            prompt = run.prompt
            model, context = self._open()
            longest = min(sampling.max_tokens, self.context - prompt.tokens)
            stopping = Stopping(sampling.stop)
            sampler = LlamaSampler(model.library.api, sampling)
            try:
                with self._in_context(run, cancelled), run.timed():
                    waiting: Sequence[int] = prompt.question
                    while context.append(waiting, cancelled=cancelled, logits=True) == len(waiting):
                        token, logprob = sampler.choose(context)
                        run.first = run.first or time.perf_counter()
                        if model.ends(token):
                            run.finish = "stop"
                            break
                        run.new += 1
                        yield from stopping.push(model.piece(token), token, logprob)
                        if stopping.stopped or run.new == longest:
                            run.finish = "stop" if stopping.stopped else "length"
                            break
                        waiting = (token,)
                    yield from stopping.finish()
            finally:
                sampler.close()
                self._stats = run.stats()
                self._trace.count("generation.prompt_tokens", prompt.tokens)
                self._trace.count("generation.new_tokens", run.new)
                self._trace.event(
                    "answer", "generation", run.called, self._stats.seconds, tokens=run.new, prompt=prompt.tokens
                )

    @contextmanager
    def _in_context(self, run: _Run, cancelled: Callable[[], bool]) -> Iterator[None]:
        """Puts the prompt's path into the context, with the tree if there is one. If cancelled, it stays incomplete."""
        _, context = self._open()
        path = run.prompt.path
        if self.tree is not None:
            suffix = len(run.prompt.question)
            with self.tree.prepare(path, suffix=suffix, cancelled=lambda _: cancelled()) as prepared:
                run.cached, run.restored = prepared.cached_tokens, prepared.restored_tokens
                run.restore_s = prepared.restore_s
                yield
            return
        context.truncate(0)
        for segment in path:
            with self._trace.span(f"prefill {segment.id}", "generation", tokens=len(segment.tokens)):
                context.append(segment.tokens, cancelled=cancelled)
        yield

    @contextmanager
    def _alone(self, run: _Run | None) -> Iterator[None]:
        """Waits for the end of another thread's answer. If this thread has an unfinished answer, an error is raised,
        because it would wait for itself."""
        if self._answering == threading.get_ident():
            raise InputError("an answer of this generator is still being read here; read it to its end, or close it")
        with self._lock:
            self._answering, self._run = threading.get_ident(), run
            try:
                yield
            finally:
                self._answering = self._run = None

    def _end_own(self) -> None:
        if self._answering == threading.get_ident() and self._run is not None:
            self._run.end()

    def _open(self) -> tuple[LlamaModel, LlamaContext]:
        if self._model is None or self._context is None:
            raise InputError(f"the generator {self.name} has been closed")
        return self._model, self._context


@dataclass(slots=True)
class _Run:
    """One answer that is being written, or has not begun yet."""

    prompt: Prompt
    called: float
    answer: weakref.ref[Generator[Piece, None, None]] | None = None
    first: float = 0.0
    ended: float = 0.0
    cached: int = 0
    restored: int = 0
    restore_s: float = 0.0
    new: int = 0
    finish: Finish = "cancelled"

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Sets the answer's end at the end of the `with` block, so that the clean-up afterwards is not counted."""
        try:
            yield
        finally:
            self.ended = time.perf_counter()

    def end(self) -> None:
        """Ends the answer at its current token."""
        answer = self.answer() if self.answer is not None else None
        if answer is not None:
            answer.close()

    def stats(self) -> GenerationStats:
        ended = self.ended or time.perf_counter()
        return GenerationStats(
            prompt_tokens=self.prompt.tokens,
            cached_tokens=self.cached,
            new_tokens=self.new,
            ttft_s=(self.first or ended) - self.called,
            seconds=ended - self.called,
            dropped_documents=self.prompt.dropped,
            finish=self.finish,
            restored_tokens=self.restored,
            restore_s=self.restore_s,
        )


def _never() -> bool:
    return False
