"""Operations with the homes that they are attacked in. The classes that attack them share these: to prepare them takes
longer than a class's few cases."""

from __future__ import annotations

from functools import cache, cached_property
from pathlib import Path

from campaign.operations.base import Operation
from campaign.operations.collections import Backup, Compact, Index, Rebuild, Repair, Restore
from campaign.operations.knowledge import StoreStates
from campaign.operations.memories import MemoryAdd, MemoryLearn, MemoryRebuild, MemoryRepair
from campaign.operations.models import Calibrate, PackByName, PackByPath, Pull
from campaign.program import Home, Snapshot
from campaign.shim import Shim, counted, counted_reads

OPERATIONS: tuple[type[Operation], ...] = (
    Backup, Compact, Index, Rebuild, Repair, Restore, StoreStates, MemoryAdd, MemoryLearn, MemoryRebuild, MemoryRepair,
    Calibrate, PackByName, PackByPath, Pull,
)  # fmt: skip


class Prepared:
    """An operation and its home, which is made when it is asked for."""

    def __init__(self, operation: Operation, place: Path) -> None:
        self.operation = operation
        self._path = place / operation.name.replace(" ", "-") / "home"
        self._counts: dict[bool, int] = {}

    @cached_property
    def home(self) -> Home:
        home = Home(self._path)
        self.operation.prepare(home)
        return home

    @cached_property
    def snapshot(self) -> Snapshot:
        """The home as it was before the operation."""
        return Snapshot(self.home.path)

    def run(self, shim: Shim, counter: Path) -> None:
        """Runs the operation, which nothing spoils."""
        done = self.operation.run(self.home, **shim.environment(counter))
        if done.code != 0:
            raise AssertionError(f"without an attack {done}")

    def count(self, *, reads: bool) -> int:
        """The number of its file operations, with or without those that read. One run counts both."""
        if not self._counts:
            counter = self.home.path.with_name("counter")
            self.snapshot.restore()
            self.run(Shim(self.operation.watched(self.home), reads=True), counter)
            every = counted(counter)[0]
            self._counts = {True: every, False: every - counted_reads(counter)}
        return self._counts[reads]


@cache
def prepared(place: Path) -> dict[str, Prepared]:
    """Every operation by its name, with a home below `place`."""
    return {kind.name: Prepared(kind(), place) for kind in OPERATIONS}


def shared(place: Path) -> dict[str, Prepared]:
    """The operations of the campaign in which `place` is the folder of one class of attacks."""
    return prepared(place.parent / "operations")
