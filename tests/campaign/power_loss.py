"""Power that goes out at every file operation: data that was not flushed is gone, or there in part."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from campaign.base import HELD, Attack, Case, Outcome, failed
from campaign.operations.base import After
from campaign.powerloss import LOSSES, Log
from campaign.prepared import shared
from campaign.shim import Shim


class PowerLoss(Attack):
    name = "power-loss"
    promise = "after a power loss at any file operation, everything acknowledged is there and the work goes on"
    quick = 12
    order = 23

    def prepare(self, place: Path) -> None:
        self.operations = shared(place)
        self.logs: dict[str, Log] = {}
        for number, (name, own) in enumerate(self.operations.items()):
            own.snapshot.restore()
            self.logs[name] = Log.before(own.home.path)
            records = place / f"{number}.log"
            own.run(Shim((own.home.path,), log=records), place / "counter")
            self.logs[name].read(records)

    def cases(self, chance: random.Random) -> Iterator[Case]:
        every = [
            (name, loss, count, chance.random())
            for name, log in self.logs.items()
            for loss in LOSSES
            for count in range(1, len(log.entries) + 1)
        ]
        chance.shuffle(every)
        for name, loss, count, seed in every:
            total = len(self.logs[name].entries)
            yield Case(f"{name}: power out after entry {count} of {total}, lost: {loss}", (name, loss, count, seed))

    def attempt(self, case: Case, place: Path) -> Outcome:
        name, loss, count, seed = case.data
        log, own = self.logs[name], self.operations[name]
        log.crash(own.snapshot.kept, count, loss, random.Random(seed))
        after = After(count == len(log.entries), log.printed(count), case.label)
        problem = own.operation.judge(own.home, after)
        return HELD if problem is None else failed(problem)
