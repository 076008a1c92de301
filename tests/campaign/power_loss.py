"""Power that goes out at every file operation: data that was not flushed is gone, or there in part."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

from campaign.base import HELD, Attack, Case, Outcome, failed
from campaign.discovery import found
from campaign.operations.base import After, Operation
from campaign.powerloss import LOSSES, Log
from campaign.program import Home
from campaign.shim import Shim


class PowerLoss(Attack):
    name = "power-loss"
    promise = "after a power loss at any file operation, everything acknowledged is there and the work goes on"
    quick = 12
    order = 23

    def prepare(self, place: Path) -> None:
        self.operations: dict[str, Operation] = {}
        self.logs: dict[str, tuple[Home, Log, Path]] = {}
        for kind in found(Operation, "operations"):
            operation = kind()
            own = place / operation.name.replace(" ", "-")
            home = Home(own / "home")
            operation.prepare(home)
            kept = own / "kept"
            home.path.rename(kept)
            shutil.copytree(kept, home.path, symlinks=True)
            log = Log.before(home.path)
            shim = Shim((home.path,), log=own / "log")
            done = operation.run(home, **shim.environment(own / "counter"))
            if done.code != 0:
                raise AssertionError(f"without an attack {done}")
            log.read(own / "log")
            self.operations[operation.name] = operation
            self.logs[operation.name] = home, log, kept

    def cases(self, chance: random.Random) -> Iterator[Case]:
        every = [
            (name, loss, count, chance.random())
            for name, (_, log, _) in self.logs.items()
            for loss in LOSSES
            for count in range(1, len(log.entries) + 1)
        ]
        chance.shuffle(every)
        for name, loss, count, seed in every:
            total = len(self.logs[name][1].entries)
            yield Case(f"{name}: power out after entry {count} of {total}, lost: {loss}", (name, loss, count, seed))

    def attempt(self, case: Case, place: Path) -> Outcome:
        name, loss, count, seed = case.data
        home, log, kept = self.logs[name]
        log.crash(kept, count, loss, random.Random(seed))
        after = After(count == len(log.entries), log.printed(count), case.label)
        problem = self.operations[name].judge(home, after)
        return HELD if problem is None else failed(problem)
