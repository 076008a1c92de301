"""`Plan`: what a whole operation will need, stage by stage, before its first one begins.

An operation that opens several models one after the other would otherwise be refused by one after the other, each with
a limit that is enough for itself. The plan names one limit that is enough for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edge.budget import MemoryBudget
from edge.config import format_size
from edge.errors import BudgetExceeded
from edge.libraries import import_nbytes

SPREAD = 1 << 20
"""Bytes added to every limit that a refusal names: a process never starts with exactly the same bytes twice."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of an operation.

    Attributes:
        name: what is done, as a message says it.
        own: bytes that it needs while it runs and gives back, or gives way with, when it ends.
        kept: bytes that it leaves held until the operation ends.
        libraries: modules that it imports, which stay in the process.
    """

    name: str
    own: int = 0
    kept: int = 0
    libraries: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """The stages of an operation in their order.

    Attributes:
        operation: what is done, as a message says it.
    """

    operation: str
    stages: Sequence[Stage]

    @property
    def nbytes(self) -> int:
        """Bytes that the operation needs at most, beside what is held when it begins."""
        return self._largest()[0]

    def check(self, budget: MemoryBudget) -> None:
        """Asks caches to give way to the operation.

        Raises:
            BudgetExceeded: it does not fit even then; the error names the smallest limit that works.
        """
        nbytes = self.nbytes
        budget.make_room(nbytes)
        if nbytes > budget.free:
            raise self.refusal(budget.limit, budget.used)

    def refusal(self, limit: int, held: int) -> BudgetExceeded:
        """The error for a limit that is too small.

        Args:
            held: bytes held when the operation begins.
        """
        nbytes, stage = self._largest()
        needed = held + nbytes + SPREAD
        return BudgetExceeded(
            f"{self.operation} cannot work within {format_size(limit)}: {stage} needs {format_size(nbytes)} beside the "
            f"{format_size(held)} that are held when it begins; the smallest memory limit that works is "
            f"{format_size(needed, up=True)}",
            owner=self.operation,
            asked=nbytes,
            free=max(0, limit - held),
            needed=needed,
        )

    def _largest(self) -> tuple[int, str]:
        """The most bytes that are needed at a time, and the stage that needs them."""
        kept = 0
        libraries: set[str] = set()
        most = 0, self.operation
        for stage in self.stages:
            kept += stage.kept
            libraries.update(stage.libraries)
            most = max(most, (kept + import_nbytes(libraries) + stage.own, stage.name))
        return most
