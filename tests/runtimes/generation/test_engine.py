"""`GenerationEngine` over contexts without a model: arrivals, cancellations and failures, step by step in one thread.

The oracle of every answer is a fresh context that computes it alone.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings
from naive.knowledge import segment
from naive.kv import FakeContext

from edge.budget import MemoryBudget
from edge.errors import DeadlinePassed, InputError, ModelError
from edge.kv_cache.backend import KVBackend, StateSegment
from edge.kv_cache.tree import KnowledgeTree
from edge.runtimes.generation import engine as module
from edge.runtimes.generation.base import Sampling
from edge.runtimes.generation.engine import GenerationEngine, Request
from edge.runtimes.generation.prompt import Prompt
from edge.scheduling.waiting_line import BATCH, PERSON, PROGRAM, Urgency
from edge.trace import Trace

SYSTEM = segment("system", 6)
POOL = [segment(f"d{number}", 5 + 9 * number) for number in range(5)]


class FakeSeat(FakeContext):
    """A sequence whose next token is a digest of everything before it."""

    def __init__(self, pool: FakePool | None = None) -> None:
        super().__init__(batch=4)
        self.pool = pool
        if pool is not None:
            pool.seats.append(self)
        self.slice = 4
        self.backend: KVBackend | None = self
        self.closed = False

    def append(
        self, tokens: Sequence[int], *, done: int = 0, cancelled: Callable[[], bool] | None = None, logits: bool = False
    ) -> int:
        return done + self.prefill(tokens[done:], cancelled)

    def reusable(self, common: int, tokens: int) -> int:
        return min(common, tokens - 1)

    def _append(self, token: int) -> None:
        super()._append(token)
        assert self.pool is None or self.pool.used <= self.pool.cells

    def share(self, other: object, start: int, end: int) -> bool:
        if self.pool is None:
            return False
        assert isinstance(other, FakeSeat)
        assert start == len(self.cells)
        self.cells += other.cells[start:end]
        assert end == len(self.cells)
        return True

    def close(self) -> None:
        assert not self.closed
        self.closed = True


class FakePool:
    """The cells of several sequences. Shared ones are the same objects."""

    together = 12

    def __init__(self, cells: int) -> None:
        self.cells = cells
        self.seats: list[FakeSeat] = []

    @property
    def used(self) -> int:
        return len({id(cell) for seat in self.seats for cell in seat.cells})

    def step(self, texts: Sequence[tuple[FakeSeat, Sequence[int]]]) -> None:
        assert sum(len(tokens) for _, tokens in texts) <= self.together
        lengths = [seat.length for seat, _ in texts]
        try:
            for seat, tokens in texts:
                seat.prefill(tokens)
        except ModelError:
            for (seat, _), length in zip(texts, lengths, strict=True):
                seat.truncate(length)
            raise


class FakeChooser:
    def __init__(self, sampling: Sampling) -> None:
        self.closed = False

    def choose(self, seat: Any) -> tuple[int, float]:
        return int.from_bytes(seat.output()[:4], "little") % 1000, -1.0

    def close(self) -> None:
        assert not self.closed
        self.closed = True


class FakeVocabulary:
    def piece(self, token: int) -> bytes:
        return b"t%d " % token

    def ends(self, token: int) -> bool:
        return token % 13 == 0


def alone(prompt: Prompt, longest: int) -> list[int]:
    """The oracle."""
    seat, found = FakeSeat(), []
    seat.prefill([token for part in prompt.path for token in part.tokens])
    seat.prefill(prompt.question)
    while len(found) < longest and not FakeVocabulary().ends(token := FakeChooser(Sampling()).choose(seat)[0]):
        found.append(token)
        seat.prefill([token])
    return found


def talkative(document: StateSegment) -> int:
    """A question whose answer is at least 20 tokens long."""
    prompts = ((number, Prompt((SYSTEM, document), (number, number + 1))) for number in range(100, 1000))
    return next(number for number, prompt in prompts if len(alone(prompt, 20)) == 20)


class Bench:
    """An engine that is stepped by hand."""

    def __init__(
        self, most: int, *, tree: bool = True, room: int = 10**9, cells: int = 0, anywhere: bool = False
    ) -> None:
        self.pool = FakePool(cells) if cells else None
        self.seats = [FakeSeat(self.pool)]
        self.room = room
        self.trace = Trace()
        self.budget = MemoryBudget(10**7, baseline=0)
        self.tree = (
            KnowledgeTree(self.seats[0], self.budget, host_limit=10**6, anywhere=anywhere, trace=self.trace)
            if tree
            else None
        )
        self.engine = GenerationEngine(
            FakeVocabulary(), most=most, first=self.seats[0], another=self._another, chooser=FakeChooser,
            tree=lambda: self.tree, budget=self.budget, pool=self.pool, trace=self.trace,
        )  # fmt: skip
        self.engine._thread = threading.current_thread()  # so that it starts none
        self.requests: list[Request] = []

    def _another(self) -> FakeSeat | None:
        if len(self.seats) > self.room:
            return None
        self.seats.append(FakeSeat(self.pool))
        return self.seats[-1]

    def ask(
        self,
        path: Sequence[StateSegment],
        *,
        longest: int = 5,
        urgency: Urgency | None = None,
        question: int = 7,
        begins: Sequence[int] = (),
    ) -> Request:
        prompt = Prompt((SYSTEM, *path), (*begins, question, question + 1))
        request = Request(prompt, Sampling(), longest, lambda: False, urgency or Urgency())
        self.requests.append(request)
        self.engine.submit(request)
        return request

    def step(self) -> None:
        self.engine._step()
        self.check()

    def finish(self) -> None:
        for _ in range(10_000):
            if not self.engine._waiting and not self.engine._writing:
                break
            self.step()
        assert all(request.ended for request in self.requests), "nobody is forgotten"

    def check(self) -> None:
        engine = self.engine
        busy = [writing.seat for writing in engine._writing]
        assert len(set(map(id, [*busy, *engine._idle]))) == len(busy) + len(engine._idle) == engine._seats
        assert engine._seats <= engine._most
        assert not any(seat.closed for seat in [*busy, *engine._idle])  # type: ignore[attr-defined]

    def close(self) -> None:
        for request in self.requests:
            request.left = True
        self.finish()
        if self.tree is not None:
            self.tree.close()
            assert self.budget.used == 0
        self.engine._thread = None
        self.engine.close()
        assert all(seat.closed for seat in self.seats)
        assert self.budget.used == 0


def read(request: Request) -> list[int]:
    """The tokens that reached the reader."""
    return [piece.token for pieces, _ in request.read() for piece in pieces if piece.token is not None]


@pytest.fixture
def bench() -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(*arguments: Any, **options: Any) -> Bench:
        made.append(Bench(*arguments, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


def with_the_best_last(documents: list[StateSegment]) -> list[StateSegment]:
    """The last one is computed in its place, and has other tokens in other prompts."""
    return [*documents[:-1], *(replace(best, home=(9, *best.tokens), whole=True) for best in documents[-1:])]


path_of = st.lists(st.sampled_from(POOL), max_size=3, unique=True).map(with_the_best_last)
event = st.one_of(
    st.tuples(
        st.just("ask"), path_of, st.integers(1, 8), st.sampled_from([PERSON, PROGRAM, BATCH]), st.integers(0, 20)
    ),
    st.tuples(st.just("ask"), path_of, st.integers(1, 8), st.just(PROGRAM), st.integers(0, 20)),
    st.tuples(st.just("step"), st.integers(1, 4)),
    st.tuples(st.just("cancel"), st.integers(0, 9)),
    st.tuples(st.just("leave"), st.integers(0, 9)),
    st.tuples(st.just("fail"), st.integers(0, 3), st.integers(0, 5)),
    st.tuples(st.just("rest")),
    st.tuples(st.just("idle")),
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    events=st.lists(event, max_size=30), most=st.integers(1, 4), tree=st.booleans(), room=st.sampled_from([1, 2, 9]),
    cells=st.sampled_from([0, 160, 400]),
)  # fmt: skip
def test_whatever_arrives_and_leaves_answers_equal_those_alone(
    events: list[tuple[Any, ...]], most: int, tree: bool, room: int, cells: int
) -> None:
    """Nor do those that share a pool, of cells that are never more than there are."""
    bench = Bench(most, tree=tree, room=room, cells=cells)
    touched: set[int] = set()
    failing = False
    for kind, *details in events:
        if kind == "ask":
            begins = range(50, 50 + details[3])
            bench.ask(details[0], longest=details[1], urgency=Urgency(details[2]), begins=begins, question=details[3])
        elif kind == "step":
            for _ in range(details[0]):
                bench.step()
        elif kind == "rest":
            bench.finish()
            if bench.pool is not None:
                continue
            bench.engine._give_up([seat for seat in bench.engine._idle if seat is not bench.engine._first])
            bench.seats = [seat for seat in bench.seats if not seat.closed]
            assert len(bench.seats) == 1
        elif kind == "idle":
            bench.finish()
            if bench.engine._unread:
                bench.engine._turn()
                bench.check()
        elif kind == "fail":
            bench.seats[details[0] % len(bench.seats)].failures = [details[1], details[1] + 1]
            failing = True
        elif bench.requests:
            request = bench.requests[details[0] % len(bench.requests)]
            touched.add(id(request))
            if kind == "cancel":
                request.cancelled = lambda: True
            else:
                request.left = True
    bench.finish()
    for request in bench.requests:
        expected = alone(request.prompt, request.longest)
        try:
            found = read(request)
        except ModelError:
            assert failing
            continue
        if id(request) in touched:
            assert found == expected[: len(found)]
        else:
            assert found == expected
            assert request.finish == ("length" if len(expected) == request.longest else "stop")
            assert (request.new, request.shown) == (len(expected), 0)
    bench.close()


MOVED = StateSegment("moved", (50, *POOL[3].tokens), (49, *POOL[3].tokens))
BEST = StateSegment("best", (49, *POOL[4].tokens), (49, *POOL[4].tokens), whole=True)


@pytest.mark.parametrize("cells", [0, 160])
def test_the_best_document_is_read_for_other_prompts_when_nobody_waits(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch, cells: int
) -> None:
    made = bench(2, anywhere=True, cells=cells)
    home = [SYSTEM, StateSegment("best", BEST.home)]
    made.ask([MOVED, BEST])
    made.finish()
    assert made.tree.match(home).missing == len(BEST.home), "it was computed in its place"

    prefill, arrived = made.seats[0].prefill, []

    def arrives(tokens: Sequence[int], cancelled: Callable[[], bool] | None = None) -> int:
        arrived.append(made.ask([POOL[0]]))
        monkeypatch.setattr(made.seats[0], "prefill", prefill)
        return prefill(tokens, cancelled)

    monkeypatch.setattr(made.seats[0], "prefill", arrives)
    made.engine._turn()
    assert arrived
    assert made.tree.match(home).missing, "it gives way to a request"
    made.finish()
    hits = made.trace.counters["knowledge.misses"]
    made.engine._turn()
    assert made.tree.match(home).missing == 0
    assert made.trace.counters["knowledge.ahead_tokens"] == len(BEST.home)
    assert made.trace.counters["knowledge.misses"] == hits, "nobody has asked for it"
    assert not made.engine._unread
    before = made.trace.counters["knowledge.moved_hits"]
    made.ask([replace(MOVED, tokens=(51, *MOVED.home)), BEST])
    made.finish()
    assert made.trace.counters["knowledge.moved_hits"] == before + 2, "both were read before"


def test_a_failure_of_reading_ahead_ends_no_request(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = bench(2, anywhere=True)
    made.ask([MOVED, BEST])
    made.finish()
    prepare, arrived = made.tree.prepare, []

    def fails(*arguments: Any, **options: Any) -> Any:
        arrived.append(made.ask([POOL[0]]))
        raise ModelError("no cells")

    monkeypatch.setattr(made.tree, "prepare", fails)
    usual = made.seats[0].slice
    made.engine._turn()
    assert made.seats[0].slice == usual
    monkeypatch.setattr(made.tree, "prepare", prepare)
    made.finish()
    assert read(arrived[0]) == alone(arrived[0].prompt, arrived[0].longest)


def test_nothing_is_read_ahead_that_a_pool_has_no_cells_for(bench: Callable[..., Bench]) -> None:
    made = bench(2, anywhere=True, cells=160)
    made.ask([MOVED, BEST])
    made.finish()
    made.pool.cells = len(SYSTEM.tokens) + len(BEST.home) - 1
    made.engine._turn()
    assert "knowledge.ahead_tokens" not in made.trace.counters


def test_answers_are_written_side_by_side(bench: Callable[..., Bench]) -> None:
    """And what they ask for at once is computed once."""
    made = bench(2)
    one, two, three = (made.ask([POOL[number]], longest=20, question=talkative(POOL[number])) for number in range(3))
    made.step()
    assert three.new == 0
    assert one.new > two.new > 0, "the first goes on while the second one's prompt is read"
    picture = made.engine.picture()
    assert (picture["most"], picture["cells"], picture["waiting"], picture["aside"]) == (2, None, 1, 0)
    assert [(own["written"], own["longest"]) for own in picture["sequences"]] == [(one.new, 20), (two.new, 20)]
    assert [own["tokens"] for own in picture["sequences"]] == [seat.length for seat in made.seats]
    made.finish()
    assert {(own["written"], own["longest"]) for own in made.engine.picture()["sequences"]} == {(0, 0)}
    assert len(made.seats) == 2
    assert three.passed == 0
    made = bench(3)
    for number in range(3):
        made.ask([POOL[4]], longest=30, question=50 + number)
    made.step()
    assert made.trace.counters["knowledge.computed_tokens"] == len(SYSTEM.tokens) + len(POOL[4].tokens)


def test_a_short_question_does_not_wait_for_a_long_prompt(bench: Callable[..., Bench]) -> None:
    made = bench(2)
    long = made.ask(POOL[2:])
    arrived: list[Request] = []

    def arrives() -> bool:
        if not arrived and made.seats[0].length > 10:
            arrived.append(made.ask([]))
        return False

    long.cancelled = arrives
    made.step()
    assert 0 < arrived[0].first < long.first


def test_a_long_prompt_is_not_held_up_for_ever(bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WINDOW", 3)
    made = bench(2)
    long = made.ask(POOL[2:])
    short: list[Request] = []

    def arrives() -> bool:
        short.append(made.ask([], longest=1, question=100 + len(short)))
        return len(short) > 100

    long.cancelled = arrives
    made.step()
    assert long.first
    assert long.passed == 3
    long.cancelled = lambda: False
    made.finish()


def test_urgent_requests_go_first_then_the_nearer_deadline_then_cached_ones(
    bench: Callable[..., Bench],
) -> None:
    made = bench(1)
    made.ask([POOL[1]], longest=1)
    made.finish()
    order = {
        "batch": made.ask([POOL[1]], longest=1, urgency=Urgency(BATCH)),
        "new": made.ask([POOL[0]], longest=1, question=8),
        "whenever": made.ask([POOL[1]], longest=1, question=8),
        "late": made.ask([POOL[3]], longest=1, urgency=Urgency(seconds=290.0)),
        "later, and cached": made.ask([POOL[1]], longest=1, urgency=Urgency(seconds=300.0), question=8),
        "soon": made.ask([POOL[4]], longest=1, urgency=Urgency(seconds=30.0)),
        "person": made.ask([POOL[2]], longest=1, urgency=Urgency(PERSON, seconds=300.0)),
    }
    made.finish()
    expected = ["person", "soon", "later, and cached", "late", "whenever", "new", "batch"]
    assert sorted(order, key=lambda name: order[name].ended) == expected
    late = made.ask([], urgency=Urgency(seconds=0.0))
    made.finish()
    with pytest.raises(DeadlinePassed):
        read(late)


@pytest.mark.parametrize("room", [True, False])
def test_an_urgent_request_has_another_one_set_aside(bench: Callable[..., Bench], room: bool) -> None:
    made = bench(1)
    longest, question = 20, talkative(POOL[3])
    patient = made.ask([POOL[3]], longest=longest, urgency=Urgency(BATCH), question=question)
    made.step()
    lease = made.budget.reserve("others", 0 if room else made.budget.free)
    computed = made.trace.counters["knowledge.computed_tokens"]
    urgent = made.ask([POOL[3]], longest=2, urgency=Urgency(PERSON), question=question + 100)
    equal = made.ask([POOL[3]], longest=2, urgency=Urgency(BATCH), question=question + 200)
    made.finish()
    assert (urgent.ended < patient.ended < equal.ended) if room else (patient.ended < urgent.ended < equal.ended)
    assert made.trace.counters["generation.set_aside"] == room
    assert made.trace.counters["knowledge.computed_tokens"] == computed, "its states were there"
    assert read(patient) == alone(patient.prompt, longest)
    lease.release()


def test_an_answer_whose_states_cannot_be_taken_goes_on(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = bench(1)
    longest, question = 20, talkative(POOL[3])
    patient = made.ask([POOL[3]], longest=longest, urgency=Urgency(BATCH), question=question)
    made.step()
    used = made.budget.used

    def extract(start: int, end: int) -> Any:
        raise ModelError("llama.cpp gives no states")

    with monkeypatch.context() as patch:
        patch.setattr(made.seats[0].backend, "extract", extract)
        urgent = made.ask([POOL[3]], longest=2, urgency=Urgency(PERSON), question=question + 100)
        made.step()
        assert made.budget.used == used, "nothing is leased for an answer that was not set aside"
        assert (urgent.new, patient.new) == (0, 2)
    made.finish()
    assert read(patient) == alone(patient.prompt, longest)


def test_nobody_is_overtaken_more_often_than_the_window(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WINDOW", 4)
    made = bench(1)
    last = made.ask([POOL[4]], longest=1, urgency=Urgency(BATCH))
    for number in range(12):
        made.ask([], longest=1, urgency=Urgency(PERSON), question=20 + number)
    made.finish()
    assert sum(request.ended < last.ended for request in made.requests) == 4


def test_a_question_that_begins_like_the_one_before_is_computed_from_there(bench: Callable[..., Bench]) -> None:
    made = bench(1)
    for path, computed in ([POOL[0]], 22), ([POOL[0]], 2), ([POOL[1]], 22), ([POOL[1]], 2):
        request = made.ask(path, longest=1, begins=range(50, 70), question=100 + len(made.requests))
        missing = made.tree.match(request.prompt.path).missing if made.tree else 0
        before = made.seats[0].prefilled
        made.finish()
        assert made.seats[0].prefilled - before == missing + computed
        assert request.cached == request.prompt.tokens - missing - computed
        assert read(request) == alone(request.prompt, 1)


def test_answers_of_a_pool_share_their_questions_and_their_steps(bench: Callable[..., Bench]) -> None:
    made = bench(3, cells=400)
    asked = [made.ask([POOL[0]], longest=20, begins=range(50, 90), question=100 + number) for number in range(3)]
    made.step()
    assert made.pool.used == len(SYSTEM.tokens) + len(POOL[0].tokens) + 42
    assert [request.new for request in asked] == [1, 0, 0]
    made.step()
    assert [request.new for request in asked] == [2, 1, 1], "the rest of a question is computed in others' step"
    assert made.pool.used == len(SYSTEM.tokens) + len(POOL[0].tokens) + 42 + 1 + 2 + 2
    made.finish()
    for request in asked:
        assert read(request) == alone(request.prompt, 20)


def test_an_error_that_is_nobodys_and_closing_end_every_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Bench(2, tree=False)
    made.engine._thread = None
    with monkeypatch.context() as patch:
        patch.setattr(made.engine, "_next", lambda left: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            read(made.ask([]))
    request = made.ask([])
    assert read(request) == alone(request.prompt, request.longest), "the next one is answered"
    made.engine.close()
    made = Bench(2)
    made.engine._thread = None
    made.tree = None
    requests = [made.ask([POOL[number]], longest=10**6) for number in range(4)]
    next(requests[0].read())
    made.engine.close()
    for request in requests:
        list(request.read())
        assert request.finish == "cancelled" or request.ended
    with pytest.raises(InputError, match="closed"):
        made.ask([])


@pytest.mark.parametrize("broken", ["_forget", "_give_up", "_taken", "_end", "close"])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_no_failure_leaves_a_question_waiting(monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    """Of the thread's housekeeping, between answers and at their ends: each is answered, or ends with an error."""
    made = Bench(2, tree=False)
    for question in (20, 30):
        made.ask([], question=question)
    made.finish()
    failed = threading.Event()

    def fail(*_: object) -> None:
        failed.set()
        raise RuntimeError("broken")

    def ended(request: Request) -> bool:
        def wait() -> None:
            with contextlib.suppress(RuntimeError):
                read(request)

        reader = threading.Thread(target=wait, daemon=True)
        reader.start()
        reader.join(10)
        return not reader.is_alive()

    monkeypatch.setattr(module, "_KEPT_S", 0.05)
    with monkeypatch.context() as patch:
        patch.setattr(made.seats[1] if broken == "close" else made.engine, broken, fail)
        made.engine._thread = None
        first = made.ask([], question=40)
        assert failed.wait(10)
        assert ended(first)
        time.sleep(0.1)  # the thread rests, or ends
    with contextlib.suppress(InputError):  # the engine says that it has ended
        assert ended(made.ask([], question=50))
    made.engine.close()
