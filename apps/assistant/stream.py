"""`AnswerStream`: an answer while it is being written."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from types import TracebackType

from edge.apps.assistant.answer import NOT_FOUND, Answer, measured
from edge.apps.assistant.base import Cancelled, NotInDocuments
from edge.apps.assistant.steps import Steps
from edge.errors import EdgeError, InputError
from edge.resident import ResidentWatch
from edge.runtimes.generation.llama_cpp import LlamaGenerator


class Turns:
    """Lets one answer be written at a time: other threads wait, the same thread is told."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner: int | None = None

    def take(self) -> None:
        """Waits for the answer that is being written.

        Raises:
            InputError: this thread is writing it, and would wait for itself.
        """
        if self._owner == threading.get_ident():
            raise InputError("an answer is still being written here: read it to its end or close it first")
        self._lock.acquire()
        self._owner = threading.get_ident()

    def give(self) -> None:
        """Lets the next one begin."""
        self._owner = None
        self._lock.release()


class AnswerStream:
    """Iterates over an answer's text as it is written; afterwards `answer` has it whole. A context manager.

    Ended early (`cancel`, `close`, an interrupt), the answer is what was written until then.
    """

    def __init__(
        self, write: Callable[[AnswerStream], Iterator[str]], steps: Steps, turns: Turns, done: Callable[[Answer], None]
    ) -> None:
        """Starts nothing: asking for the first text does.

        Args:
            write: writes the text; sets `question` where it is not what was asked.
            done: called with the finished answer, unless it met an error.
        """
        self.question = ""
        self._steps = steps
        self._done = done
        self._answer: Answer | None = None
        self._texts = self._run(write, turns)

    @property
    def answer(self) -> Answer:
        """The finished answer; what is left of the text is read first.

        Raises:
            InputError: it was closed before it began.
        """
        for _ in self:
            pass
        if self._answer is None:
            raise InputError("there is no answer: it was closed before its first text was asked for")
        return self._answer

    def cancel(self) -> None:
        """Ends the answer before its next token. May be called from another thread or a signal handler."""
        self._steps.cancel.set()

    def close(self) -> None:
        """Ends the answer where it is."""
        self.cancel()
        self._texts.close()

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        return next(self._texts)

    def __enter__(self) -> AnswerStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, write: Callable[[AnswerStream], Iterator[str]], turns: Turns) -> Generator[str, None, None]:
        turns.take()
        started = time.perf_counter()
        before = self._steps.trace.snapshot()
        texts: list[str] = []
        ttft: float | None = None
        found, ended, failed = True, False, False
        watch = ResidentWatch()
        try:
            for text in write(self):
                if not texts and not (text := text.lstrip()):
                    continue
                ttft = ttft or time.perf_counter() - started
                texts.append(text)
                yield text
            ended = True
        except NotInDocuments:
            ended = True
            if not texts:
                found = False
                texts.append(NOT_FOUND)
                yield NOT_FOUND
        except Cancelled:
            pass
        except EdgeError:
            failed = True
            raise
        finally:
            watch.close()
            self._steps.close()
            turns.give()
            stats = replace(
                measured(before, self._steps.trace.snapshot()),
                pipeline=self._steps.pipeline,
                generator=self._steps.generator.name,
                question=self.question,
                seconds=time.perf_counter() - started,
                ttft_s=ttft,
                best_relevance=max((r.best for r in self._steps.rounds if r.best is not None), default=None),
                floor=self._steps.options.floor if self._steps.options.rerank else None,
                peak_resident=watch.high_water,
                limit=self._steps.library.budget.limit,
                placement=self._placement(),
                interrupted=not ended,
            )
            text = "".join(texts).rstrip()
            citations = self._steps.citations.of(text, self._steps.given) if found else ()
            self._answer = Answer(text, citations, stats, found, tuple(self._steps.rounds))
            if not failed:
                self._done(self._answer)

    def _placement(self) -> str:
        generator = self._steps.generator
        return generator.memory.placement if isinstance(generator, LlamaGenerator) else ""
