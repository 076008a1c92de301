"""Operations on memories: adding, rebuilding, repairing."""

from __future__ import annotations

import json

from campaign.operations.base import After, OnStore

PAGE = 4096
NEW = "Ada keeps her bicycle in the cellar"


class OnMemory(OnStore):
    """A command on a memory of ten texts, all of which are there afterwards."""

    verbs = ("memory",)
    place = ("--path", "mem")
    listing = ("list", "-n", "100", "--json")

    def prepare(self) -> None:
        self.home.with_tiny_models()
        for start in (0, 5):
            texts = [
                f"Fact {n}: the river flooded in {1900 + n}. " + "It is long. " * 80 * n
                for n in range(start, start + 5)
            ]
            self.must("add", *texts)
        self.old = self.found()
        self.change()

    def wrong(self, after: After, found: set[str]) -> str | None:
        return None if self.old <= found else f"{len(self.old - found)} memories are gone"

    def found(self) -> set[str]:
        return {row["memory"] for row in self.must(*self.listing)["results"]}


class MemoryAdd(OnMemory):
    name = "memory add"
    arguments = ("memory", "add", NEW, "--path", "mem")

    def wrong(self, after: After, found: set[str]) -> str | None:
        if after.acknowledged and NEW not in found:
            return "an addition that was acknowledged is gone"
        strange = found - self.old - {NEW}
        return f"there is something that was never added: {strange}" if strange else super().wrong(after, found)


class MemoryLearn(OnMemory):
    """A transcript of several transactions."""

    name = "memory learn"
    arguments = ("memory", "learn", "session.jsonl", "--path", "mem")

    def change(self) -> None:
        self.turns = [f"turn {n}: " + f"slate {n} tile " * 300 for n in range(80)]
        with (self.home.work / "session.jsonl").open("w", encoding="utf-8") as file:
            for number, text in enumerate(self.turns):
                message = {"role": ("user", "assistant")[number % 2], "content": text}
                entry = {"type": message["role"], "message": message, "uuid": f"u{number}", "sessionId": "s"}
                file.write(json.dumps(entry) + "\n")

    def wrong(self, after: After, found: set[str]) -> str | None:
        count = self.must("status", "--json")["memories"]
        if count != len(found):
            return f"of {count} memories {count - len(found)} are there twice"
        if after.acknowledged and not set(self.turns) <= found:
            return "a turn that was acknowledged is gone"
        strange = found - self.old - set(self.turns)
        return f"{len(strange)} texts were never said" if strange else super().wrong(after, found)


class MemoryRebuild(OnMemory):
    name = "memory rebuild"
    arguments = ("memory", "rebuild", "--path", "mem")


class MemoryRepair(OnMemory):
    """An index page of the database differs from the written one."""

    name = "memory repair"
    damaged = True
    arguments = ("memory", "repair", "--path", "mem")

    def change(self) -> None:
        from apsw import Connection

        path = self.home.work / "mem" / "memory.db"
        db = Connection(str(path))
        (root,) = db.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'memories_scope'").fetchall()[0]
        db.close()
        data = bytearray(path.read_bytes())
        data[(root - 1) * PAGE + 3000] ^= 1
        path.write_bytes(data)
