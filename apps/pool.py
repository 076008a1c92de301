"""One pool of models in one budget: opened on first use, lent for one piece of work, closed for others' room."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, Generic, Protocol, TypeVar

from edge.budget import MemoryBudget, OperationPlan
from edge.errors import BudgetExceeded
from edge.scheduling.waiting_line import current_urgency


class Closable(Protocol):
    def close(self) -> None:
        """Releases the model's memory."""


Model = TypeVar("Model", bound=Closable)
Result = TypeVar("Result")


_LOOK_S = 0.1


@contextmanager
def patiently(lock: threading.Lock) -> Iterator[None]:
    """Holds a lock that another thread may hold for long. Raises `Withdrawn` or `DeadlinePassed` where nobody waits any
    more."""
    urgency = current_urgency()
    while not lock.acquire(timeout=_LOOK_S):
        urgency.check()
    try:
        yield
    finally:
        lock.release()


class ModelPool:
    """Models by kind and name, in one budget. One that does not fit beside the others gets their room when their
    requests have ended. Thread-safe."""

    def __init__(self, budget: MemoryBudget) -> None:
        self.budget = budget
        self._models: dict[tuple[str, str], Held[Any]] = {}
        self._making = threading.Lock()
        self._changed = threading.Condition()
        self._inside = 0
        self._alone = 0
        self._own = threading.local()
        self._planning = threading.Lock()
        self._planned = False

    def held(
        self,
        kind: str,
        name: str,
        opening: Callable[[], Model],
        *,
        chosen: object = None,
        shared: bool = True,
        kept: bool = False,
    ) -> Held[Model]:
        """The model of a kind and name; nothing is opened yet. One that is `chosen` from another pool stays in that
        one."""
        if isinstance(chosen, Held):
            return chosen
        with self._making:
            if (kind, name) not in self._models:
                self._models[kind, name] = Held(self, kind, name, opening, chosen=chosen, shared=shared, kept=kept)
            return self._models[kind, name]

    def models(self) -> list[Held[Any]]:
        with self._making:
            return list(self._models.values())

    def close(self) -> None:
        """Closes all models when their requests have ended. They are opened again when needed."""
        for held in self.models():
            held.close()

    def check(self, plan: Callable[[], OperationPlan]) -> None:
        """Before any model is open, checks that every model of the first operation fits, one after the other. Later
        calls check nothing: models make room for each other. Raises `BudgetExceeded`."""
        with self._planning:
            if not self._planned and not any(held.is_open for held in self.models()):
                plan().check(self.budget)
            self._planned = True

    def make_way(self, work: Callable[[], Result]) -> Result:
        """The result of `work`, which uses no model. If memory is short, all models are closed after their requests,
        and requests wait while it is called again. Raises `BudgetExceeded` if that is not enough."""
        try:
            return work()
        except BudgetExceeded:
            if self.nested:
                raise
        with self.alone(None):
            return work()

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Work on a model beside that on others. Waits while a request has all the room."""
        nested = getattr(self._own, "depth", 0)
        urgency = current_urgency()
        with urgency.heard(self._wake), self._changed:
            while self._alone and not nested:
                urgency.check()
                self._changed.wait(urgency.remaining)
            self._inside += 1
        self._own.depth = nested + 1
        try:
            yield
        finally:
            self._own.depth = nested
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    @contextmanager
    def alone(self, wanted: Held[Any] | None) -> Iterator[None]:
        """Work on one model, beside which no other is open. Only outside of `beside`."""
        urgency = current_urgency()
        with urgency.heard(self._wake), self._changed:
            self._alone += 1
            try:
                while self._inside:
                    urgency.check()
                    self._changed.wait(urgency.remaining)
                self._inside += 1
            except BaseException:
                self._alone -= 1
                self._changed.notify_all()
                raise
        nested = getattr(self._own, "depth", 0)
        self._own.depth = nested + 1
        try:
            for held in self.models():
                if held is not wanted:
                    held.give_way()
            yield
        finally:
            self._own.depth = nested
            with self._changed:
                self._inside -= 1
                self._alone -= 1
                self._changed.notify_all()

    @property
    def nested(self) -> bool:
        return bool(getattr(self._own, "depth", 0))

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()


class Held(Generic[Model]):
    """A model that is open, or can be; `nbytes`: what opening it took, the last time. Thread-safe."""

    def __init__(
        self,
        pool: ModelPool,
        kind: str,
        name: str,
        opening: Callable[[], Model],
        *,
        chosen: object,
        shared: bool,
        kept: bool,
    ) -> None:
        """Opens nothing yet. `opening` opens the model, or returns the open one that the caller has `chosen` and
        closes. A `shared` model runs several requests at once, and the budget may close it while it is idle, unless it
        is `kept`; others run one at a time, and stay open until another model needs the room."""
        self.chosen = chosen
        self._shared = shared
        self._kept = kept
        self._turn: AbstractContextManager[Any] = nullcontext() if shared else threading.RLock()
        self.kind = kind
        self.name = name
        self.users = 0
        self.nbytes = 0
        self.pool = pool
        self._opening = opening
        self._model: Model | None = None
        self._count = threading.Condition()  # nothing is reserved while it is held: the budget takes it from inside
        self._open = threading.Lock()
        self._own = threading.local()
        self._load_s = 0.0
        self._forget: Callable[[], None] | None = None

    @property
    def is_open(self) -> bool:
        return self._model is not None

    @property
    def opened(self) -> Model | None:
        return self._model

    def run(self, work: Callable[[Model], Result]) -> Result:
        """The result of `work` with the open model. Where that does not fit beside others, they are closed after their
        requests. Raises `BudgetExceeded` if it does not fit even alone, and `ModelError`."""
        if self.pool.nested:  # the request outside of this one makes room for both
            with self.using() as model:
                return work(model)
        try:
            with self.pool.beside(), self.using() as model:
                return work(model)
        except BudgetExceeded:
            pass  # waiting for the others must not hold what they may wait for
        with self.pool.alone(self), self.using() as model:
            return work(model)

    @contextmanager
    def lent(self) -> Iterator[Model]:
        """The open model, which stays open inside the block beside other requests' work; others make room as in `run`.
        Not inside `run`."""
        with ExitStack() as stack:
            try:
                model = stack.enter_context(self.using())
            except BudgetExceeded:
                with self.pool.alone(self):
                    model = stack.enter_context(self.using())
            yield model

    @contextmanager
    def using(self) -> Iterator[Model]:
        own = self._own_uses()
        with self._count:
            self.users += 1
        self._own.uses = own + 1
        try:
            with patiently(self._open):
                if self._model is None:
                    self._load()
                model = self._model
            assert model is not None
            with self._turn:
                yield model
        finally:
            self._own.uses = own
            with self._count:
                self.users -= 1
                self._count.notify_all()

    def _own_uses(self) -> int:
        return int(getattr(self._own, "uses", 0))

    def give_way(self, nbytes: int = 0) -> None:
        with self.pool.budget.lock, self._count:
            model = self._model
            if self.users or model is None:
                return
            self._model = None
            if not self._kept:
                self._release(model)
        if self._kept:  # a thread of the model may need the ledger before it can end
            self._release(model)

    def close(self) -> None:
        """Closes the model when the requests of other threads have ended. One of this thread would wait for itself."""
        own = self._own_uses()
        with self._count:
            self._count.wait_for(lambda: self.users <= own)
        with self._open:
            model, self._model = self._model, None
            if model is not None:
                self._release(model)

    def _release(self, model: Model) -> None:
        if self._forget is not None:
            self._forget()
        if model is not self.chosen:
            model.close()

    def _load(self) -> None:
        if not self._shared:
            self._model = self._opening()
            return
        budget, started = self.pool.budget, time.perf_counter()
        with budget.loading():
            before = budget.holders()
            self._model = self._opening()
            # Others may have given memory meanwhile, so what the process holds may have become less.
            self.nbytes = max(
                1, sum(max(0, nbytes - before.get(owner, 0)) for owner, nbytes in budget.holders().items())
            )
        if self._kept:
            return
        self._load_s = time.perf_counter() - started
        # Each request after the next pays nothing, but the next one pays for all of the loading.
        self._forget = budget.add_shrinker(
            f"{self.kind} {self.name}", self.give_way, loss=lambda: self._load_s / self.nbytes
        )
