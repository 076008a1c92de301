"""`Assistant`: answers questions from a collection, with citations, within one memory limit."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from hashlib import blake2b
from types import TracebackType

from edge.apps.assistant import prompts, replies
from edge.apps.assistant.answer import Answer
from edge.apps.assistant.base import AskOptions
from edge.apps.assistant.conversation import Conversation, Turn, recent, standalone
from edge.apps.assistant.evidence import UnitJudge
from edge.apps.assistant.judged_question import check_question
from edge.apps.assistant.library import CollectionLibrary
from edge.apps.assistant.pipelines import PIPELINES
from edge.apps.assistant.quotations import PickedSentences
from edge.apps.assistant.steps import Steps
from edge.apps.assistant.stream import AnswerStream, Texts, Turns, Writing
from edge.apps.collection.collection import Collection
from edge.config import Config
from edge.errors import CapabilityError, InputError
from edge.kv_cache.costs import LearnedCosts
from edge.kv_cache.store import KnowledgeStore
from edge.kv_cache.tree import KnowledgeTree
from edge.public_calls import checked_arguments
from edge.runtimes.generation.base import Generator, Message, Sampling
from edge.runtimes.generation.extractive import ExtractiveGenerator
from edge.runtimes.generation.llama_cpp import LlamaGenerator
from edge.runtimes.generation.opening import open_generator
from edge.scheduling.predictor import TimePredictor
from edge.trace import Trace

_TIMES = "generation-times.json"


@checked_arguments
class Assistant:
    """Answers questions from a collection. It writes one answer at a time; other threads wait. A context manager.

    Examples:
        >>> with Assistant("notes.edge", llm="model.gguf", memory="2GB") as assistant:
        ...     answer = assistant.ask("when does the river flood")
        ...     print(answer.text, *(citation.place for citation in answer.citations), sep="\\n")
    """

    def __init__(
        self,
        collection: Collection | str | os.PathLike[str],
        *,
        llm: Generator | str | os.PathLike[str] | None = None,
        memory: str | int | None = None,
        pipeline: str = "plain",
        options: AskOptions | None = None,
        kv_cache: bool = True,
        config: Config | None = None,
        trace: Trace | None = None,
    ) -> None:
        """Opens the index, the models and the KV states, which share one memory budget.

        Args:
            collection: the collection's directory, or an open collection. An open one keeps its budget and trace, and
                the caller closes it.
            llm: a GGUF file, the name of a pulled generator, the address of an OpenAI-compatible server on this
                machine, `extractive` (the best sentences of the documents), or an open generator, which the caller
                closes. If not given, the configuration's generator, by default `extractive`.
            memory: limit of the whole process, such as `2GB`; by default the configuration's.
            pipeline: the name of the pipeline, one of `PIPELINES`.
            options: default options for questions that are asked without options of their own.
            kv_cache: keep the KV states of documents and reuse them, also in later processes. This changes times only.

        Raises:
            InputError: there is no such pipeline.
            StorageError: there is no collection.
            ModelError: the model is missing or broken.
            BudgetExceeded: the model does not fit the limit. The message says how it would fit.
            CapabilityError: the pipeline needs a generator that follows instructions.
        """
        self.options = options or AskOptions()
        self.pipeline = pipeline
        self._write = _find(pipeline)
        with ExitStack() as opened:
            if isinstance(collection, Collection):
                self.collection = collection
            else:
                made = Collection(collection, memory=memory, config=config, trace=trace, read_only=True)
                self.collection = opened.enter_context(made)
            self.collection.check_room("answering", rerank=self.options.rerank, candidates=2 * self.options.pool)
            working = 0
            judge = UnitJudge(self.collection)
            if llm is None or isinstance(llm, str | os.PathLike):
                llm, working = open_llm(llm, self.collection, judge, opened, kv_cache=kv_cache)
            self.generator = llm
            if pipeline != "plain" and not llm.follows_instructions:
                raise CapabilityError(
                    f"the pipeline {pipeline} asks the generator to write more than the answer, and {llm.name} only "
                    f"picks sentences: use the pipeline plain, or a language model (--llm FILE.gguf)"
                )
            self._opened = opened.pop_all()
        self._predictor = TimePredictor(self.collection.path / _TIMES)
        self._library = CollectionLibrary(self.collection, working=working, judge=judge)
        self._turns = Turns()

    def ask(self, question: str, *, options: AskOptions | None = None) -> Answer:
        """Answers a question.

        Raises:
            InputError: the question holds no word, its asking sentence is too long to judge passages by, or the
                question is too long for the generator's context.
            ModelError: a model failed, or cannot be reached.
            BudgetExceeded: the limit is too small.
        """
        return self.stream(question, options=options).answer

    def stream(self, question: str, *, options: AskOptions | None = None) -> AnswerStream:
        """Answers a question piece by piece. The `answer` of the returned stream is the whole, with its citations.

        Raises:
            The errors of `ask`, when the pieces are read.
        """
        return self._stream(question, (), lambda turn: None, options)

    def chat(self, *, options: AskOptions | None = None) -> Conversation:
        """A conversation, in which questions may refer to earlier questions and answers."""
        return Conversation(lambda question, turns, keep: self._stream(question, turns, keep, options))

    def write(self, messages: Sequence[Message], sampling: Sampling, cancel: threading.Event) -> Iterator[str]:
        """Yields the generator's reply to messages, without any document, piece by piece.

        Args:
            cancel: once set, it ends the writing before the next token.

        Raises:
            CapabilityError: the generator only picks sentences of documents.
            InputError: this thread is still writing another answer.
            Also the errors of `Generator.stream`.
        """
        if not self.generator.follows_instructions:
            raise CapabilityError(
                f"{self.generator.name} only picks sentences of documents: a language model is needed (--llm FILE.gguf)"
            )
        if not self._turns.take(lambda: None, cancel):
            return
        try:
            for piece in self.generator.stream(messages, sampling, cancel=cancel):
                yield piece.text
        finally:
            self._turns.give()

    def close(self) -> None:
        """Closes everything that this assistant opened, and saves the learned step times. An answer that was not read
        to its end is ended first, because closing the generator would wait for it."""
        self._turns.end()
        self._predictor.save()
        self._opened.close()

    def __enter__(self) -> Assistant:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _stream(
        self, asked: str, turns: Sequence[Turn], keep: Callable[[Turn], None], options: AskOptions | None
    ) -> AnswerStream:
        options = options or self.options
        check_question(asked, judged=options.rerank)
        steps = Steps(
            self._library, self.generator, options,
            pipeline=self.pipeline, predictor=self._predictor,
        )  # fmt: skip

        def write(writing: Writing) -> Texts:
            writing.question = asked.strip()
            writing.question = _standalone(asked.strip(), turns, steps)
            yield from self._write(writing.question, steps)

        def done(answer: Answer) -> None:
            keep(Turn(asked, answer.stats.question, answer))

        return AnswerStream(write, steps, self._turns, done)


def _find(pipeline: str) -> Callable[[str, Steps], Iterator[str]]:
    if pipeline not in PIPELINES:
        raise InputError(f"there is no pipeline {pipeline!r}; there are {', '.join(PIPELINES)}")
    return PIPELINES[pipeline]


def _standalone(question: str, turns: Sequence[Turn], steps: Steps) -> str:
    """A follow-up question, rewritten so that it can be understood and searched for without the conversation."""
    if not turns or not steps.generator.follows_instructions:
        return standalone(question, turns)
    ahead = [f"{turns[-1].question} {question}"]
    return replies.one_line(steps.write(prompts.condensed(recent(turns), question), ahead=ahead)) or question


_STATES = "kv-states"
_STATES_DISK = 2 << 30
"""The most bytes of documents' KV states on disk, for all collections and models together."""

_STATES_SHARE = 0.25
"""The share of the memory limit that documents' KV states may take while nothing else needs the memory."""


def open_llm(
    llm: str | os.PathLike[str] | None,
    collection: Collection,
    judge: UnitJudge,
    opened: ExitStack,
    *,
    kv_cache: bool,
) -> tuple[Generator, int]:
    """Opens a generator; `opened` closes it. Returns the generator, and the bytes that retrieval needs beside it.

    Args:
        llm: see `Assistant`.
        judge: judges the sentences for the `extractive` generator.

    Raises:
        ModelError, BudgetExceeded, CapabilityError, ConfigError: see `open_generator`.
    """
    llm = llm or collection.config.llm
    if not llm or llm == ExtractiveGenerator.name:
        return PickedSentences(judge), 0
    # The working memory of embedder and reranker is reserved while the generator is opened. The generator takes its
    # memory for good, and it would otherwise leave the two models too little to run.
    working = _working_memory(collection)
    with collection.budget.reserve("retrieval", working):
        generator = open_generator(os.fspath(llm), collection.budget, collection.config, trace=collection.trace)
    opened.callback(generator.close)
    if kv_cache:
        _reuse_states(generator, collection, opened)
    return generator, working


def _working_memory(collection: Collection) -> int:
    """The bytes that embedder and reranker need to run one after the other. They must be free, or held by caches that
    can be evicted. Opens both models."""
    engines = [] if collection.vectors is None else [collection.embedder.engine]
    return max(engine.working for engine in [*engines, collection.reranker.engine])


def _reuse_states(generator: Generator, collection: Collection, opened: ExitStack) -> None:
    """Gives a generator that can extract KV states a knowledge tree, which keeps them in memory and on disk."""
    if not isinstance(generator, LlamaGenerator) or generator.states is None:
        return
    budget, trace = collection.budget, collection.trace
    directory = collection.config.scratch_path / _STATES
    fingerprint = generator.states.fingerprint
    store = KnowledgeStore(directory, fingerprint, _STATES_DISK, trace=trace)
    digest = blake2b(fingerprint.encode(), digest_size=8).hexdigest()
    costs = LearnedCosts(fingerprint, collection.config.scratch_path / f"prefill-costs-{digest}.json")
    tree = KnowledgeTree(
        generator.states, budget, host_limit=int(budget.limit * _STATES_SHARE), store=store, costs=costs, trace=trace
    )
    opened.callback(costs.save)
    opened.callback(tree.close)
    generator.tree = tree
