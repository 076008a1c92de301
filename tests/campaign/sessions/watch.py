"""A folder that changes all the time, hostile documents included, while `edge watch` keeps its index up to date."""

from __future__ import annotations

import json
import random
import shutil
import time
from pathlib import Path

from campaign.contents import KINDS, text
from campaign.documents import MADE
from campaign.program import Home
from campaign.sessions.base import PATIENCE_S, Ended, Live, Session

_SLOW = {
    "bomb.docx", "wide.docx", "bomb.pdf", "text.pdf", "nested.pdf", "cells.ipynb", "deep.json", "deeper.json",
    "numbers.json", "line.txt", "quote.csv", "backticks.md", "combining.txt",
}  # fmt: skip
_HOSTILE = sorted(set(MADE) - _SLOW)
"""Documents whose reading ends soon: a folder holds many of them, and the end of a run is waited for."""

_LAST = ("last.md", "then.md", "end.md")
"""Written one after the other, each when the one before is in the index. A run that finds the first may have looked at
other files before they changed. A run that finds the second may not have removed files yet. When the third is there,
both have ended."""


class Watch(Session):
    """In the end the index equals the folder: a run of `edge index` finds nothing to do."""

    name = "watch"
    ends = (0, 130)

    def prepare(self, home: Home) -> None:
        self.folder = "files"
        self.collection = "unwatched"

    def arguments(self, home: Home) -> list[str]:
        return ["watch", self.folder, "--collection", self.collection]

    def run(self, home: Home, limit: int, chance: random.Random, count: int) -> Ended:
        self.folder = f"watched-{chance.getrandbits(48):x}"
        self.collection = f"{self.folder}.edge"
        folder = home.work / self.folder
        folder.mkdir()
        (folder / "first.md").write_text("The river floods in spring.\n", encoding="utf-8")
        poll = ["--poll"] if chance.random() < 0.5 else []
        with Live(home, [*self.arguments(home), *poll], limit) as live:
            for _ in range(count):
                changed = _change(folder, chance)
                live.note(changed)
                time.sleep(0.05 * chance.random())
            problem = None
            for name in _LAST:
                (folder / name).write_text(f"The last letter, {name}.\n", encoding="utf-8")
                problem = problem or self._behind(home, folder / name)
            live.note("the last changes")
            finished = live.finish(interrupted=True)
        problem = problem or self._unlike(home)
        for path in (folder, home.work / self.collection):
            shutil.rmtree(path, ignore_errors=True)
        return Ended(finished, count, problem, live.suspect)

    def _behind(self, home: Home, file: Path) -> str | None:
        """Waits until a file is there."""
        for _ in range(int(PATIENCE_S)):
            if home.look("get", str(file), "--collection", self.collection).code == 0:
                return None
            time.sleep(1.0)
        return f"{file.name} never came into the index"

    def _unlike(self, home: Home) -> str | None:
        done = home.look("index", "--json", "--collection", self.collection)
        if done.code != 0:
            return f"after the end {done}"
        report = json.loads(done.out)
        late = {name: report[name] for name in ("indexed", "removed") if report[name]}
        return f"when it ended the index was behind by {late}" if late else None


def _change(folder: Path, chance: random.Random) -> str:
    """Makes, changes, renames or removes a file; returns the change in words."""
    files = sorted(path for path in folder.iterdir() if path.name != "first.md")
    what = chance.random()
    if what < 0.15 and files:
        chosen = chance.choice(files)
        chosen.unlink()
        return f"{chosen.name} removed"
    if what < 0.25 and files:
        chosen = chance.choice(files)
        chosen.rename(folder / f"{chance.randrange(30)}{chosen.suffix}")
        return f"{chosen.name} renamed"
    if what < 0.35:
        name = chance.choice(_HOSTILE)
        (folder / name).write_bytes(MADE[name]())
        return name
    kind = chance.choice(list(KINDS))
    name = f"{chance.randrange(30)}.{chance.choice(('md', 'txt', 'py', 'csv', 'html', 'json'))}"
    lines = [text(kind, chance) for _ in range(chance.randint(1, 10))]
    (folder / name).write_text("\n\n".join(lines), encoding="utf-8")
    return f"{name} with {kind}"
