"""`GenerationEngine`: many answers at once. One thread owns the model's contexts and works step by step.

Each step writes one token of every answer; between slices of a prompt the others go on. Requests wait in the order of
their urgency and deadlines, and then of RAGCache (section 5.2): the largest share of cached states first. If a more
urgent one finds no room, the answer that loses least is set aside with its states."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from edge.budget import Lease, MemoryBudget
from edge.errors import DeadlinePassed, EdgeError, InputError, Withdrawn
from edge.kv_cache.backend import State, StateSegment
from edge.kv_cache.prefix_tree import PreparedPath
from edge.kv_cache.tree import KnowledgeTree
from edge.runtimes.generation.base import Finish, GenerationStats, Piece, Sampling, Stopping
from edge.runtimes.generation.prompt import Prompt
from edge.runtimes.generation.seat import CellPool, HeldQuestions, Seat, TokenChooser, Vocabulary
from edge.scheduling.waiting_line import Urgency, current_urgency, foremost
from edge.trace import Trace

WINDOW = 32
"""Number of later requests that may go before an earlier one (RAGCache's window)."""

ALONE, IN_COMPANY, AHEAD = 256, 128, 64
"""Tokens of a prompt between two steps: while nobody else is there, while others write or wait, and while nobody has
asked for it."""

_UNREAD = 8
"""Prompts whose best documents are read again when there is time: the latest ones, because their tokens take memory."""

_KEPT_S = 10.0
"""Seconds after which a sequence without work gives its memory back. The first one stays."""


@dataclass(eq=False, slots=True)
class Request:
    """One answer that is wanted. `first`, `ended`: times, 0 before. `passed`: later requests that went before it.
    `aside`: the answer's part so far, if it was set aside. `new` tokens were written, and `shown` of them read; `left`:
    the reader has gone."""

    prompt: Prompt
    sampling: Sampling
    longest: int
    cancelled: Callable[[], bool]
    urgency: Urgency = field(default_factory=current_urgency)
    first: float = 0.0
    ended: float = 0.0
    finish: Finish = "cancelled"
    cached: int = 0
    restored: int = 0
    restore_s: float = 0.0
    passed: int = 0
    new: int = 0
    shown: int = 0
    left: bool = False
    aside: _Aside | None = None
    _queue: queue.SimpleQueue[tuple[list[Piece], int] | Exception | None] = field(default_factory=queue.SimpleQueue)

    @property
    def stopped(self) -> bool:
        return self.left or self.cancelled()

    def read(self) -> Iterator[tuple[list[Piece], int]]:
        """The answer's pieces as they come, with the number of tokens so far. Raises the error that ended it."""
        while (found := self._queue.get()) is not None:
            if isinstance(found, Exception):
                raise found
            yield found

    def stats(self, called: float) -> GenerationStats:
        """The figures of the part that was read; `called` is the time of the call."""
        complete = self.ended and self.shown == self.new
        ended = self.ended if complete else time.perf_counter()
        return GenerationStats(
            prompt_tokens=self.prompt.tokens,
            cached_tokens=self.cached,
            new_tokens=self.shown,
            ttft_s=(self.first or ended) - called,
            seconds=ended - called,
            dropped_documents=self.prompt.dropped,
            finish=self.finish if complete else "cancelled",
            restored_tokens=self.restored,
            restore_s=self.restore_s,
        )

    def put(self, pieces: list[Piece]) -> None:
        self._queue.put((pieces, self.new))

    def end(self, error: Exception | None = None) -> None:
        self.ended = time.perf_counter()
        self._queue.put(error)


@dataclass(frozen=True, slots=True)
class _Aside:
    """An answer that was set aside, with the states behind its path, at positions start ... end-1, and their lease."""

    writing: _Writing
    state: State
    start: int
    end: int
    lease: Lease

    def drop(self) -> None:
        self.writing.chooser.close()
        self.lease.release()


@dataclass(eq=False, slots=True)
class _Writing:
    request: Request
    seat: Seat
    chooser: TokenChooser
    stopping: Stopping
    path: PreparedPath | None = None
    waiting: Sequence[int] = ()


class GenerationEngine:
    """Writes up to `most` answers at once; further requests wait. Thread-safe."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        most: int,
        first: Seat,
        another: Callable[[], Seat | None],
        chooser: Callable[[Sampling], TokenChooser],
        tree: Callable[[], KnowledgeTree | None],
        budget: MemoryBudget,
        pool: CellPool | None = None,
        trace: Trace,
    ) -> None:
        """`first` is the sequence that always exists, of `most`; `another` makes one more, or None without memory.
        `budget` covers states that are set aside; `pool` has the cells that all sequences share, unless each has its
        own."""
        self._vocabulary = vocabulary
        self._most = most
        self._another = another
        self._chooser = chooser
        self._tree = tree
        self._budget = budget
        self._pool = pool
        self._trace = trace
        self._first = first
        self._idle: list[Seat] = [first]
        self._seats = 1
        self._held = HeldQuestions()
        self._waiting: list[Request] = []
        self._writing: list[_Writing] = []
        self._refused = False
        self._reading = 0
        self._unread: deque[tuple[StateSegment, ...]] = deque(maxlen=_UNREAD)
        self._closed = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    @property
    def closed(self) -> bool:
        return self._closed

    def picture(self) -> dict[str, Any]:
        """The sequences: tokens in each, and how many of its answer are written, of how many (0 without one); the most
        sequences, their common cells, and the waiting requests, of which `aside` have begun."""
        writing, waiting = list(self._writing), list(self._waiting)
        at_work = [(one.seat.length, one.request.new, one.request.longest) for one in writing]
        idle = [(seat.length, 0, 0) for seat in list(self._idle)]
        return {
            "most": self._most, "cells": self._pool.cells if self._pool else None, "waiting": len(waiting),
            "aside": sum(request.aside is not None for request in waiting),
            "sequences": [dict(zip(("tokens", "written", "longest"), one, strict=True)) for one in at_work + idle],
        }  # fmt: skip

    def submit(self, request: Request) -> None:
        """Puts a request into the line. Raises InputError if the engine is closed."""
        with self._changed:
            if self._closed:
                raise InputError("the generator has been closed")
            self._waiting.append(request)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="edge-generation", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def close(self) -> None:
        """Ends all answers and frees the sequences."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        for seat in self._idle:
            seat.close()
        self._idle = []

    def _run(self) -> None:
        try:
            while not self._closed:
                self._turn()
        finally:  # without its thread, the engine takes no request
            with self._changed:
                self._closed = True
                left = [*(writing.request for writing in self._writing), *self._waiting]
            try:
                self._end_all()
            finally:
                for request in left:
                    if not request.ended:
                        request.end()

    def _turn(self) -> None:
        try:
            if self._has_work():
                if self._waiting or self._writing:
                    self._step()
                else:
                    self._read_ahead(self._unread.pop())
        except Exception as error:  # it belongs to no request, and would come again
            self._end_all(error)

    def _has_work(self) -> bool:
        with self._changed:
            while not (self._closed or self._waiting or self._writing or self._unread):
                # Sequences of a pool have no memory of their own.
                extra = [] if self._pool else [seat for seat in self._idle if seat is not self._first]
                if not self._changed.wait(_KEPT_S if extra else None):
                    self._give_up(extra)
            return not self._closed

    def _read_ahead(self, path: tuple[StateSegment, ...]) -> None:
        """Computes a document's states for other prompts while nobody waits, in the sequence that was free last."""
        tree, seat = self._tree(), self._idle[-1]
        others = sum(idle.length for idle in self._idle if idle is not seat)
        cells = sum(len(segment.tokens) for segment in path)
        if tree is None or seat.backend is None or (self._pool is not None and others + cells > self._pool.cells):
            return
        self._held.drop(seat)
        usual, seat.slice = seat.slice, AHEAD

        def interrupts(position: int) -> bool:
            return self._closed or bool(self._waiting)

        try:
            with tree.prepare(path, cancelled=interrupts, backend=seat.backend, ahead=True) as prepared:
                if not prepared.complete:
                    self._unread.append(path)
        except EdgeError:  # a request that came meanwhile must not end with it
            self._trace.count("knowledge.dropped")
        finally:
            seat.slice = usual

    def _end_all(self, error: Exception | None = None) -> None:
        for writing in list(self._writing):
            self._end(writing, error)
        for request in self._taken(lambda request: True):
            self._dismiss(request, error)

    def _step(self, left: float = float("inf"), current: Request | None = None) -> None:
        """Writes one token of every answer, and begins waiting requests with fewer than `left` tokens to compute."""
        for request in self._taken(self._useless):
            self._dismiss(request, None if request.stopped else _reason(request))
        self._write_all()
        while not self._closed and (current is None or current.passed < WINDOW):
            if (begun := self._next(left)) is None:
                break
            if current is not None:
                current.passed += 1
            self._begin(*begun)

    def _write_all(self) -> None:
        for writing in [writing for writing in self._writing if writing.request.stopped]:
            self._end(writing)
        if self._pool is None:
            for writing in list(self._writing):
                self._guarded(writing, partial(self._write, writing))
        elif self._writing:
            together = list(self._writing)
            try:
                self._pool.step([(writing.seat, writing.waiting) for writing in together])
            except EdgeError as error:
                for writing in together:
                    self._end(writing, error)
                return
            for writing in together:
                self._guarded(writing, partial(self._choose, writing))

    def _taken(self, which: Callable[[Request], bool]) -> list[Request]:
        with self._changed:
            taken = [request for request in self._waiting if which(request)]
            self._waiting = [request for request in self._waiting if request not in taken]
        return taken

    @staticmethod
    def _useless(request: Request) -> bool:
        return request.stopped or _reason(request) is not None

    def _next(self, left: float) -> tuple[Request, Seat] | None:
        """The request that begins now, and its sequence; None if it must wait."""
        with self._changed:
            waiting = list(self._waiting)
        least = max((writing.request.urgency.priority for writing in self._writing), default=0)
        if not (self._idle or self._may_grow() or any(request.urgency.priority < least for request in waiting)):
            return None
        ratios = {request: self._shares(request) for request in waiting}

        def order(request: Request) -> tuple[int, float, float]:
            cached, computed = ratios[request]
            return request.urgency.priority, request.urgency.leisure, -cached / computed

        chosen = foremost(waiting, WINDOW, order)
        # Two prompts that are read at once into a pool might both compute what they could share.
        if chosen is None or ratios[chosen][1] >= left or (self._pool is not None and self._reading):
            return None
        while (seat := self._seat(chosen)) is None:
            if not self._set_aside(chosen):
                return None
        with self._changed:
            for request in self._waiting[: self._waiting.index(chosen)]:
                request.passed += 1
            self._waiting.remove(chosen)
        return chosen, seat

    def _set_aside(self, urgent: Request) -> bool:
        """Sets the least urgent answer with the fewest tokens besides its path aside; returns whether there was one."""
        candidates = [
            (writing.request.urgency.priority, writing.path.end - writing.seat.length, writing, writing.path)
            for writing in self._writing
            if writing.path is not None and writing.request.new and writing.request.passed < WINDOW
        ]
        if not candidates:
            return False
        priority, _, writing, path = max(candidates, key=lambda one: one[:2])
        if priority <= urgent.urgency.priority:
            return False
        request, start, end = writing.request, path.end, writing.seat.length
        try:
            lease = self._budget.reserve("generator: set aside", (end - start + 1) * path.backend.bytes_per_token)
        except EdgeError:
            return False
        try:
            state = path.backend.extract(start, end)
            lease.resize(max(lease.nbytes, memoryview(state).nbytes))
        except EdgeError:
            lease.release()
            return False
        request.aside = _Aside(writing, state, start, end, lease)
        self._trace.count("generation.set_aside")
        self._writing.remove(writing)
        writing.path = None
        self._free(writing.seat, path)
        with self._changed:
            self._waiting.insert(0, request)
        return True

    def _dismiss(self, request: Request, error: Exception | None = None) -> None:
        if request.aside is not None:
            request.aside.drop()
        request.end(error)

    def _shares(self, request: Request) -> tuple[int, int]:
        tree, prompt = self._tree(), request.prompt
        cached = 0 if tree is None else tree.match(prompt.path).cached
        cached += self._held.best(prompt, self._idle if self._pool is None else None)[0]
        return cached, prompt.tokens - cached

    def _seat(self, request: Request) -> Seat | None:
        """The free sequence that holds most of a request's path, or another one; None if there is no room."""
        if not (self._idle or self._may_grow()) or (self._pool is not None and not self._fits(request)):
            return None
        if not self._idle:
            more = self._another()
            self._refused = more is None
            self._seats += more is not None
            return more
        best = max(self._idle, key=partial(self._common, request.prompt))
        self._idle.remove(best)
        return best

    def _may_grow(self) -> bool:
        return self._seats < self._most and not self._refused

    def _common(self, prompt: Prompt, seat: Seat) -> int:
        tree = self._tree()
        path = 0 if tree is None or seat.backend is None else tree.common(prompt.path, seat.backend)
        return path + self._held.common(seat, prompt)

    def _fits(self, chosen: Request) -> bool:
        """Whether the pool has room for a request. Sequences that have had no work for longest give up theirs."""
        pool, prompt, held = self._pool, chosen.prompt, self._held
        assert pool is not None
        # The states of an answer that was set aside come back into cells of their own.
        apart, prompts = (0, [prompt]) if chosen.aside is None else (prompt.tokens, [])
        seats = [(one.seat, one.request.prompt.tokens + one.request.longest) for one in self._writing]
        best = max(self._idle, key=partial(self._common, prompt), default=None)
        kept = [seat for seat in self._idle if seat is not best and seat.length]
        while True:
            sizes = [*seats, *((seat, seat.length) for seat in kept)]
            needed = apart + chosen.longest + held.cells(sizes, prompts)
            if needed <= pool.cells or not kept:
                return needed <= pool.cells
            self._forget(seat := kept.pop(0))
            seat.truncate(0)

    def _forget(self, seat: Seat) -> None:
        tree = self._tree()
        if tree is not None and seat.backend is not None:
            tree.part(seat.backend)
        self._held.drop(seat)

    def _begin(self, request: Request, seat: Seat) -> None:
        if request.aside is not None:
            writing = request.aside.writing
            writing.seat = seat
        else:
            stopping, question = Stopping(request.sampling.stop), request.prompt.question
            writing = _Writing(request, seat, self._chooser(request.sampling), stopping, waiting=question)
        self._reading += 1
        try:
            self._guarded(writing, lambda: self._read(writing))
        finally:
            self._reading -= 1

    def _read(self, writing: _Writing) -> None:
        request, seat, tree = writing.request, writing.seat, self._tree()
        path, question = request.prompt.path, request.prompt.question
        begun = 0 if request.aside is not None else self._held.best(request.prompt, [seat])[0]
        self._held.drop(seat)

        def between(position: int) -> bool:
            tokens = sum(len(segment.tokens) for segment in path[position:]) + len(question) - begun
            return self._between(request, seat, tokens)

        if tree is not None and seat.backend is not None:
            writing.path = held = tree.prepare(
                path, suffix=len(question), cancelled=between, backend=seat.backend, behind=begun
            )
            if request.aside is None:
                begun = self._begun(request.prompt, seat, held) if held.complete else 0
                request.cached, request.restored = held.cached_tokens + begun, held.restored_tokens
                request.restore_s = held.restore_s
        else:
            seat.truncate(0)
            for position, segment in enumerate(path):
                with self._trace.span(f"prefill {segment.id}", "generation", tokens=len(segment.tokens)):
                    seat.append(segment.tokens, cancelled=partial(between, position))
        aside, request.aside = request.aside, None
        if aside is not None:
            with aside.lease:
                if writing.path is None or not writing.path.complete or seat.backend is None:
                    self._end(writing)
                    return
                seat.backend.restore(aside.state, aside.start, aside.end)
        elif self._joins(writing, begun):
            writing.waiting = question[begun:]
        else:
            self._write(writing, lambda: between(len(path)), begun)
            if writing.path is not None:
                self._held.hold(seat, path, question)
        if not request.ended:
            self._writing.append(writing)

    def _begun(self, prompt: Prompt, seat: Seat, path: PreparedPath) -> int:
        """Number of the question's tokens that a sequence holds behind the path. In a pool it takes those of others."""
        begun = seat.length - path.end
        if self._pool is not None and seat.backend is not None:
            common, other = self._held.best(prompt)
            if common > begun and seat.backend.share(other.backend, path.end + begun, path.end + common):
                begun = common
        self._held.hold(seat, prompt.path, prompt.question[:begun])
        return begun

    def _joins(self, writing: _Writing, begun: int) -> bool:
        """Whether the rest of a question is computed in the next step of the others."""
        rows = len(writing.request.prompt.question) - begun + sum(len(one.waiting) for one in self._writing)
        return self._pool is not None and bool(self._writing) and rows <= self._pool.together

    def _between(self, request: Request, seat: Seat, left: int) -> bool:
        """Lets the others go on between two slices of a prompt; returns whether the prompt is not wanted any more."""
        if not request.stopped:
            self._step(left, request)
        if self._most > 1:
            seat.slice = IN_COMPANY if self._writing or self._waiting or self._reading > 1 else ALONE
        return request.stopped or self._closed

    def _write(self, writing: _Writing, cancelled: Callable[[], bool] | None = None, begun: int = 0) -> None:
        """Computes the waiting tokens but the first `begun`, and chooses the next one."""
        request, waiting = writing.request, writing.waiting
        asked = cancelled or (lambda: request.stopped)
        if writing.seat.append(waiting, done=begun, cancelled=asked, logits=True) < len(waiting):
            self._end(writing)
        else:
            self._choose(writing)

    def _choose(self, writing: _Writing) -> None:
        request = writing.request
        token, logprob = writing.chooser.choose(writing.seat)
        request.first = request.first or time.perf_counter()
        if self._vocabulary.ends(token):
            self._finish(writing, "stop")
            return
        request.new += 1
        pieces = list(writing.stopping.push(self._vocabulary.piece(token), token, logprob))
        if pieces:
            request.put(pieces)
        if writing.stopping.stopped or request.new == request.longest:
            self._finish(writing, "stop" if writing.stopping.stopped else "length")
        writing.waiting = (token,)

    def _finish(self, writing: _Writing, finish: Finish) -> None:
        writing.request.finish = finish
        if (tree := self._tree()) is not None:
            self._unread.extend(tree.unread(writing.request.prompt.path))
        writing.request.put(list(writing.stopping.finish()))
        self._end(writing)

    def _guarded(self, writing: _Writing, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            self._end(writing, error)

    def _end(self, writing: _Writing, error: Exception | None = None) -> None:
        if writing.request.aside is not None:
            writing.request.aside.lease.release()
        writing.request.end(error)
        writing.chooser.close()
        if writing in self._writing:
            self._writing.remove(writing)
        self._free(writing.seat, writing.path)

    def _free(self, seat: Seat, path: PreparedPath | None) -> None:
        try:
            if path is not None:
                path.release()
        except EdgeError:  # the answer does not need its states any more; they are computed again
            self._trace.count("knowledge.dropped")
        finally:
            self._idle.append(seat)
            self._refused = False

    def _give_up(self, extra: Sequence[Seat]) -> None:
        for seat in extra:
            self._idle.remove(seat)
            self._seats -= 1
            try:
                self._forget(seat)
            finally:
                seat.close()


def _reason(request: Request) -> Exception | None:
    try:
        request.urgency.check()
    except (Withdrawn, DeadlinePassed) as error:
        return error
    return None
