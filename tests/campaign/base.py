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
    """One attack on one promise.

    Attributes:
        label: the target and the way of the attack, in a few words; it stands in the report when the case fails.
        data: the input of `attempt`.
    """

    label: str
    data: Any = None


@dataclass(frozen=True)
class Outcome:
    """How a case ended.

    Attributes:
        held: whether the promise was kept.
        line: one line about the observation.
        operations: things that the program was asked for.
        refused: whether the program refused its input with a sentence.
        peak, limit: high-water mark of the anonymous memory, and the limit, in bytes; 0 where it was not sampled.
    """

    held: bool
    line: str = ""
    operations: int = 1
    refused: bool = False
    peak: int = 0
    limit: int = 0

    def at(self, peak: int, limit: int) -> Outcome:
        """The same outcome, with its memory."""
        return replace(self, peak=peak, limit=limit)


HELD = Outcome(True)
REFUSED = Outcome(True, refused=True)


def failed(line: str, operations: int = 1) -> Outcome:
    """The outcome of a case in which a promise was broken, with the first 400 characters of the observation."""
    return Outcome(False, " ".join(line.split())[:400], operations)


class Attack(ABC):
    """A class of attacks. Subclasses in this folder are found by themselves.

    Attributes:
        name: how the class is called on the command line and in the report.
        promise: in one sentence.
        quick: number of cases in the quick form, which CI runs; the whole quick form takes about two minutes.
        order: classes with a smaller number run first.
    """

    name: ClassVar[str]
    promise: ClassVar[str]
    quick: ClassVar[int]
    order: ClassVar[int] = 0

    def prepare(self, place: Path) -> None:  # noqa: B027
        """Makes the things that all cases share. `place` is an empty folder of this class's own.

        It stays until the class has ended. `cases` is called after it.
        """

    @abstractmethod
    def cases(self, chance: random.Random) -> Iterator[Case]:
        """The cases, in an order that depends on `chance` alone. May be endless."""

    @abstractmethod
    def attempt(self, case: Case, place: Path) -> Outcome:
        """Runs one case. `place` is the folder that `prepare` was given; its files there are its own affair.

        An exception counts as a failure of the case.
        """

    def close(self) -> None:  # noqa: B027
        """Ends everything that `prepare` started."""
