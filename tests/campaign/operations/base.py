"""An operation: a command that changes stored files, and a judge of the files afterwards."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from campaign.program import EDGE, Finished, Home, Snapshot
from campaign.shim import Shim, counted


@dataclass(frozen=True)
class After:
    """The known facts about an operation that was attacked; `printed`: on stdout by then."""

    acknowledged: bool
    printed: str


class Operation(ABC):
    """A command that changes stored files; `command`: the program that gets `arguments`. Its home is below `place`."""

    name: ClassVar[str]
    command: ClassVar[Sequence[str]] = EDGE
    arguments: Sequence[str]

    def __init__(self, place: Path) -> None:
        self.home = Home(place / self.name.replace(" ", "-") / "home")

    @abstractmethod
    def prepare(self) -> None:
        """Makes the state before the operation. The home is empty; it is put back to this state before every attack."""

    @cached_property
    def snapshot(self) -> Snapshot:
        """That state, which is made when it is asked for."""
        self.prepare()
        return Snapshot(self.home.path)

    @cached_property
    def counts(self) -> tuple[int, int]:
        """The number of its file operations without those that read, and of all."""
        self.snapshot.restore()
        counter = self.home.path.with_name("counter")
        self.undisturbed(Shim(self.watched(), reads=True), counter)
        every, _, reads = counted(counter)
        return every - reads, every

    def undisturbed(self, shim: Shim, counter: Path) -> None:
        """Runs the operation, which nothing spoils."""
        done = self.run(**shim.environment(counter))
        if done.code != 0:
            raise AssertionError(f"without an attack {done}")

    @abstractmethod
    def watched(self) -> tuple[Path, ...]:
        """The folders in which its file operations are attacked."""

    @abstractmethod
    def judge(self, after: After) -> str | None:
        """One sentence about the files after an attack, looked at with commands of the program; None when the state is
        that of some committed moment, whatever was acknowledged is there, and the operation goes on when it is
        repeated."""

    def again(self) -> Finished:
        """Runs the command once more, after an attack."""
        return self.home.look(*self.arguments) if self.command == EDGE else self.run()

    def run(self, **environment: str) -> Finished:
        """Runs the command."""
        return self.home.edge(*self.arguments, environment=environment, command=self.command)


class OnStore(Operation):
    """A command on a collection or a memory (`place`), whose verbs begin with `verbs`; `damaged`: before the command.
    Afterwards a check finds nothing, its state is told, and the command goes on when it is repeated."""

    verbs: ClassVar[tuple[str, ...]] = ()
    place: ClassVar[tuple[str, str]]
    listing: ClassVar[tuple[str, ...]]
    """A verb that shows what is stored, with the state."""

    damaged: ClassVar[bool] = False

    @abstractmethod
    def found(self) -> Any:
        """What is stored, as commands show it."""

    @abstractmethod
    def wrong(self, after: After, found: Any) -> str | None:
        """The fault in what is stored while the state is said to be right."""

    def change(self) -> None:
        """The change that makes the command necessary."""

    def watched(self) -> tuple[Path, ...]:
        return (self.home.work / self.place[1],)

    def look(self, *arguments: str) -> Finished:
        return self.home.look(*self.verbs, *arguments, *self.place)

    def must(self, *arguments: str) -> Any:
        """What a command prints as JSON, if it does; it must succeed."""
        done = self.look(*arguments)
        assert done.code == 0 or ("--json" in arguments and done.code == 1), done
        return json.loads(done.out) if "--json" in arguments else None

    def judge(self, after: After) -> str | None:
        checked = self.look("check", "--read-data", "--json")
        if problem := checked.fault():
            return problem
        if checked.code != 0 and not (self.damaged and not after.acknowledged):
            return f"a check finds damage: {checked}"
        if checked.code == 0 and (problem := self._told(after)):
            return problem
        again = self.again()
        if again.code != 0:
            return f"repeated: {again}"
        health = self.must("status", "--json")["health"]
        if health["state"] != "ok":
            return f"repeated, the state is {health}"
        problem = self.wrong(After(True, ""), self.found())
        return problem and f"repeated: {problem}"

    def _told(self, after: After) -> str | None:
        health = self.must("status", "--json")["health"]
        listed = self.look(*self.listing)
        if problem := listed.fault():
            return problem
        if json.loads(listed.out)["health"]["state"] not in (health["state"], "unfinished", "ok"):
            return f"`{self.listing[0]}` and `status` tell different states"
        if health["state"] == "ok":
            return self.wrong(after, self.found())
        if after.acknowledged:
            return f"the command succeeded, and the state is {health}"
        return None if "edge:" in listed.err else "the state is told by `status` alone"
