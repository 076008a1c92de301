"""`LlamaGenerator`: writes text with a GGUF model, run by llama.cpp inside the memory budget."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from edge.budget import Lease, MemoryBudget
from edge.errors import BudgetExceeded, InputError, ModelError
from edge.kv_cache.backend import StateSegment, cached_first
from edge.kv_cache.tree import KnowledgeTree
from edge.models.gguf_file import GGUFFile
from edge.resident import Closing
from edge.runtimes.base import physical_cores
from edge.runtimes.generation.base import Document, GenerationStats, Message, Piece, Sampling
from edge.runtimes.generation.engine import GenerationEngine, Request
from edge.runtimes.generation.llama_context import LlamaContext, LlamaSampler, ReadingRoom
from edge.runtimes.generation.llama_memory import GpuLayers, reserve_memory
from edge.runtimes.generation.llama_model import LlamaModel, Load, llama_library
from edge.runtimes.generation.llama_states import LlamaStates
from edge.runtimes.generation.prompt import Prompt, PromptBuilder
from edge.scheduling.predictor import PromptWork
from edge.trace import Trace


class LlamaGenerator(Closing):
    """A `Generator` on llama.cpp for any number of threads. Unless `shared`, each answer has a context of its own, so
    that its text does not depend on the company.

    `beside`: bytes that stay free when a further context is made. `states`: KV states by position; None if they cannot
    be cut. With a `tree` over them, which the generator closes, documents' states are reused; answers are the same."""

    follows_instructions = True

    def __init__(
        self,
        path: str | Path,
        budget: MemoryBudget,
        *,
        cache: Path,
        context: int = 0,
        threads: int = 0,
        answers: int = 1,
        shared: bool | None = False,
        gpu_layers: GpuLayers | None = None,
        trace: Trace | None = None,
    ) -> None:
        """Loads a model. `cache` is for hashes of model files; `context` 0 takes the trained length, at most 4,096, or
        less if it must; weights are read if they fit, else mapped; all `answers` but the first take memory only while
        needed.

        `shared` answers have one context and one step, but the last bits of sums, and so some texts, depend on company.
        None: they share if there is memory to read prompts apart. `gpu_layers` lie on a GPU; none if not given."""
        file = GGUFFile.open(path)
        self.name = file.path.name
        self.tree: KnowledgeTree | None = None
        self._trace = trace or Trace()
        self.beside = 0
        self._budget = budget
        self._hashes = cache
        self._leases: list[Lease] = []
        self._gpu_layers = gpu_layers or GpuLayers("0", "")
        self._sequences = 0
        self._model: LlamaModel | None = None
        self._engine: GenerationEngine | None = None
        self._room: LlamaContext | None = None
        self._answered = threading.local()
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
                sequences=1 if shared is False else answers,
                beside=shared is True,
            )
            self._leases += leases
            self._gpu_layers.reserve(library.api, file, budget, self.memory.kv_cache + self.memory.buffers)
            self.memory = replace(self.memory, on_gpu=self._gpu_layers.placement)
            load: Load = "map" if self.memory.mapped else "read"
            with self._trace.span(f"load {self.name}", "generation", load=load):
                self._model = model = LlamaModel(library, file, load=load, gpu_layers=self._gpu_layers.count)
                first = self._parted(LlamaContext(model, self.memory.shape))
                if self.memory.room is not None:
                    self._room = self._parted(LlamaContext(model, self.memory.room))
                    first.room = ReadingRoom(self._room)
            self._engine = GenerationEngine(
                model,
                most=answers,
                first=first,
                another=self._another,
                chooser=partial(LlamaSampler, library.api),
                tree=lambda: self.tree,
                budget=budget,
                pool=first if self.memory.shape.sequences > 1 else None,
                trace=self._trace,
            )
            self.context = first.cells if self.memory.shape.sequences > 1 else first.capacity
            self.states = cast(LlamaStates | None, first.backend)
            self._builder = PromptBuilder(model, self.context, budget)
        except BaseException:
            self.close()
            raise

    @property
    def stats(self) -> GenerationStats | None:
        stats: GenerationStats | None = getattr(self._answered, "stats", None)
        return stats

    def picture(self) -> dict[str, Any]:
        """See `GenerationEngine.picture`; `context` is the number of cells of a sequence."""
        picture = {} if self._engine is None else self._engine.picture()
        return {"model": self.name, "context": self.context, **picture}

    def count(self, text: str) -> int:
        return len(self._open().tokenize(text))

    def path(
        self, messages: Sequence[Message], documents: Sequence[Document], sampling: Sampling
    ) -> tuple[StateSegment, ...]:
        """The prompt's segments with reusable states: the conversation up to the documents, and each document."""
        return self._prompt(messages, documents, sampling).path

    def prompt_work(self, messages: Sequence[Message], documents: Sequence[Document], sampling: Sampling) -> PromptWork:
        prompt = self._prompt(messages, documents, sampling)
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
        tree, last = self.tree, len(documents) - 1

        def cached(begun: Sequence[int]) -> int | None:
            """`begun` counts from the last document, which stands first in the prompt."""
            order = [last - place for place in begun]
            rest = [index for index in range(len(documents)) if index not in order]
            path = self.path(messages, [documents[index] for index in (*rest, *reversed(order))], sampling)
            match = None if tree is None else tree.match(path[: len(path) - len(rest)])
            return None if match is None or match.missing else match.cached

        begun = cached_first([-score for score in reversed(scores)], cached, tolerance=tolerance)
        return [last - place for place in reversed(begun)]

    def read_ahead(self, ids: Sequence[str]) -> None:
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
        """Answers, token by token; see `Generator.stream`. Another thread writes, perhaps ahead of the reader."""
        called = time.perf_counter()
        prompt = self._prompt(messages, documents, sampling)
        longest = min(sampling.max_tokens, self.context - prompt.tokens)
        request = Request(prompt, sampling, longest, cancel.is_set if cancel is not None else lambda: False)
        return self._answer(request, called)

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()
        if self.tree is not None:
            self.tree.close()
        if self._room is not None:
            self._room.close()
        if self._model is not None:
            self._model.close()
        self._model = None
        self._gpu_layers.close()
        for lease in self._leases:
            lease.release()

    def _prompt(self, messages: Sequence[Message], documents: Sequence[Document], sampling: Sampling) -> Prompt:
        self._open()
        moved = self.tree is not None and self.tree.anywhere
        return self._builder.build(messages, documents, sampling.max_tokens, moved=moved)

    def _answer(self, request: Request, called: float) -> Iterator[Piece]:
        engine = self._engine
        assert engine is not None
        try:
            engine.submit(request)
            for pieces, written in request.read():
                for piece in pieces:
                    if request.stopped or engine.closed:
                        return
                    request.shown = written
                    yield piece
                request.shown = written
        finally:
            request.left = True
            stats = request.stats(called)
            self._answered.stats = stats
            self._trace.count("generation.prompt_tokens", stats.prompt_tokens)
            self._trace.count("generation.new_tokens", stats.new_tokens)
            self._trace.event(
                "answer", "generation", called, stats.seconds, tokens=stats.new_tokens, prompt=stats.prompt_tokens
            )

    def _another(self) -> LlamaContext | None:
        """One more sequence, in the pool or in one more context; None if the budget has no room."""
        model, memory = self._open(), self.memory
        if memory.shape.sequences > 1:
            assert self.states is not None
            self._sequences += 1
            return self._parted(self.states.context.sequence(self._sequences))
        nbytes = memory.kv_cache + memory.buffers
        if self._budget.make_room(self.beside + nbytes, below=math.inf) < self.beside + nbytes:
            return None
        try:
            with self._budget.reserve("retrieval", self.beside):
                lease = self._budget.reserve("generator: another answer", nbytes)
        except BudgetExceeded:
            return None
        try:
            return self._parted(LlamaContext(model, memory.shape, lease))
        except ModelError:  # the system has no memory for it
            lease.release()  # a second time is harmless
            return None

    def _parted(self, context: LlamaContext) -> LlamaContext:
        """The same context, with its states for a tree if the model allows that."""
        try:
            context.backend = LlamaStates(context, hashes=self._hashes) if context.model.reusable else None
        except BaseException:
            context.close()
            raise
        return context

    def _open(self) -> LlamaModel:
        if self._model is None:
            raise InputError(f"the generator {self.name} has been closed")
        return self._model
