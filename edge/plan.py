"""`Plan`: the memory that a whole operation will need, stage by stage, computed before the first stage begins.

Without a plan, an operation that opens several models in turn could be refused several times, each time with a limit
that is enough for one more model. The plan names one limit that is enough for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edge.budget import MemoryBudget
from edge.config import format_size
from edge.errors import BudgetExceeded
from edge.libraries import import_nbytes

SPREAD = 1 << 20
"""Bytes added to every limit in a refusal, because a process never starts with exactly the same size twice."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of an operation.

    Attributes:
        name: the stage's work, worded for a message.
        own: bytes that the stage needs while it runs, and afterwards frees or can give up.
        kept: bytes that stay held until the operation ends.
        libraries: modules that the stage imports, which stay loaded.
    """

    name: str
    own: int = 0
    kept: int = 0
    libraries: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """The stages of an operation in their order.

    Attributes:
        operation: the operation, worded for a message.
    """

    operation: str
    stages: Sequence[Stage]

    @property
    def nbytes(self) -> int:
        """The most bytes that the operation needs at a time, on top of those held when it begins."""
        return self._largest()[0]

    def check(self, budget: MemoryBudget) -> None:
        """Asks caches to make room for the operation.

        Raises:
            BudgetExceeded: it does not fit even then. The error names the smallest limit that works.
        """
        nbytes = self.nbytes
        budget.make_room(nbytes)
        if nbytes > budget.free:
            raise self.refusal(budget.limit, budget.used)

    def refusal(self, limit: int, held: int) -> BudgetExceeded:
        """The error for a limit that is too small for the operation.

        Args:
            held: bytes held before the operation begins.
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
