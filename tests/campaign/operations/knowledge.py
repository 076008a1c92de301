"""Operations on the KV states that are kept on disk."""

from __future__ import annotations

import sys
from pathlib import Path

from campaign import kv_writer
from campaign.operations.base import After, Operation


def states(folder: Path) -> tuple[dict[int, bytes], str | None]:
    """The states that a store finds in its folder, and the fault of one of them."""
    from edge.errors import CorruptBlock, StorageError
    from edge.kv_cache.store import KnowledgeStore

    store = KnowledgeStore(folder, kv_writer.FINGERPRINT, 1 << 24)
    found = {}
    for path in list(store.scan()):
        number = path.tokens[-1][0]
        buffer = bytearray(path.state.extent.nbytes)
        try:
            store.read(path.state, memoryview(buffer))
        except (CorruptBlock, StorageError):
            store.remove(path.state)
            continue
        if bytes(buffer) != kv_writer.content(number):
            return found, f"state {number} holds other bytes"
        if path.ids != ("system", f"document {number}") or path.tokens[-1] != bytes([number, 0, 0, 0]) * 9:
            return found, f"state {number} belongs to another document: {path.ids}"
        found[number] = bytes(buffer)
    return found, None


class StoreStates(Operation):
    """Stores states, notes how often they were used, and removes some."""

    name = "KV states"
    command = (sys.executable, kv_writer.__file__)

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        self.folder = self.home.path / "states"
        self.arguments = (str(self.folder),)

    def prepare(self) -> None:
        self.folder.mkdir()

    def watched(self) -> tuple[Path, ...]:
        return (self.folder,)

    def judge(self, after: After) -> str | None:
        found, problem = states(self.folder)
        if problem is not None:
            return problem
        said = [line.split() for line in after.printed.splitlines()]
        kept = {int(number) for verb, number in said if verb == "kept"}
        kept -= {int(number) for verb, number in said if verb == "removing"}
        if missing := kept - found.keys():
            return f"states {sorted(missing)} were kept and are gone"
        again = self.again()
        found, problem = states(self.folder)
        whole = set(range(kv_writer.STATES)) - set(kv_writer.REMOVED)
        if again.code != 0 or problem is not None or found.keys() != whole:
            return f"repeated: {again}; {problem}; there are {sorted(found)}"
        left = [path.name for path in self.folder.rglob("*") if path.is_file() and path.suffix != ".kv"]
        return f"repeated, it leaves {', '.join(left)} behind" if left else None
