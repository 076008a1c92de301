"""`Assistant`: answers questions from a collection, with citations, within one memory limit."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from edge.apps.assistant import prompts
from edge.apps.assistant.answer import Answer
from edge.apps.assistant.evidence import UnitJudge
from edge.apps.assistant.generator import open_llm
from edge.apps.assistant.library import CollectionLibrary
from edge.apps.assistant.pipelines import PIPELINES
from edge.apps.assistant.question import check_question, courtesy, new_topic, refers_back
from edge.apps.assistant.steps import Steps
from edge.apps.assistant.stream import AnswerStream, Texts, Turns, Writing
from edge.apps.collection.collection import Collection
from edge.apps.requests import AskOptions
from edge.config import Config
from edge.errors import CapabilityError, InputError
from edge.public_calls import checked_arguments
from edge.resident import Closing
from edge.runtimes.generation.base import Generator, Message, Sampling
from edge.scheduling.predictor import TimePredictor
from edge.trace import Trace

_REMEMBERED = 3
"""Number of turns shown to the generator. Follow-up questions seldom refer to older ones."""

_REMEMBERED_CHARS = 400


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of a conversation.

    Attributes:
        asked: the question as the user put it.
        question: the question in a form that is understood without the conversation.
        answer: its answer.
    """

    asked: str
    question: str
    answer: Answer


def recent(turns: Sequence[Turn]) -> list[tuple[str, str]]:
    """The last turns as (question, answer) pairs; long answers are cut."""
    return [(turn.question, turn.answer.text[:_REMEMBERED_CHARS]) for turn in turns[-_REMEMBERED:]]


def standalone(question: str, turns: Sequence[Turn]) -> str:
    """Rewrites a follow-up question, without a language model, so that it can be searched for without the
    conversation.

    A question that refers back is appended to the question before it. A question that only names a new topic replaces
    the question before it, and the title of the last answer's first citation is appended, so that the search stays
    near the same document.
    """
    if not turns:
        return question
    last = turns[-1]
    if topic := new_topic(question):
        titles = dict.fromkeys(citation.title or citation.path for citation in last.answer.citations[:1])
        return " ".join([f"{topic}?", *titles]) if titles else f"{last.question.rstrip()} {question}"
    return f"{last.question.rstrip()} {question}" if refers_back(question) else question


class Conversation:
    """A chat, in which questions may refer to earlier turns."""

    def __init__(self, ask: Callable[[str, Sequence[Turn], Callable[[Turn], None]], AnswerStream]) -> None:
        """Starts an empty conversation. `ask` is the assistant's function that streams an answer."""
        self.turns: list[Turn] = []
        self._ask = ask

    def stream(self, question: str) -> AnswerStream:
        """Streams the answer to a question. Once the stream has ended, its text, even if cut short, is a turn of the
        conversation."""
        return self._ask(question, tuple(self.turns), self.turns.append)

    def ask(self, question: str) -> Answer:
        """The whole answer."""
        return self.stream(question).answer


_TIMES = "generation-times.json"


@checked_arguments
class Assistant(Closing):
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
        if pipeline not in PIPELINES:
            raise InputError(f"there is no pipeline {pipeline!r}; there are {', '.join(PIPELINES)}")
        self.options = options or AskOptions()
        self.pipeline = pipeline
        self._write = PIPELINES[pipeline]
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
        """Answers a question piece by piece. The `answer` of the returned stream is the whole, with its citations. The
        errors of `ask` are raised when the pieces are read."""
        return self._stream(question, (), lambda turn: None, options)

    def chat(self, *, options: AskOptions | None = None) -> Conversation:
        """A conversation, in which questions may refer to earlier questions and answers."""
        return Conversation(lambda question, turns, keep: self._stream(question, turns, keep, options))

    def write(self, messages: Sequence[Message], sampling: Sampling, cancel: threading.Event) -> Iterator[str]:
        """Yields the generator's reply to messages, without any document, piece by piece. Raises as `Generator.stream`
        does, too.

        Args:
            cancel: once set, it ends the writing before the next token.

        Raises:
            CapabilityError: the generator only picks sentences of documents.
            InputError: this thread is still writing another answer.
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
            writing.question = _standalone(asked.strip(), turns, steps)
            yield from self._write(writing.question, steps)

        def done(answer: Answer) -> None:
            if not reply:  # a follow-up refers to the question before it
                keep(Turn(asked, answer.stats.question, answer))

        return AnswerStream(write, steps, self._turns, done)


def _standalone(question: str, turns: Sequence[Turn], steps: Steps) -> str:
    """A follow-up question, rewritten so that it can be understood and searched for without the conversation."""
    if not turns or not steps.generator.follows_instructions:
        return standalone(question, turns)
    ahead = [f"{turns[-1].question} {question}"]
    return prompts.read_line(steps.write(prompts.condensed(recent(turns), question), ahead=ahead)) or question
