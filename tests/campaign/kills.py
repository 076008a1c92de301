"""`kill -9` at every file operation of everything that changes stored files."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from campaign.base import HELD, Attack, Case, Outcome, failed
from campaign.discovery import found
from campaign.operations.base import After, Operation
from campaign.program import Home, Snapshot
from campaign.shim import Doing, Shim, counted


class Interrupted(Attack):
    """Runs every operation with the shim before it, once for each of its file operations and ways to spoil it."""

    ways: tuple[tuple[Doing, bool], ...]
    """How an operation is spoiled, and whether all later ones are, too."""

    reads = False
    """Whether reads are spoiled as well."""

    def prepare(self, place: Path) -> None:
        self.operations: dict[str, Operation] = {}
        self.homes: dict[str, tuple[Home, Snapshot, int]] = {}
        for kind in found(Operation, "operations"):
            operation = kind()
            home = Home(place / operation.name.replace(" ", "-") / "home")
            operation.prepare(home)
            snapshot = Snapshot(home.path)
            counter = place / "counter"
            shim = Shim(operation.watched(home), reads=self.reads)
            done = operation.run(home, **shim.environment(counter))
            if done.code != 0:
                raise AssertionError(f"without an attack {done}")
            self.operations[operation.name] = operation
            self.homes[operation.name] = home, snapshot, counted(counter)[0]

    def cases(self, chance: random.Random) -> Iterator[Case]:
        every = [
            (name, doing, lasting, at)
            for name, (_, _, count) in self.homes.items()
            for doing, lasting in self.ways
            for at in range(1, count + 1)
        ]
        chance.shuffle(every)
        for name, doing, lasting, at in every:
            count = self.homes[name][2]
            said = f"{name}: {doing} at file operation {at} of {count}{' and all later ones' if lasting else ''}"
            yield Case(said, (name, doing, lasting, at))

    def attempt(self, case: Case, place: Path) -> Outcome:
        name, doing, lasting, at = case.data
        operation = self.operations[name]
        home, snapshot, _ = self.homes[name]
        snapshot.restore()
        shim = Shim(operation.watched(home), at, doing, lasting, self.reads)
        done = operation.run(home, **shim.environment(place / "counter"))
        if counted(place / "counter")[1] == 0 and done.code != 0:
            return failed(f"nothing was spoiled, and yet {done}")
        if problem := done.fault():
            return failed(problem)
        after = After(done.code == 0, done.out, case.label)
        problem = operation.judge(home, after)
        return HELD if problem is None else failed(problem)


class Kills(Interrupted):
    name = "kills"
    promise = "a kill at any file operation loses nothing that was acknowledged, and the work goes on"
    quick = 12
    order = 20
    ways = (("kill", False), ("torn", False))
