"""The Python library in one process: eight threads on one ledger, with every class of the library."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

from campaign.documents import MADE
from campaign.program import Home
from campaign.sessions.base import Ended, Live, Session

_CALLS = Path(__file__).with_name("calls.py")
_SMALLEST = 150 * 10**6
"""Enough for the models, the databases and a document; threads beside each other are refused what does not fit."""

_HOSTILE = ("quotes.md", "deep.html", "wide.csv", "controls.txt", "loop.pdf", "keys.json", "line.txt", "entities.docx")


class Library(Session):
    """Everything that the library has confirmed is there afterwards, also for another process."""

    name = "library"

    def prepare(self, home: Home) -> None:
        folder = home.work / "hostile"
        folder.mkdir()
        for name in _HOSTILE:
            (folder / name).write_bytes(MADE[name]())

    def smallest(self, home: Home) -> int:
        return _SMALLEST

    def arguments(self, home: Home) -> list[str]:
        return [str(_CALLS)]

    def run(self, home: Home, limit: int, chance: random.Random, count: int) -> Ended:
        place = f"library-{chance.getrandbits(48):x}"
        arguments = [*self.arguments(home), place, str(chance.getrandbits(32)), str(count)]
        with Live(home, arguments, limit, (sys.executable,)) as live:
            live.wait(lambda: bool(live.lines) and live.lines[-1].startswith(b'{"done"'))
            live.note("calls in eight threads")
            finished = live.finish()
        if finished.fault(limit) is not None or not live.lines:
            return Ended(finished, count, None, live.suspect)
        done = json.loads(live.lines[-1])
        problem = done["broken"] or self._lost(home, place, done["kept"])
        return Ended(finished, done["done"], problem, live.suspect)

    @staticmethod
    def _lost(home: Home, place: str, kept: dict[str, str]) -> str | None:
        # Not `memory list`: it lists at most 10,000, and one call may have added as many.
        written = home.look("memory", "export", "-", "--path", f"{place}/memory", "--user-id", "a")
        if written.code != 0:
            return f"the memories cannot be exported: {written}"
        found = {row["id"]: row["memory"] for row in map(json.loads, written.out.splitlines()) if "memory" in row}
        lost = [text for name, text in kept.items() if found.get(name) != text]
        return f"{len(lost)} of {len(kept)} confirmed memories are not so, such as {lost[0][:99]!r}" if lost else None
