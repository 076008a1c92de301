"""Operations on memories: adding, rebuilding, repairing."""

from __future__ import annotations

import json
from pathlib import Path

from campaign.operations.base import After, Operation
from campaign.program import Home

PAGE = 4096
NEW = "Ada keeps her bicycle in the cellar"


class OnMemory(Operation):
    """A command on a memory of ten texts. Afterwards a check finds nothing, and all of them are there."""

    damaged = False

    def prepare(self, home: Home) -> None:
        home.with_tiny_models()
        for start in (0, 5):
            texts = [
                f"Fact {n}: the river flooded in {1900 + n}. " + "It is long. " * 80 * n
                for n in range(start, start + 5)
            ]
            done = home.look("memory", "add", *texts, "--path", "mem")
            assert done.code == 0, done
        self.old = self.texts(home)
        self.change(home)

    def change(self, home: Home) -> None:
        """The change that makes the command necessary."""

    def watched(self, home: Home) -> tuple[Path, ...]:
        return (home.work / "mem",)

    def judge(self, home: Home, after: After) -> str | None:
        checked = home.look("memory", "check", "--read-data", "--json", "--path", "mem")
        if problem := checked.fault():
            return problem
        if checked.code != 0 and not (self.damaged and not after.acknowledged):
            return f"a check finds damage: {checked}"
        if checked.code == 0:
            listed = home.look("memory", "list", "-n", "100", "--json", "--path", "mem")
            if problem := listed.fault():
                return problem
            have = self.texts(home)
            state = json.loads(listed.out)["health"]["state"]
            if not self.old <= have and state == "ok":
                return f"{len(self.old - have)} memories are gone, and nothing says so"
            if state != "ok" and after.acknowledged:
                return f"the command succeeded, and the state is {state}"
            if state != "ok" and "edge:" not in listed.err:
                return "the state is told in JSON alone"
            if problem := self.wrong(after, have):
                return problem
        again = self.again(home)
        if again.code != 0:
            return f"repeated: {again}"
        status = json.loads(home.look("memory", "status", "--json", "--path", "mem").out)
        if status["health"]["state"] != "ok":
            return f"repeated, the state is {status['health']}"
        have = self.texts(home)
        if not self.old <= have:
            return f"repeated, {len(self.old - have)} memories are gone"
        return self.wrong(After(True, "", ""), have)

    def wrong(self, after: After, have: set[str]) -> str | None:
        return None

    def texts(self, home: Home) -> set[str]:
        done = home.look("memory", "list", "-n", "100", "--json", "--path", "mem")
        assert done.code in (0, 1), done
        return {row["memory"] for row in json.loads(done.out)["results"]}


class MemoryAdd(OnMemory):
    name = "memory add"

    def arguments(self, home: Home) -> list[str]:
        return ["memory", "add", NEW, "--path", "mem"]

    def wrong(self, after: After, have: set[str]) -> str | None:
        if after.acknowledged and NEW not in have:
            return "an addition that was acknowledged is gone"
        return f"there is something that was never added: {have - self.old}" if have - self.old - {NEW} else None


class MemoryLearn(OnMemory):
    """A transcript of several transactions."""

    name = "memory learn"

    def change(self, home: Home) -> None:
        self.home = home
        self.turns = [f"turn {n}: " + f"slate {n} tile " * 300 for n in range(80)]
        with (home.work / "session.jsonl").open("w", encoding="utf-8") as file:
            for number, text in enumerate(self.turns):
                message = {"role": ("user", "assistant")[number % 2], "content": text}
                entry = {"type": message["role"], "message": message, "uuid": f"u{number}", "sessionId": "s"}
                file.write(json.dumps(entry) + "\n")

    def arguments(self, home: Home) -> list[str]:
        return ["memory", "learn", "session.jsonl", "--path", "mem"]

    def wrong(self, after: After, have: set[str]) -> str | None:
        count = json.loads(self.home.look("memory", "status", "--json", "--path", "mem").out)["memories"]
        if count != len(have):
            return f"of {count} memories {count - len(have)} are there twice"
        if after.acknowledged and not set(self.turns) <= have:
            return "a turn that was acknowledged is gone"
        strange = have - self.old - set(self.turns)
        return f"there is something that was never said: {len(strange)} texts" if strange else None


class MemoryRebuild(OnMemory):
    name = "memory rebuild"

    def arguments(self, home: Home) -> list[str]:
        return ["memory", "rebuild", "--path", "mem"]


class MemoryRepair(OnMemory):
    """An index page of the database differs from the written one."""

    name = "memory repair"
    damaged = True

    def change(self, home: Home) -> None:
        from apsw import Connection

        path = home.work / "mem" / "memory.db"
        db = Connection(str(path))
        (root,) = db.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'memories_scope'").fetchall()[0]
        db.close()
        data = bytearray(path.read_bytes())
        data[(root - 1) * PAGE + 3000] ^= 1
        path.write_bytes(data)

    def arguments(self, home: Home) -> list[str]:
        return ["memory", "repair", "--path", "mem"]
