"""The parts of the campaign: an attack is a class of cases, and each case holds or fails."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar


@dataclass(frozen=True)
class Case:
    """One attack on one promise. `label` stands in the report when it fails; `data`: the input of `attempt`."""

    label: str
    data: Any = None


@dataclass(frozen=True)
class Outcome:
    """How a case ended. `peak`, `limit`: anonymous memory in bytes, 0 where it was not sampled."""

    held: bool
    line: str = ""
    peak: int = 0
    limit: int = 0

    def at(self, peak: int, limit: int) -> Outcome:
        """The same outcome, with its memory."""
        return replace(self, peak=peak, limit=limit)


HELD = Outcome(True)


def failed(line: str) -> Outcome:
    """The outcome of a case in which a promise was broken, with the first 400 characters of the observation."""
    return Outcome(False, " ".join(line.split())[:400])


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
    def attempt(self, case: Case, place: Path) -> Outcome:
        """Runs one case. An exception counts as a failure of the case."""
