"""What changes stored files is interrupted at each of its file operations: it is killed, the disk refuses, or the power
goes out."""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from campaign.base import Attack, Case
from campaign.operations.base import After, Operation
from campaign.operations.collections import Backup, Compact, Index, Rebuild, Repair, Restore
from campaign.operations.knowledge import StoreStates
from campaign.operations.memories import MemoryAdd, MemoryLearn, MemoryRebuild, MemoryRepair
from campaign.operations.models import Calibrate, PackByName, PackByPath, Pull
from campaign.powerloss import LOSSES, Log
from campaign.shim import Doing, Shim, counted

OPERATIONS: tuple[type[Operation], ...] = (
    Backup, Compact, Index, Rebuild, Repair, Restore, StoreStates, MemoryAdd, MemoryLearn, MemoryRebuild, MemoryRepair,
    Calibrate, PackByName, PackByPath, Pull,
)  # fmt: skip


@cache
def operations(place: Path) -> dict[str, Operation]:
    """Every operation by its name, with a home below `place`. The classes that attack them share these: to prepare them
    takes longer than a class's few cases."""
    return {kind.name: kind(place) for kind in OPERATIONS}


class OnOperations(Attack):
    """Cases of each operation in turn: an operation is prepared when its first case comes. Classes begin with another
    one (`first`), so that the few cases of their quick forms attack all of them."""

    first = 0

    def prepare(self, place: Path) -> None:
        self.place, self.operations = place, operations(place.parent / "operations")

    def cases(self, chance: random.Random) -> Iterator[Case]:
        names = list(self.operations)
        waiting = [self.of(name, chance) for name in names[self.first :] + names[: self.first]]
        while waiting:
            for each in list(waiting):
                if (case := next(each, None)) is not None:
                    yield case
                else:
                    waiting.remove(each)

    @abstractmethod
    def of(self, name: str, chance: random.Random) -> Iterator[Case]:
        """The cases of one operation, in an order by chance."""


class Interrupted(OnOperations):
    """Runs every operation with the shim before it, once for each of its file operations and ways to spoil it."""

    ways: tuple[tuple[Doing, bool], ...]
    """How an operation is spoiled, and whether all later ones are, too."""

    reads = False
    """Whether reads are spoiled as well."""

    def of(self, name: str, chance: random.Random) -> Iterator[Case]:
        count = self.operations[name].counts[self.reads]
        every = [(doing, lasting, at) for doing, lasting in self.ways for at in range(1, count + 1)]
        chance.shuffle(every)
        for doing, lasting, at in every:
            later = " and all later ones" if lasting else ""
            yield Case(f"{name}: {doing} at file operation {at} of {count}{later}", (name, doing, lasting, at))

    def attempt(self, case: Case, place: Path) -> str | None:
        name, doing, lasting, at = case.data
        operation = self.operations[name]
        operation.snapshot.restore()
        shim = Shim(operation.watched(), at, doing, lasting, self.reads)
        done = operation.run(**shim.environment(place / "counter"))
        if counted(place / "counter")[1] == 0 and done.code != 0:
            return f"nothing was spoiled, and yet {done}"
        return done.fault() or operation.judge(After(done.code == 0, done.out))


class Kills(Interrupted):
    name = "kills"
    promise = "a kill at any file operation loses nothing that was acknowledged, and the work goes on"
    quick = 5
    ways = (("kill", False), ("torn", False))


class FailingWrites(Interrupted):
    name = "failing-writes"
    promise = "a write that fails ends in one sentence; the state is that of some committed moment"
    quick = 5
    first = 5
    ways = (("EIO", False), ("ENOSPC", False), ("EIO", True), ("ENOSPC", True))


class FailingReads(Interrupted):
    name = "failing-reads"
    promise = "a read that fails ends in one sentence or is done without; nothing wrong is stored"
    quick = 2
    ways = (("EIO", False),)
    reads = True


class PowerLoss(OnOperations):
    name = "power-loss"
    promise = "after a power loss at any file operation, everything acknowledged is there and the work goes on"
    quick = 5
    first = 10

    def of(self, name: str, chance: random.Random) -> Iterator[Case]:
        own, records = self.operations[name], self.place / "log"
        own.snapshot.restore()
        log = Log.before(own.home.path)
        own.undisturbed(Shim((own.home.path,), log=records), self.place / "counter")
        log.read(records)
        records.unlink()
        every = [(loss, count, chance.random()) for loss in LOSSES for count in range(1, len(log.entries) + 1)]
        chance.shuffle(every)
        for loss, count, seed in every:
            label = f"{name}: power out after entry {count} of {len(log.entries)}, lost: {loss}"
            yield Case(label, (name, log, loss, count, seed))

    def attempt(self, case: Case, place: Path) -> str | None:
        name, log, loss, count, seed = case.data
        own = self.operations[name]
        log.crash(own.snapshot.kept, count, loss, random.Random(seed))
        return own.judge(After(count == len(log.entries), log.printed(count)))
