"""The files of a memory."""

from __future__ import annotations

import json
from pathlib import Path

from campaign.program import Home
from campaign.stored.base import Stored


class MemoryFiles(Stored):
    """Damage changes no result in silence; a check finds it, and a repair leaves a sound memory without anything that
    was never stored."""

    name = "memory"
    share = 3

    def prepare(self, home: Home) -> None:
        home.with_tiny_models()
        texts = [f"Fact {n}: the river flooded in {1900 + n}. " + "It is long. " * 60 * n for n in range(12)]
        done = home.look("memory", "add", *texts, "--path", "mem")
        assert done.code == 0, done
        self.right = self.results(home)
        assert isinstance(self.right, list), self.right
        self.texts = {row[1] for rows in self.right for row in rows}

    def files(self, home: Home) -> list[Path]:
        folder = home.work / "mem"
        names = ("memory.db", "memory.db-mark", "memory.db-schema")
        segments = folder / "segments"
        more = sorted(segments.iterdir()) if segments.exists() else []
        return [path for path in (*(folder / name for name in names), *more) if path.stat().st_size]

    def results(self, home: Home) -> list[list[tuple[str, str, bool]]] | str | None:
        """What is listed and found; a sentence where a command did what none may; None where damage was said."""
        found = []
        for arguments in (("list", "-n", "100"), ("search", "river 1907", "--no-rerank", "-n", "100")):
            done = home.look("memory", *arguments, "--json", "--path", "mem")
            if problem := done.fault():
                return problem
            if done.code == 2:
                return None if "edge" in done.err else f"no way out is named: {done}"
            document = json.loads(done.out)
            if document["health"]["state"] == "damaged":
                return None
            found.append([(row["id"], row["memory"], row.get("pinned", False)) for row in document["results"]])
        return found

    def judge(self, home: Home, path: Path) -> str | None:
        found = self.results(home)
        if isinstance(found, str):
            return found
        if found is not None and found != self.right:
            return "another result in silence"
        checked = home.look("memory", "check", "--read-data", "--path", "mem")
        if problem := checked.fault():
            return problem
        if checked.code == 0 and not path.name.endswith(("-schema", "-mark")):
            return "`edge memory check --read-data` finds nothing"
        repaired = home.look("memory", "repair", "--path", "mem")
        if repaired.code != 0:
            return f"not repaired: {repaired}"
        checked = home.look("memory", "check", "--read-data", "--path", "mem")
        if checked.code != 0:
            return f"after the repair: {checked}"
        after = self.results(home)
        if not isinstance(after, list):
            return f"after the repair: {after or 'damage is said'}"
        return "a repair made a memory up" if {row[1] for rows in after for row in rows} - self.texts else None
