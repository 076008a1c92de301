"""What a store of vectors shares with others about its models: which one made the vectors, and models opened on use."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from edge.errors import BudgetExceeded


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

    def give(self) -> bool:
        """Closes the model if it is idle and ours; returns whether it did."""
        if not self.lock.acquire(blocking=False):
            return False
        try:
            return self.close()
        finally:
            self.lock.release()

    def close(self) -> bool:
        """Closes the model if it is ours, when its request has ended; returns whether it did."""
        with self.lock:
            model, self.model = self.model, None
            if model is None or model is self.chosen:
                return False
            model.close()
            return True


def fitted(work: Callable[[], Result], give: Callable[[], bool]) -> Result:
    """What `work` returns; where it does not fit, after another model has given way by `give`.

    Raises:
        BudgetExceeded: it does not fit then either, or nothing was given.
    """
    try:
        return work()
    except BudgetExceeded:
        if not give():
            raise
    return work()


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
