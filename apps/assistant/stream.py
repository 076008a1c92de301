"""`AnswerStream`: an answer while it is being written."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from types import TracebackType

from edge.apps.assistant import replies
from edge.apps.assistant.answer import NOT_FOUND, Answer, measured
from edge.apps.assistant.base import Cancelled, NotInDocuments
from edge.apps.assistant.steps import Steps
from edge.errors import EdgeError, InputError
from edge.resident import ResidentWatch
from edge.runtimes.generation.llama_cpp import LlamaGenerator

Texts = Generator[str, None, None]


class Turns:
    """Lets one answer be written at a time: other threads wait, the same thread is told."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._owner: int | None = None
        self._running: weakref.ref[AnswerStream] | None = None
        self._ended = False

    def take(self, stream: weakref.ref[AnswerStream], cancel: threading.Event) -> bool:
        """Waits for the answer that is being written; the next one is this stream's.

        Args:
            cancel: set, with `wake` after it, it ends the waiting.

        Returns:
            Whether it has become this stream's turn; not if it was cancelled.

        Raises:
            InputError: this thread is writing it, and would wait for itself; or there are no more turns.
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
        """Lets those who wait see that they were cancelled."""
        with self._changed:
            self._changed.notify_all()

    def give(self) -> None:
        """Lets the next one begin."""
        with self._changed:
            self._owner = self._running = None
            self._changed.notify_all()

    def end(self) -> None:
        """Ends the answer that is being written, in whichever thread, and lets no other begin. Twice is harmless."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
            stream = self._running() if self._running is not None else None
        if stream is not None:
            stream.close()
        with self._changed:  # a stream that nobody holds any more ends by itself, where it was let go
            self._changed.wait_for(lambda: self._owner is None)


@dataclass(slots=True)
class Writing:
    """What becomes of one answer: what the code that writes it and the stream that shows it share.

    Attributes:
        question: what is being answered, as it stands alone.
        answer: the answer, when it has ended.
    """

    question: str = ""
    answer: Answer | None = None


class AnswerStream:
    """Iterates over an answer's text as it is written; afterwards `answer` has it whole. A context manager.

    Ended early (`cancel`, `close`, an interrupt, or because nobody holds it any more), the answer is what was written
    until then.
    """

    def __init__(
        self, write: Callable[[Writing], Texts], steps: Steps, turns: Turns, done: Callable[[Answer], None]
    ) -> None:
        """Starts nothing: asking for the first text does.

        Args:
            write: writes the text; sets `question`.
            done: called with the finished answer, unless it met an error.
        """
        self._steps = steps
        self._turns = turns
        self._writing = Writing()
        self._reading = threading.RLock()
        # What runs must not refer to this stream: in a cycle with it, a stream that was left by `break` would end only
        # when the garbage collector comes, and nobody else could ask until then.
        self._texts = _run(self._writing, write, steps, turns, weakref.ref(self), done)

    @property
    def answer(self) -> Answer:
        """The finished answer; what is left of the text is read first.

        Raises:
            InputError: it was closed before it began.
        """
        for _ in self:
            pass
        if self._writing.answer is None:
            raise InputError("there is no answer: it was closed before its first text was asked for")
        return self._writing.answer

    def cancel(self) -> None:
        """Ends the answer before its next token, or while it waits for its turn. May be called from another thread or a
        signal handler."""
        self._steps.cancel.set()
        self._turns.wake()

    def close(self) -> None:
        """Ends the answer where it is; if another thread is reading it, before its next token."""
        self.cancel()
        with self._reading:
            self._texts.close()

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        with self._reading:
            return next(self._texts)

    def __enter__(self) -> AnswerStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


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
        # Without a turn it is cancelled, and its first step says so before the generator is asked for anything.
        yield from _written(writing, write(writing), steps, done)
    finally:
        if taken:
            turns.give()


def _written(writing: Writing, texts: Texts, steps: Steps, done: Callable[[Answer], None]) -> Texts:
    started = time.perf_counter()
    before = steps.trace.snapshot()
    shown: list[str] = []
    ttft: float | None = None
    found, ended, failed = True, False, False
    watch = ResidentWatch()
    try:
        with closing(texts):  # before the figures are read: an answer left early ends its generation here
            for text in texts:
                if not shown and not (text := text.lstrip()):
                    continue
                ttft = ttft or time.perf_counter() - started
                shown.append(text)
                yield text
        if not shown:  # not a word: a model that has nothing to say, or only marks of passages that there are not
            raise NotInDocuments
        ended = True
        # A refusal that begins like an answer, "I am sorry, ...", has been shown; it has no source all the same.
        found = bool(steps.citations.of("")) or not replies.refused("".join(shown))
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
        stats = replace(
            measured(before, steps.trace.snapshot()),
            pipeline=steps.pipeline,
            generator=steps.generator.name,
            question=writing.question,
            seconds=time.perf_counter() - started,
            ttft_s=ttft,
            best_relevance=max((r.best for r in steps.rounds if r.best is not None), default=None),
            min_relevance=steps.needed,
            peak_resident=watch.high_water,
            limit=steps.library.budget.limit,
            placement=_placement(steps),
            interrupted=not ended,
        )
        text = "".join(shown).rstrip()
        citations = steps.citations.of(text, steps.given) if found else ()
        writing.answer = Answer(text, citations, stats, found, tuple(steps.rounds), steps.unsupported if found else ())
        if not failed:
            done(writing.answer)


def _placement(steps: Steps) -> str:
    return steps.generator.memory.placement if isinstance(steps.generator, LlamaGenerator) else ""
