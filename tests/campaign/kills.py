"""`kill -9` at every file operation of everything that changes stored files."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from campaign.base import HELD, Attack, Case, Outcome, failed
from campaign.operations.base import After
from campaign.prepared import shared
from campaign.shim import Doing, Shim, counted


class Interrupted(Attack):
    """Runs every operation with the shim before it, once for each of its file operations and ways to spoil it."""

    ways: tuple[tuple[Doing, bool], ...]
    """How an operation is spoiled, and whether all later ones are, too."""

    reads = False
    """Whether reads are spoiled as well."""

    def prepare(self, place: Path) -> None:
        self.operations = shared(place)
        self.counts = {name: own.count(reads=self.reads) for name, own in self.operations.items()}

    def cases(self, chance: random.Random) -> Iterator[Case]:
        every = [
            (name, doing, lasting, at)
            for name, count in self.counts.items()
            for doing, lasting in self.ways
            for at in range(1, count + 1)
        ]
        chance.shuffle(every)
        for name, doing, lasting, at in every:
            later = " and all later ones" if lasting else ""
            said = f"{name}: {doing} at file operation {at} of {self.counts[name]}{later}"
            yield Case(said, (name, doing, lasting, at))

    def attempt(self, case: Case, place: Path) -> Outcome:
        name, doing, lasting, at = case.data
        operation, home = self.operations[name].operation, self.operations[name].home
        self.operations[name].snapshot.restore()
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
