"""The assistant's generator: a language model that reuses KV states, or a picker of the documents' sentences.
`open_generator` opens one from one word that gives its kind and place."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path

from edge.apps.assistant.answer import CLOSEST
from edge.apps.assistant.question import judged_question
from edge.apps.assistant.reading import PassageReader
from edge.apps.collection.collection import Collection
from edge.apps.verbs.requests import AskOptions
from edge.budget import MemoryBudget, OperationStage
from edge.config import Config
from edge.errors import BudgetExceeded, ConfigError, EdgeError
from edge.kv_cache.backend import LearnedCosts
from edge.kv_cache.store import STATES, KnowledgeStore
from edge.kv_cache.tree import KnowledgeTree
from edge.models.gguf_file import GGUFFile
from edge.models.registry import find_generator
from edge.runtimes.generation.base import Document, Generator, Message, Piece, Sampling
from edge.runtimes.generation.chat_template import USUAL_NBYTES
from edge.runtimes.generation.extractive import ExtractiveGenerator, Score
from edge.runtimes.generation.llama_cpp import LlamaGenerator
from edge.runtimes.generation.llama_memory import GpuLayers, least_nbytes
from edge.scheduling.background import Background
from edge.trace import Trace

_STATES_DISK = 2 << 30
"""The most bytes of documents' KV states on disk, for all collections and models together."""

_STATES_SHARE = 0.25
"""The share of the memory limit that documents' KV states may take while nothing else needs the memory."""


def picks_sentences(llm: str | os.PathLike[str]) -> bool:
    return llm in ("", ExtractiveGenerator.name)


def retrieval_nbytes(collection: Collection, *, serving: bool = False) -> int:
    """Working memory of a collection's embedder, reranker and a chat template, which run one after the other. A server
    renders templates of other requests meanwhile, and may have to open the models again. Opens both models."""
    engines = [] if collection.identity is None else [collection.embedder.engine]
    engines.append(collection.reranker.engine)
    if serving:
        return USUAL_NBYTES + max(engine.needs.own for engine in engines)
    return max(USUAL_NBYTES, *(engine.working for engine in engines))


@contextmanager
def limit_named(collection: Collection, options: AskOptions, llm: object) -> Iterator[None]:
    """While a language model is opened, a refusal names a limit that is enough for it and for retrieval together."""
    held = collection.budget.used
    try:
        yield
    except BudgetExceeded as error:
        if stages := generator_stages(llm, collection.config) if isinstance(llm, str | os.PathLike) else ():
            whole = collection.models.plan(
                "answering", rerank=options.rerank, candidates=2 * options.pool, extra=stages
            ).refusal(collection.budget.limit, held)  # fmt: skip
            if whole.needed > error.needed:
                raise whole from None
        raise


def open_llm(
    llm: str | os.PathLike[str],
    budget: MemoryBudget,
    config: Config,
    *,
    beside: int,
    kv_cache: bool,
    serving: bool = False,
    trace: Trace,
) -> Generator:
    """Opens a language model, with a knowledge tree if its states can be extracted. `beside` bytes stay free for
    retrieval, because the generator keeps its memory for good. Raises as `open_generator` does."""
    with budget.reserve("retrieval", beside):
        generator = open_generator(os.fspath(llm), budget, config, serving=serving, trace=trace)
    if isinstance(generator, LlamaGenerator):
        generator.beside = beside
        try:
            generator.tree = _knowledge(generator, budget, config, trace) if kv_cache else None
        except BaseException:
            generator.close()
            raise
    return generator


def _knowledge(generator: LlamaGenerator, budget: MemoryBudget, config: Config, trace: Trace) -> KnowledgeTree | None:
    if generator.states is None:
        return None
    fingerprint = generator.states.fingerprint
    store = KnowledgeStore(config.scratch_path / STATES, fingerprint, _STATES_DISK, trace=trace)
    digest = blake2b(fingerprint.encode(), digest_size=8).hexdigest()
    costs = LearnedCosts(fingerprint, config.scratch_path / f"prefill-costs-{digest}.json")
    host_limit = int(budget.limit * _STATES_SHARE)
    writer = Background("edge-states")  # the engine's thread, which writes all answers, must not wait for the disk
    moves = config.states == "anywhere" or (config.states == "auto" and generator.memory.shape.sequences > 1)
    return KnowledgeTree(
        generator.states, budget, host_limit=host_limit, store=store, costs=costs, writer=writer, trace=trace,
        anywhere=moves and generator.states.movable,
    )  # fmt: skip


class QuotingGenerator(ExtractiveGenerator):
    """Answers with the unit that answers the question, or with the nearest passage, which it says first."""

    def __init__(self, reader: PassageReader) -> None:
        super().__init__(lambda question, found: [-float(place) for place in range(len(found))], most=_MOST)
        self._reader = reader
        self._is_answer = True
        self._cited = ""

    def stream(
        self,
        messages: Sequence[Message],
        sampling: Sampling,
        *,
        documents: Sequence[Document] = (),
        cancel: threading.Event | None = None,
    ) -> Iterator[Piece]:
        question = judged_question(next((m.content for m in reversed(messages) if m.role == "user"), ""))
        reading = self._reader.read(question, documents)
        best = reading.answers[0] if reading.answers else None
        self._is_answer = reading.is_answer or best is None
        self._cited = best.unit.text if best is not None else ""
        chosen = [
            replace(each, parts=best.shown if best is not None and number == best.passage else ())
            for number, each in enumerate(documents)
        ]
        yield from super().stream(messages, sampling, documents=chosen, cancel=cancel)

    def _cites(self, sentence: str) -> bool:
        return sentence == self._cited

    def _lead(self, question: str) -> str:
        return "" if self._is_answer else f"{CLOSEST}\n"


_MOST = 20
"""The most units of one answer: those around the best one of the nearest passage."""


def open_generator(
    spec: str | Path,
    budget: MemoryBudget,
    config: Config,
    *,
    score: Score | None = None,
    serving: bool = False,
    trace: Trace | None = None,
) -> Generator:
    """Opens a generator in `budget`: a GGUF file or known name, an `http://` or `https://` address (`#model` at its end
    if the server has several), or `extractive` (also if empty), for which `score` judges sentences. `serving`: several
    people ask it."""
    text = str(spec)
    if text in ("", ExtractiveGenerator.name):
        if score is None:
            raise ConfigError("extractive answers need something that scores sentences, such as a reranker")
        return ExtractiveGenerator(score)
    if text.startswith(("http://", "https://")):
        from edge.runtimes.generation.openai_http import DEFAULT_CONTEXT, OpenAIGenerator

        url, _, model = text.partition("#")
        return OpenAIGenerator(
            url, model=model, key=config.llm_key, remote=config.llm_remote, context=config.context or DEFAULT_CONTEXT
        )
    return LlamaGenerator(
        find_generator(spec, config.models_dir or None),
        budget,
        cache=config.scratch_path,
        context=config.context,
        threads=config.llm_threads or config.threads,
        answers=config.answers,
        shared=None if serving and config.generation == "auto" else config.generation == "shared",
        gpu_layers=GpuLayers(config.gpu_layers, config.opened_device),
        trace=trace,
    )


def generator_stages(spec: str | os.PathLike[str], config: Config) -> tuple[OperationStage, ...]:
    """The memory that a generator in this process needs. A missing or damaged file is reported when it is opened."""
    text = os.fspath(spec)
    if text in ("", ExtractiveGenerator.name) or text.startswith(("http://", "https://")):
        return ()
    try:
        file = GGUFFile.open(find_generator(text, config.models_dir or None))
    except EdgeError:
        return ()
    needed = least_nbytes(file, config.context) + USUAL_NBYTES
    return (OperationStage(f"the language model {file.path.name}", own=needed, libraries=("llama_cpp",)),)
