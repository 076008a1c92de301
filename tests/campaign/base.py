"""The parts of the campaign: an attack is a class of cases, and each case holds or fails."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar


@dataclass(frozen=True)
class Case:
    """One attack on one promise. `label` stands in the report when it fails; `data`: the input of `attempt`."""

    label: str
    data: Any = None


class Attack(ABC):
    """A class of attacks. `quick`: the number of cases in the form that CI runs; `needs`: modules without which its
    cases cannot run."""

    name: ClassVar[str]
    promise: ClassVar[str]
    quick: ClassVar[int]
    needs: ClassVar[tuple[str, ...]] = ()

    def prepare(self, place: Path) -> None:  # noqa: B027
        """Makes the things that all cases share, before `cases` is called. `place`: an empty folder of this class's
        own."""

    @abstractmethod
    def cases(self, chance: random.Random) -> Iterator[Case]:
        """The cases, in an order that depends on `chance` alone. May be endless."""

    @abstractmethod
    def attempt(self, case: Case, place: Path) -> str | None:
        """Runs one case. Returns how the promise was broken, or None. An exception counts as a failure of the case."""
