"""Models of a store: the identity of the embedder that made its vectors, and models that open on first use."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from edge.budget import MemoryBudget, OperationPlan
from edge.errors import BudgetExceeded


class Closable(Protocol):
    """A model that can be closed."""

    def close(self) -> None:
        """Releases the model's memory."""


Model = TypeVar("Model", bound=Closable)
Result = TypeVar("Result")


class Slot(Generic[Model]):
    """A model that is open or can be opened. `chosen` is a name, a path, or an open model that the caller owns.

    Attributes:
        model: the open model; None while none is open.
        lock: held while the model runs a request. A model with `shares_requests` runs several requests at once, without
            a lock.
    """

    def __init__(self, chosen: str | Path | Model | None) -> None:
        self.chosen: str | Path | Model | None = chosen
        self.model: Model | None = None
        shared = getattr(chosen, "shares_requests", False)
        self.lock: AbstractContextManager[Any] = nullcontext() if shared else threading.RLock()

    def close(self) -> None:
        """Closes the model after its current request, unless the caller owns it."""
        with self.lock:
            model, self.model = self.model, None
            if model is not None and model is not self.chosen:
                model.close()


class Sharing:
    """Models that share one budget. Each runs one request at a time. If a model does not fit beside the others, the
    others are closed after their requests, and it gets their memory."""

    def __init__(self, *slots: Slot[Any]) -> None:
        self._slots = slots
        self._planning = threading.Lock()
        self._planned = False
        self._alone = threading.Lock()
        self._own = threading.local()

    def check(self, plan: Callable[[], OperationPlan], budget: MemoryBudget) -> None:
        """Before any model is open, checks that every model which the first operation opens fits, one after the other.
        Later calls check nothing, because the models make room for each other.

        Raises:
            BudgetExceeded: see `OperationPlan.check`.
        """
        with self._planning:
            if not self._planned and all(slot.model is None for slot in self._slots):
                plan().check(budget)
            self._planned = True

    def run(self, slot: Slot[Model], work: Callable[[], Result]) -> Result:
        """Calls `work`, which opens and runs the model of one slot, and returns its result. A `run` inside another
        `run` of the same thread closes no model: the outer one makes room for both.

        Raises:
            BudgetExceeded: the model does not fit even alone.
        """
        if getattr(self._own, "running", False):
            with slot.lock:
                return work()
        self._own.running = True
        try:
            try:
                with slot.lock:
                    return work()
            except BudgetExceeded:
                pass  # locks are released first: another request may be waiting for them
            with self._only(slot):
                return work()
        finally:
            self._own.running = False

    def make_way(self, work: Callable[[], Result]) -> Result:
        """Calls `work`, which uses no model, and returns its result. If the memory is not enough, all models are closed
        after their requests, and requests wait while `work` is called again.

        Raises:
            BudgetExceeded: even then the memory is not enough.
        """
        try:
            return work()
        except BudgetExceeded:
            pass
        with self._only(None):
            return work()

    @contextmanager
    def _only(self, slot: Slot[Any] | None) -> Iterator[None]:
        """Closes all models but one, or all, and lets no request of another thread open one."""
        with self._alone, ExitStack() as held:
            for each in self._slots:
                held.enter_context(each.lock)
            for other in self._slots:
                if other is not slot:
                    other.close()
            yield


@dataclass(frozen=True, slots=True)
class EmbedderIdentity:
    """The model that made a store's vectors.

    Attributes:
        name: name of the model.
        source: the name or path to open it by; empty if the caller passed an open model that has no files.
        fingerprint: changes with any of the model's weights.
        dim: width of a vector.
    """

    name: str
    source: str
    fingerprint: str
    dim: int

    def to_json(self) -> str:
        """The stored form, which `from_json` reads."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> EmbedderIdentity:
        """Reads the output of `to_json`."""
        return cls(**json.loads(text))
