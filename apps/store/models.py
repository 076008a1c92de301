"""What a store of vectors shares with others about its models: which one made the vectors, and models opened on use."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from edge.budget import MemoryBudget
from edge.errors import BudgetExceeded
from edge.plan import Plan


class Closable(Protocol):
    """An open model."""

    def close(self) -> None:
        """Gives its memory back."""


Model = TypeVar("Model", bound=Closable)
Result = TypeVar("Result")


class Slot(Generic[Model]):
    """A model that is open, or will be: `chosen` by name or path, or handed over open and then not ours to close.

    Attributes:
        model: the open one; None while there is none.
        lock: held while the model runs a request.
    """

    def __init__(self, chosen: str | Path | Model | None) -> None:
        self.chosen: str | Path | Model | None = chosen
        self.model: Model | None = None
        self.lock = threading.RLock()

    def close(self) -> None:
        """Closes the model if it is ours, when its request has ended."""
        with self.lock:
            model, self.model = self.model, None
            if model is not None and model is not self.chosen:
                model.close()


class Sharing:
    """Models that share one budget: each runs one request at a time, and what does not fit beside the others gets their
    room once their requests have ended."""

    def __init__(self, *slots: Slot[Any]) -> None:
        self._slots = slots
        self._planning = threading.Lock()
        self._planned = False
        self._alone = threading.Lock()
        self._own = threading.local()

    def check(self, plan: Callable[[], Plan], budget: MemoryBudget) -> None:
        """Before any model is open, sees to it that all that the first operation will open has room, one after the
        other. Afterwards models give way to each other, and there is nothing to plan.

        Raises:
            BudgetExceeded: see `Plan.check`.
        """
        with self._planning:
            if not self._planned and all(slot.model is None for slot in self._slots):
                plan().check(budget)
            self._planned = True

    def run(self, slot: Slot[Model], work: Callable[[], Result]) -> Result:
        """What `work` returns, which runs the model of one slot (and opens it). Inside another `run` of this thread,
        which makes room for both.

        Raises:
            BudgetExceeded: it does not fit even alone.
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
                pass  # waiting for the others must not hold what they may wait for
            with self._alone, ExitStack() as held:
                for each in self._slots:
                    held.enter_context(each.lock)
                for other in self._slots:
                    if other is not slot:
                        other.close()
                return work()
        finally:
            self._own.running = False


@dataclass(frozen=True, slots=True)
class EmbedderIdentity:
    """Which model made a store's vectors.

    Attributes:
        name: what it is called.
        source: the name or path to open it by; empty where it was handed over and has no files.
        fingerprint: changes with any of its weights.
        dim: width of a vector.
    """

    name: str
    source: str
    fingerprint: str
    dim: int

    def to_json(self) -> str:
        """As it is stored."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> EmbedderIdentity:
        """What `to_json` wrote."""
        return cls(**json.loads(text))
