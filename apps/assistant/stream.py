"""`AnswerStream`: an answer while it is being written."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, replace

from edge.apps.assistant import prompts
from edge.apps.assistant.answer import NOT_FOUND, Answer, measured
from edge.apps.assistant.base import Cancelled, NotInDocuments
from edge.apps.assistant.evidence import CERTAIN
from edge.apps.assistant.steps import Steps
from edge.errors import EdgeError, InputError
from edge.resident import Closing, ResidentWatch
from edge.runtimes.generation.llama_cpp import LlamaGenerator

Texts = Generator[str, None, None]


class Turns:
    """A lock that lets one answer be written at a time. Other threads wait; the same thread gets an error."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._owner: int | None = None
        self._running: Callable[[], AnswerStream | None] | None = None
        self._ended = False

    def take(self, stream: Callable[[], AnswerStream | None], cancel: threading.Event) -> bool:
        """Waits until no answer is being written, and takes the turn for a stream.

        Args:
            stream: gives the stream, if it still exists; `end` closes it.
            cancel: once set, and after a call of `wake`, it ends the waiting.

        Returns:
            True if the turn was taken; False if the stream was cancelled.

        Raises:
            InputError: this thread is itself writing an answer, and would wait for itself; or `end` was called.
        """
        with self._changed:
            if self._owner == threading.get_ident():
                raise InputError("an answer is still being written here: read it to its end or close it first")
            self._changed.wait_for(lambda: self._owner is None or self._ended or cancel.is_set())
            if self._ended:
                raise InputError("the assistant has been closed")
            if cancel.is_set():
                return False
            self._owner, self._running = threading.get_ident(), stream
            return True

    def wake(self) -> None:
        """Wakes the waiting threads, so that cancelled ones stop waiting."""
        with self._changed:
            self._changed.notify_all()

    def give(self) -> None:
        """Gives the turn back, so that the next answer can begin."""
        with self._changed:
            self._owner = self._running = None
            self._changed.notify_all()

    def end(self) -> None:
        """Ends the answer that is being written in any thread, and lets no other begin. Calling it twice is
        harmless."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
            stream = self._running() if self._running is not None else None
        if stream is not None:
            stream.close()
        with self._changed:  # a stream without references ends by itself, in the thread that dropped it
            self._changed.wait_for(lambda: self._owner is None)


@dataclass(slots=True)
class Writing:
    """The state of one answer, shared by the pipeline that writes it and the stream that shows it.

    Attributes:
        question: the question in a form that is understood without the conversation.
        answer: the answer, once it has ended.
    """

    question: str = ""
    answer: Answer | None = None


class AnswerStream(Closing):
    """Iterates over an answer's text while it is written. Afterwards `answer` holds the whole. A context manager.

    A stream may end early: by `cancel`, `close` or an interrupt, or because no reference to it is left. The answer is
    then the text written so far.
    """

    def __init__(
        self, write: Callable[[Writing], Texts], steps: Steps, turns: Turns, done: Callable[[Answer], None]
    ) -> None:
        """Creates a stream. The writing starts when the first piece of text is requested.

        Args:
            write: writes the text and sets `Writing.question`.
            done: called with the finished answer, unless an error ended it.
        """
        self._steps = steps
        self._turns = turns
        self._writing = Writing()
        self._reading = threading.RLock()
        # The generator must not refer to this stream. In a reference cycle, a stream that was left by `break` would
        # end only when the garbage collector runs, and no other question could be answered until then.
        self._texts = _run(self._writing, write, steps, turns, weakref.ref(self), done)

    @property
    def answer(self) -> Answer:
        """The finished answer. The rest of the text is read first.

        Raises:
            InputError: the stream was closed before its first text was requested.
        """
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
            turns.give()


def _written(writing: Writing, texts: Texts, steps: Steps, done: Callable[[Answer], None]) -> Texts:
    started = time.perf_counter()
    before, generator = steps.trace.snapshot(), steps.generator
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
        counted = measured(before, steps.trace.snapshot())
        stats = replace(
            counted,
            pipeline=steps.pipeline,
            generator=generator.name,
            question=writing.question,
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
            uncertain=found and steps.probability is not None and steps.probability < CERTAIN,
        )
        if not failed:
            done(writing.answer)
