"""An operation: a command that changes stored files, and a judge of the files afterwards."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

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


class OnStore(Operation):
    """A command on a collection or a memory (`place`), whose verbs begin with `verbs`; `damaged`: before the command.
    Afterwards a check finds nothing, its state is told, and the command goes on when it is repeated."""

    verbs: ClassVar[tuple[str, ...]] = ()
    place: ClassVar[tuple[str, str]]
    listing: ClassVar[tuple[str, ...]]
    """A verb that shows what is stored, with the state."""

    damaged: ClassVar[bool] = False

    @abstractmethod
    def found(self, home: Home) -> Any:
        """What is stored, as commands show it."""

    @abstractmethod
    def wrong(self, after: After, found: Any) -> str | None:
        """The fault in what is stored while the state is said to be right."""

    def change(self, home: Home) -> None:
        """The change that makes the command necessary."""

    def watched(self, home: Home) -> tuple[Path, ...]:
        return (home.work / self.place[1],)

    def look(self, home: Home, *arguments: str) -> Finished:
        return home.look(*self.verbs, *arguments, *self.place)

    def must(self, home: Home, *arguments: str) -> Any:
        """What a command prints as JSON, if it does; it must succeed."""
        done = self.look(home, *arguments)
        assert done.code == 0 or ("--json" in arguments and done.code == 1), done
        return json.loads(done.out) if "--json" in arguments else None

    def judge(self, home: Home, after: After) -> str | None:
        checked = self.look(home, "check", "--read-data", "--json")
        if problem := checked.fault():
            return problem
        if checked.code != 0 and not (self.damaged and not after.acknowledged):
            return f"a check finds damage: {checked}"
        if checked.code == 0 and (problem := self._told(home, after)):
            return problem
        again = self.again(home)
        if again.code != 0:
            return f"repeated: {again}"
        health = self.must(home, "status", "--json")["health"]
        if health["state"] != "ok":
            return f"repeated, the state is {health}"
        problem = self.wrong(After(True, "", ""), self.found(home))
        return problem and f"repeated: {problem}"

    def _told(self, home: Home, after: After) -> str | None:
        health = self.must(home, "status", "--json")["health"]
        listed = self.look(home, *self.listing)
        if problem := listed.fault():
            return problem
        if json.loads(listed.out)["health"]["state"] not in (health["state"], "unfinished", "ok"):
            return f"`{self.listing[0]}` and `status` tell different states"
        if health["state"] == "ok":
            return self.wrong(after, self.found(home))
        if after.acknowledged:
            return f"the command succeeded, and the state is {health}"
        return None if "edge:" in listed.err else "the state is told by `status` alone"
