"""An operation: a command that changes stored files, and a judge of the files afterwards."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from campaign.program import EDGE, Finished, Home


@dataclass(frozen=True)
class After:
    """The known facts about an operation that was attacked; `printed`: on stdout by then."""

    acknowledged: bool
    printed: str
    attack: str


class Operation(ABC):
    """A command that changes stored files; `command`: the program that gets `arguments`."""

    name: ClassVar[str]
    command: ClassVar[Sequence[str]] = EDGE

    @abstractmethod
    def prepare(self, home: Home) -> None:
        """Makes the state before the operation. The home is empty; it is put back to this state before every attack."""

    @abstractmethod
    def arguments(self, home: Home) -> list[str]:
        """Of the command."""

    @abstractmethod
    def watched(self, home: Home) -> tuple[Path, ...]:
        """The folders in which its file operations are attacked."""

    def environment(self, home: Home) -> dict[str, str]:
        """More variables of the command."""
        return {}

    @abstractmethod
    def judge(self, home: Home, after: After) -> str | None:
        """One sentence about the files after an attack, looked at with commands of the program; None when the state is
        that of some committed moment, whatever was acknowledged is there, and the operation goes on when it is
        repeated."""

    def again(self, home: Home) -> Finished:
        """Runs the command once more, after an attack."""
        if self.command == EDGE:
            return home.look(*self.arguments(home), **self.environment(home))
        return self.run(home)

    def run(self, home: Home, **environment: str) -> Finished:
        """Runs the command."""
        more = {**self.environment(home), **environment}
        return home.edge(*self.arguments(home), environment=more, command=self.command)
