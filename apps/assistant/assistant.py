"""`Assistant`: answers questions from collections, with citations, within one memory limit. `AnswerStream`: an answer
while it is being written."""

from __future__ import annotations

import math
import os
import threading
import time
import weakref
from collections import abc
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace

from edge.apps.assistant import prompts
from edge.apps.assistant.answer import NOT_FOUND, Answer, Cancelled, NotInDocuments, measured
from edge.apps.assistant.generator import QuotingGenerator, limit_named, open_llm, picks_sentences, retrieval_nbytes
from edge.apps.assistant.pipelines import PIPELINES
from edge.apps.assistant.question import check_question, content_words, continued, courtesy
from edge.apps.assistant.reading import PassageReader
from edge.apps.assistant.retrieval import CollectionLibrary
from edge.apps.assistant.steps import Steps
from edge.apps.collection.collection import Collection, Together
from edge.apps.store.lexical import respelled
from edge.apps.verbs.requests import AskOptions
from edge.config import Config
from edge.errors import ArgumentError, CapabilityError, EdgeError, InputError
from edge.public_calls import checked_arguments
from edge.resident import Closing, ResidentWatch
from edge.runtimes.generation.base import Generator, Message, Sampling
from edge.runtimes.generation.llama_cpp import LlamaGenerator
from edge.scheduling.predictor import TimePredictor
from edge.trace import Trace

Texts = abc.Generator[str, None, None]
Running = Callable[[], "AnswerStream | None"]


class Turns:
    """A lock that lets a number of answers be written at a time. Other threads wait; a thread that would wait for
    itself gets an error."""

    def __init__(self, most: float = 1) -> None:
        self._most = most
        self._changed = threading.Condition()
        self._running: dict[Running, int] = {}
        """The streams whose turn it is, with the threads that began them."""
        self._ended = False

    def take(self, stream: Running, cancel: threading.Event) -> bool:
        """Waits for a turn of a stream, and takes it. False if `cancel` was set, and `wake` called. `InputError` after
        `end`, or if this thread is itself writing an answer, and would wait for itself."""
        with self._changed:
            if len(self._running) >= self._most and threading.get_ident() in self._running.values():
                raise InputError("an answer is still being written here: read it to its end or close it first")
            self._changed.wait_for(lambda: len(self._running) < self._most or self._ended or cancel.is_set())
            if self._ended:
                raise InputError("the assistant has been closed")
            if cancel.is_set():
                return False
            self._running[stream] = threading.get_ident()
            return True

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def give(self, stream: Running) -> None:
        with self._changed:
            self._running.pop(stream, None)
            self._changed.notify_all()

    def end(self) -> None:
        """Ends the answers that are being written in any thread, and lets no other begin. Harmless when called
        twice."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
            streams = [running() for running in self._running]
        for stream in streams:
            if stream is not None:
                stream.cancel()
        for stream in streams:
            if stream is not None:
                stream.close()
        with self._changed:  # a stream without references ends by itself, in the thread that dropped it
            self._changed.wait_for(lambda: not self._running)


@dataclass(slots=True)
class Writing:
    """The state of an answer, shared by the pipeline that writes it and the stream that shows it. `answer` is set at
    its end."""

    question: str = ""
    spelled: dict[str, str] = field(default_factory=dict)
    answer: Answer | None = None


class AnswerStream(Closing):
    """Iterates over an answer's text while it is written. Afterwards `answer` holds the whole. A context manager.

    A stream may end early: by `cancel`, `close` or an interrupt, or because no reference to it is left. The answer is
    then the text written so far.
    """

    def __init__(
        self, write: Callable[[Writing], Texts], steps: Steps, turns: Turns, done: Callable[[Answer], None]
    ) -> None:
        """The writing starts when the first text is asked for. `write` sets `Writing.question`; `done` gets the answer,
        unless an error ended it."""
        self._steps = steps
        self._turns = turns
        self._writing = Writing()
        self._reading = threading.RLock()
        # The generator must not refer to this stream. In a reference cycle, a stream that was left by `break` would
        # end only when the garbage collector runs, and no other question could be answered until then.
        self._texts = _run(self._writing, write, steps, turns, weakref.ref(self), done)

    @property
    def answer(self) -> Answer:
        """The finished answer. The rest of the text is read first. `InputError` if it was closed before its first
        text."""
        for _ in self:
            pass
        if self._writing.answer is None:
            raise InputError("there is no answer: it was closed before its first text was asked for")
        return self._writing.answer

    def cancel(self) -> None:
        """Ends the answer before its next token, or while it waits for its turn. It may be called from another thread
        or a signal handler."""
        self._steps.cancel.set()
        self._turns.wake()

    def close(self) -> None:
        """Ends the answer now, or before its next token if another thread is reading it."""
        self.cancel()
        with self._reading:
            self._texts.close()

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        with self._reading:
            return next(self._texts)


def _run(
    writing: Writing,
    write: Callable[[Writing], Texts],
    steps: Steps,
    turns: Turns,
    stream: weakref.ref[AnswerStream],
    done: Callable[[Answer], None],
) -> Texts:
    taken = turns.take(stream, steps.cancel)
    try:
        # Without a turn the answer was cancelled, and its first step raises `Cancelled` before it uses the generator.
        yield from _written(writing, write(writing), steps, done)
    finally:
        if taken:
            turns.give(stream)


def _written(writing: Writing, texts: Texts, steps: Steps, done: Callable[[Answer], None]) -> Texts:
    started = time.perf_counter()
    trace, generator = steps.library.trace, steps.generator
    before = trace.snapshot()
    shown: list[str] = []
    ttft: float | None = None
    found, ended, failed = True, False, False
    watch = ResidentWatch()
    try:
        with closing(texts):  # an answer left early ends its generation here, before the figures are read
            for text in texts:
                if not shown and not (text := text.lstrip()):
                    continue
                ttft = ttft or time.perf_counter() - started
                shown.append(text)
                yield text
        if not shown:  # the reply was empty, or held only marks of passages that do not exist
            raise NotInDocuments
        ended = True
        # A refusal that begins like an answer, "I am sorry, ...", has been shown. It still counts as not found.
        found = bool(steps.showing.citations.of("")) or not prompts.is_refusal("".join(shown))
    except NotInDocuments:
        ended = True
        if not shown:
            found = False
            shown.append(NOT_FOUND)
            yield NOT_FOUND
    except Cancelled:
        pass
    except EdgeError:
        failed = True
        raise
    finally:
        watch.close()
        steps.close()
        counted = measured(trace.since(before) | steps.trace.snapshot())
        stats = replace(
            counted,
            pipeline=steps.pipeline,
            generator=generator.name,
            question=writing.question,
            spelled=writing.spelled,
            seconds=time.perf_counter() - started,
            ttft_s=ttft,
            best_relevance=max((r.best for r in steps.rounds if r.best is not None), default=None),
            min_relevance=steps.needed,
            peak_resident=watch.high_water,
            limit=steps.library.budget.limit,
            placement=generator.memory.placement if isinstance(generator, LlamaGenerator) else "",
            interrupted=not ended,
            cut=ended and counted.generations > 0 and steps.cut,
        )
        text = "".join(shown).rstrip()
        citations = steps.showing.citations.of(text, steps.given) if found else ()
        writing.answer = Answer(
            text,
            citations,
            stats,
            found,
            tuple(steps.rounds),
            steps.showing.unsupported if found else (),
            uncertain=found and steps.probability is not None and steps.probability < steps.certain,
            probability=steps.probability,
            span=steps.span if found else "",
        )
        if not failed:
            done(writing.answer)


_REMEMBERED = 3
"""Number of turns shown to the generator. Follow-up questions seldom refer to older ones."""

_REMEMBERED_CHARS = 400


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of a conversation: `asked` by the user, and the `question` as it is understood without the
    conversation."""

    asked: str
    question: str
    answer: Answer


def recent(turns: Sequence[Turn]) -> list[tuple[str, str]]:
    return [(turn.question, turn.answer.text[:_REMEMBERED_CHARS]) for turn in turns[-_REMEMBERED:]]


class Conversation:
    """A chat, in which questions may refer to earlier turns."""

    def __init__(self, ask: Callable[[str, Sequence[Turn], Callable[[Turn], None]], AnswerStream]) -> None:
        self.turns: list[Turn] = []
        self._ask = ask

    def stream(self, question: str) -> AnswerStream:
        """Streams the answer to a question. Its text, even if cut short, becomes a turn of the conversation."""
        return self._ask(question, tuple(self.turns), self.turns.append)

    def ask(self, question: str) -> Answer:
        """The whole answer."""
        return self.stream(question).answer


_TIMES = "generation-times.json"


@checked_arguments
class Assistant(Closing):
    """Answers questions from a collection. Any number of threads may ask: a language model in this process writes
    several answers at a time (`Config.answers`), any other generator one, and the others wait. A context manager.

    Examples:
        >>> with Assistant("notes.edge", llm="model.gguf", memory="2GB") as assistant:
        ...     answer = assistant.ask("when does the river flood")
        ...     print(answer.text, *(citation.place for citation in answer.citations), sep="\\n")
    """

    def __init__(
        self,
        collection: Collection | Together | str | os.PathLike[str],
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
            collection: the collection's directory, or an open collection, or several. Open ones keep their budget and
                trace, and the caller closes them.
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
        if pipeline not in PIPELINES:
            raise InputError(f"there is no pipeline {pipeline!r}; there are {', '.join(PIPELINES)}")
        self.options = options or AskOptions()
        self.pipeline = pipeline
        self._write = PIPELINES[pipeline]
        if not (llm is None or isinstance(llm, str | os.PathLike) or hasattr(llm, "follows_instructions")):
            raise ArgumentError(f"Assistant: llm must be a name, a path or a generator, not {type(llm).__name__}")
        with ExitStack() as opened:
            if isinstance(collection, Collection | Together):
                self.collection: Collection | Together = collection
            else:
                made = Collection(collection, memory=memory, config=config, trace=trace, read_only=True)
                self.collection = opened.enter_context(made)
            together = self.collection if isinstance(self.collection, Together) else Together({"": self.collection})
            first = together.first
            llm = first.config.llm if llm is None or llm == "" else llm
            opened.enter_context(limit_named(first, self.options, llm))
            first.check_room("answering", rerank=self.options.rerank, candidates=2 * self.options.pool)
            reader = PassageReader(first)
            working = 0
            if isinstance(llm, str | os.PathLike):
                if picks_sentences(llm):
                    llm = QuotingGenerator(reader)
                else:
                    working = retrieval_nbytes(first)
                    llm = open_llm(
                        llm, first.budget, first.config, beside=working, kv_cache=kv_cache, trace=first.trace
                    )
                    opened.callback(llm.close)
            elif llm.follows_instructions:
                working = retrieval_nbytes(first)
            self.generator = llm
            if pipeline != "plain" and not llm.follows_instructions:
                raise CapabilityError(
                    f"the pipeline {pipeline} asks the generator to write more than the answer, and {llm.name} only "
                    f"picks sentences: use the pipeline plain, or a language model (--llm FILE.gguf)"
                )
            self._opened = opened.pop_all()
        self._predictor = TimePredictor(first.path / _TIMES)
        self._library = CollectionLibrary(together, working=working, reader=reader)
        self._turns = Turns(math.inf if isinstance(llm, LlamaGenerator) else 1)

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
        """Answers a question piece by piece. The `answer` of the returned stream is the whole, with its citations. The
        errors of `ask` are raised when the pieces are read."""
        return self._stream(question, (), lambda turn: None, options)

    def chat(self, *, options: AskOptions | None = None) -> Conversation:
        """A conversation, in which questions may refer to earlier questions and answers."""
        return Conversation(lambda question, turns, keep: self._stream(question, turns, keep, options))

    def write(self, messages: Sequence[Message], sampling: Sampling, cancel: threading.Event) -> Iterator[str]:
        """The generator's reply to messages, without any document, piece by piece. `CapabilityError` if it only picks
        sentences."""
        if not self.generator.follows_instructions:
            raise CapabilityError(
                f"{self.generator.name} only picks sentences of documents: a language model is needed (--llm FILE.gguf)"
            )

        def running() -> None:
            """This is no stream of an answer."""

        if not self._turns.take(running, cancel):
            return
        try:
            for piece in self.generator.stream(messages, sampling, cancel=cancel):
                yield piece.text
        finally:
            self._turns.give(running)

    def close(self) -> None:
        """Closes everything that this assistant opened, and saves the learned step times. An answer that was not read
        to its end is ended first, because closing the generator would wait for it."""
        self._turns.end()
        self._predictor.save()
        self._opened.close()

    def _stream(
        self, asked: str, turns: Sequence[Turn], keep: Callable[[Turn], None], options: AskOptions | None
    ) -> AnswerStream:
        options = options or self.options
        check_question(asked, judged=options.rerank)
        steps = Steps(
            self._library, self.generator, options,
            pipeline=self.pipeline, predictor=self._predictor,
        )  # fmt: skip
        reply = courtesy(asked)

        def write(writing: Writing) -> Texts:
            writing.question = asked.strip()
            if reply:
                yield reply
                return
            looked_up = standalone(asked.strip(), turns, steps)
            writing.spelled = self._library.spelled(looked_up)
            writing.question = respelled(looked_up, writing.spelled)
            whole = steps.writes or not content_words(asked)  # a question without a word of content says too little
            question = writing.question if whole else respelled(asked.strip(), writing.spelled)
            steps.looked_up[question] = writing.question
            yield from self._write(question, steps)

        def done(answer: Answer) -> None:
            if not reply:  # a follow-up refers to the question before it
                keep(Turn(asked, answer.stats.question, answer))

        return AnswerStream(write, steps, self._turns, done)


_ALONE = 0.7
"""A question is looked up alone if the best passage is at least so many times as relevant to it as to both questions
together. For 271 follow-ups of public conversations (MT-RAG) and 84 questions after another subject the first result is
right in 89 and 89 %; by their pronouns and beginnings, 86 and 81 %."""


def standalone(question: str, turns: Sequence[Turn], steps: Steps) -> str:
    """What a question is looked up by: as the language model writes it anew; or else alone, or as the continuation of
    the question before it."""
    if not turns:
        return question
    if not steps.writes:
        both = continued(question, turns[-1].question)
        alone = content_words(question) and steps.relevance(question) > _ALONE * steps.relevance(both)
        return question if alone else both
    ahead = [f"{turns[-1].question} {question}"]
    return prompts.read_line(steps.write(prompts.condensed(recent(turns), question), ahead=ahead)) or question
